// What a pipeline's flight recorder keeps: one record of a cache line for each packet, as its
// header was, for each command, and for what the pipeline's state is from time to time. A record is
// the image in memory and in files alike; a change of any of it is a new kFlightVersion.
//
// An image is a head, the rest of its page, and the records of one pipeline: as the ring that is
// written, number n at n % capacity, or copied out of it, in order. A file may have several, one
// after the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/numa_arena.h"
#include "nic/wire/header.h"

namespace pbox::pipeline {

inline constexpr char kFlightMagic[8] = {'P', 'B', 'O', 'X', 'F', 'L', 'T', '\n'};
inline constexpr uint32_t kFlightVersion = 2;
inline constexpr size_t kFlightHeadBytes = 4096;

// What became of a packet. The numbers are those of files.
enum class Verdict : uint8_t {
  kPending = 0,     // the pipeline was at it
  kAggregated = 1,  // or applied, where the model is not BSP
  kDuplicate = 2,
  kStale = 3,
  kDropped = 4,
  kPull = 5,  // answered, or left to a result that is still to leave
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
  kCount
};

enum class FlightKind : uint8_t {
  kNone = 0,
  kPacket = 1,   // PacketRecord
  kShard = 2,    // ShardRecord, then its name and its sessions
  kName = 3,     // up to 48 bytes of a job's name
  kSession = 4,  // SessionRecord: two ranks
  kChunk = 5,    // ChunkRecord, then the claims of its open round if there are any
  kClaims = 6,   // ClaimsRecord: five ranks
  kCommand = 7,  // CommandRecord, carried out; then the state it led to
  kLeft = 8,     // LeftRecord: a result has left for every rank
};

inline constexpr size_t kFlightBodyBytes = 48;

struct PacketRecord {
  wire::Header header;     // zeroes after `bytes` of them
  uint64_t held_mask = 0;  // of a PULL: its payload
};

// A job's part on the pipeline. The name and sessions that follow are counted here.
struct ShardRecord {
  uint32_t epoch = 0;
  uint32_t fragment_bytes = 0;
  uint32_t job_chunk_count = 0;
  uint32_t chunk_count = 0;  // of this pipeline
  uint32_t worker_count = 0;
  uint16_t generation = 0;
  uint8_t mode = 0;
  uint8_t reduction = 0;
  uint8_t partial = 0;
  uint8_t delivery = 0;
  uint8_t sync_model = 0;
  uint8_t name_bytes = 0;
  uint32_t part = 0;  // of the job: chunks are numbered in each
  uint8_t unused[16] = {};
};

struct SessionRecord {
  struct Rank {
    uint64_t newest_packet_number = 0;
    uint32_t rank = 0;
    uint32_t spi = 0;
    uint32_t credit_bytes = 0;
    uint32_t present = 0;
  } ranks[2];  // the second may be of no rank: spi and credit 0, and the first's rank
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
  uint8_t opens = 0;    // 1: as it was before the packet of the record before
  uint16_t claims = 0;  // ClaimsRecords that follow
  uint32_t unused = 0;
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

// The digest is of one piece of the result, the next in each round: enough to tell at which round
// two records of what ought to be the same part.
inline constexpr uint32_t kDigestedBytes = 1024;
struct LeftRecord {
  uint32_t chunk = 0;
  uint32_t round = 0;
  uint32_t digest = 0;  // CRC32C
  uint16_t piece = 0;   // of kDigestedBytes each, but the last
  uint16_t digested_bytes = 0;
  uint8_t unused[32] = {};
};

struct alignas(kCacheLineBytes) FlightRecord {
  FlightKind kind = FlightKind::kNone;
  Verdict verdict = Verdict::kPending;  // of kPacket
  uint16_t unused = 0;
  uint32_t subject = 0;  // of kPacket: bytes received; of others: the shard, counted from 1
  uint64_t at_ns = 0;    // CLOCK_MONOTONIC, of the loop's turn
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
  uint64_t capacity = 0;       // records; of a ring a power of two
  uint64_t begun_unix_ns = 0;  // the wall's time at begun_ns
  uint64_t begun_ns = 0;       // CLOCK_MONOTONIC
  uint64_t copied_from = 0;    // not 0: no ring, but `capacity` records in order; 1 more than the
                               // number of the first
  uint32_t checksum = 0;       // CRC32C of what stands before
  alignas(kCacheLineBytes) std::atomic<uint64_t> written{0};  // records, ever
};
static_assert(sizeof(FlightHead) <= kFlightHeadBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace pbox::pipeline
