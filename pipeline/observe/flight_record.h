// The format of a pipeline's flight recorder. It has one record, of a cache line's size, for each
// packet (the header as received), for each command, and from time to time for the pipeline's
// state. Records are the same in memory and in files. Any change needs a new kFlightVersion.
//
// An image consists of a head that fills a page, and the records of one pipeline. The records are
// either the ring itself, with record n at n % capacity, or a copy of it in order. A file may hold
// several images, one after the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/numa_arena.h"
#include "nic/wire/header.h"

namespace pbox::pipeline {

inline constexpr char kFlightMagic[8] = {'P', 'B', 'O', 'X', 'F', 'L', 'T', '\n'};
inline constexpr uint32_t kFlightVersion = 2;
inline constexpr size_t kFlightHeadBytes = 4096;

// The outcome of a packet. The numbers are part of the file format.
enum class Verdict : uint8_t {
  kPending = 0,     // the pipeline was still working on the packet
  kAggregated = 1,  // added to a sum, or applied on arrival
  kDuplicate = 2,
  kStale = 3,
  kDropped = 4,
  kPull = 5,  // a PULL: answered now, or by a result that is about to leave
  kTooShort = 6,
  kVersion = 7,
  kType = 8,
  kReserved = 9,
  kLength = 10,
  kTag = 11,
  kQueue = 12,
  kSession = 13,
  kEpoch = 14,
  kGeneration = 15,
  kChunk = 16,
  kFragment = 17,
  kDtype = 18,
  kRound = 19,
  kShape = 20,
  kCount
};

enum class FlightKind : uint8_t {
  kNone = 0,     // never written, or incomplete
  kPacket = 1,   // PacketRecord
  kShard = 2,    // ShardRecord; kName and kSession records follow
  kName = 3,     // up to 48 bytes of a job's name
  kSession = 4,  // SessionRecord: two ranks
  kChunk = 5,    // ChunkRecord; kClaims records follow if its open round has claims
  kClaims = 6,   // ClaimsRecord: five ranks
  kCommand = 7,  // CommandRecord: a command was carried out; the shard's kShard record follows
  kLeft = 8,     // LeftRecord: a result has left for every rank
};

inline constexpr size_t kFlightBodyBytes = 48;

struct PacketRecord {
  wire::Header header;     // zero beyond the bytes received
  uint64_t held_mask = 0;  // the payload, if the packet is a PULL or ZEROS
};

// A job's shard on the pipeline. The records with its name and its sessions follow.
struct ShardRecord {
  uint32_t epoch = 0;
  uint32_t fragment_bytes = 0;
  uint32_t job_chunk_count = 0;
  uint32_t chunk_count = 0;  // chunks on this pipeline
  uint32_t worker_count = 0;
  uint16_t generation = 0;
  uint8_t mode = 0;
  uint8_t reduction = 0;
  uint8_t partial = 0;
  uint8_t delivery = 0;
  uint8_t sync_model = 0;
  uint8_t name_bytes = 0;
  uint32_t part = 0;  // index of the job's part; chunk ids are local to it
  uint8_t is_collective = 0;
  uint8_t weighted = 0;
  uint8_t unused[14] = {};
};

struct SessionRecord {
  struct Rank {
    uint64_t newest_packet_number = 0;
    uint32_t rank = 0;
    uint32_t spi = 0;
    uint32_t credit_bytes = 0;
    uint32_t present = 0;
  } ranks[2];  // all zero if there is no second rank
};

struct ChunkRecord {
  uint64_t rounds_finished = 0;
  uint64_t first_round = 0;
  uint64_t claimed_any = 0;
  uint32_t chunk = 0;
  uint32_t elements = 0;
  uint32_t fanned_out_rounds = 0;
  uint32_t copy_rank = 0;
  uint8_t dtype = 0;
  uint8_t opens = 0;    // 1: the state before the packet of the preceding record opened the round
  uint16_t claims = 0;  // number of ClaimsRecords that follow
  // 1: the chunk's packets cannot be replayed, because it belongs to a table, where only payloads
  // say which fragments they cover, or its results are deltas, and a rank may ask for weights.
  uint32_t is_left_out = 0;
};

struct ClaimsRecord {
  static constexpr uint32_t kRanks = 5;
  uint64_t masks[kRanks] = {};
  uint32_t chunk = 0;
  uint32_t first_rank = 0;
};

struct CommandRecord {
  uint32_t command = 0;  // CommandKind
  uint32_t rank = 0;
  uint32_t spi = 0;
  uint32_t credit_bytes = 0;
  uint32_t generation = 0;
  float learning_rate = 0;
  uint8_t unused[24] = {};
};

// The digest covers one piece of the result, and in each round the next piece. This is enough to
// find the round in which two recordings of the same training begin to differ.
inline constexpr uint32_t kDigestedBytes = 1024;
struct LeftRecord {
  uint32_t chunk = 0;
  uint32_t round = 0;
  uint32_t digest = 0;  // CRC32C
  uint16_t piece = 0;   // index; all pieces but the last have kDigestedBytes
  uint16_t digested_bytes = 0;
  uint8_t unused[32] = {};
};

struct alignas(kCacheLineBytes) FlightRecord {
  FlightKind kind = FlightKind::kNone;
  Verdict verdict = Verdict::kPending;  // valid for kPacket
  uint16_t unused = 0;
  uint32_t subject = 0;  // kPacket: bytes received; others: the shard's flight_number
  uint64_t at_ns = 0;    // CLOCK_MONOTONIC at the start of the loop's turn
  std::byte body[kFlightBodyBytes] = {};
};
static_assert(sizeof(FlightRecord) == kCacheLineBytes);
static_assert(sizeof(PacketRecord) == kFlightBodyBytes);
static_assert(sizeof(ShardRecord) == kFlightBodyBytes);
static_assert(sizeof(SessionRecord) == kFlightBodyBytes);
static_assert(sizeof(ChunkRecord) == kFlightBodyBytes);
static_assert(sizeof(ClaimsRecord) == kFlightBodyBytes);
static_assert(sizeof(CommandRecord) == kFlightBodyBytes);
static_assert(sizeof(LeftRecord) == kFlightBodyBytes);

struct FlightHead {
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t pipeline_index = 0;
  uint64_t capacity = 0;       // in records; a power of two if the records are a ring
  uint64_t begun_unix_ns = 0;  // wall-clock time at begun_ns
  uint64_t begun_ns = 0;       // CLOCK_MONOTONIC
  // 0: the records are a ring. Otherwise they are in order, and this is the number of the first
  // record plus 1.
  uint64_t copied_from = 0;
  uint32_t checksum = 0;                                      // CRC32C of the fields before it
  alignas(kCacheLineBytes) std::atomic<uint64_t> written{0};  // records ever written
};
static_assert(sizeof(FlightHead) <= kFlightHeadBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace pbox::pipeline
