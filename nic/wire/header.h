// The 40-byte header at the start of every data packet, the same over UDP and RDMA. All fields are
// little endian and naturally aligned, so the struct is the wire image. See docs/protocol.md.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/limits.h"
#include "nic/wire/dtype.h"

namespace pbox::wire {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

enum class PacketType : uint8_t {
  // Types marked "reserved" have a number, but nothing sends them yet.
  kPush = 0,     // worker -> box: a fragment of a gradient
  kResult = 1,   // box -> worker: a fragment of a finished chunk
  kStatus = 2,   // box -> worker: StatusPayload, in answer to a PULL
  kPull = 3,     // worker -> box: PullPayload, asks for missing result fragments or a STATUS
  kGrant = 4,    // box -> worker: new credit, no payload
  kMoved = 5,    // reserved: in a newer epoch the chunk has another owner
  kRecover = 6,  // reserved: a newer epoch begins; Join on the control connection does this today
  kState = 7,    // worker -> box: a fragment of a result that it has consumed and others need
  kBarrier = 8,  // reserved
  kClose = 9,    // reserved
  kZeros = 10,   // both directions: which fragments of a push or result are zero (zeros.h)
};
inline constexpr uint8_t kPacketTypeCount = 11;

namespace flag {
inline constexpr uint8_t kRetransmission = 1 << 0;  // the fragment was sent before
inline constexpr uint8_t kLast = 1 << 1;            // the last fragment of the chunk that is sent
inline constexpr uint8_t kEncrypted = 1 << 2;       // the payload is encrypted
inline constexpr uint8_t kRows = 1 << 3;            // the payload has some rows of a table (rows.h)
inline constexpr uint8_t kPartial = 1 << 4;         // lacks some workers' gradients: contributors()
inline constexpr uint8_t kCongestionEcho = 1 << 5;  // CE_ECHO; nothing sets it yet
inline constexpr uint8_t kKeyPhase = 1 << 6;        // lowest bit of the key generation
inline constexpr uint8_t kReserved = 0x80;          // a packet with this bit is dropped
}  // namespace flag

struct Header {
  uint8_t version_type = 0;  // version in the high nibble, PacketType in the low one
  uint8_t flags = 0;
  uint16_t payload_bytes = 0;  // for a fragment: fragment_length(), unless flag::kRows is set
  uint32_t spi = 0;            // session; the sender's identity comes from this field only
  uint64_t packet_number = 0;  // unique for each transmission of an spi, retransmissions included
  uint32_t epoch = 0;          // number of the part's opening; other epochs' packets are dropped
  uint32_t chunk = 0;          // index within the part
  uint32_t round = 0;          // full round, compared by round_distance, never by parity
  uint16_t fragment = 0;       // index within the chunk
  uint16_t credit = 0;         // in units of limits::kCreditUnitBytes
  uint32_t timestamp_us = 0;   // sender's clock, echoed by the receiver; else see applied()
  // Low 4 bits: the Dtype. High 12 bits: contributors(), or a push's weight (push_weight.h).
  uint16_t dtype_scale = 0;
  uint16_t generation = 0;  // low bits of the membership generation

  void set_type(PacketType type) {
    PBOX_DCHECK(static_cast<uint8_t>(type) < kPacketTypeCount);
    version_type = static_cast<uint8_t>(limits::kWireVersion << 4 | static_cast<uint8_t>(type));
  }
  uint8_t version() const { return version_type >> 4; }
  uint8_t type_value() const { return version_type & 0x0f; }
  // Returns one of the enum's values only if parse() accepted the header, or set_type() was called.
  PacketType type() const { return static_cast<PacketType>(type_value()); }
  // Returns how many workers' gradients are in this fragment if flag::kPartial is set; else 0.
  uint16_t contributors() const {
    return (flags & flag::kPartial) != 0 ? static_cast<uint16_t>(dtype_scale >> 4) : uint16_t{0};
  }
  // In a RESULT of a job whose consistency model is not BSP (sync.h), timestamp_us says which
  // rounds the fragment contains. Where pushes are applied on arrival: the fragment contains the
  // receiver's own rounds below this one, and all workers' rounds up to and including `round`.
  // Where late pushes are dropped: this is the receiver's newest round + 1 if the fragment contains
  // that round, and less otherwise.
  uint32_t applied() const { return timestamp_us; }
};

static_assert(sizeof(Header) == limits::kHeaderBytes);
static_assert(offsetof(Header, flags) == 1);
static_assert(offsetof(Header, payload_bytes) == 2);
static_assert(offsetof(Header, spi) == 4);
static_assert(offsetof(Header, packet_number) == 8);
static_assert(offsetof(Header, epoch) == 16);
static_assert(offsetof(Header, chunk) == 20);
static_assert(offsetof(Header, round) == 24);
static_assert(offsetof(Header, fragment) == 28);
static_assert(offsetof(Header, credit) == 30);
static_assert(offsetof(Header, timestamp_us) == 32);
static_assert(offsetof(Header, dtype_scale) == 36);
static_assert(offsetof(Header, generation) == 38);

// Payload of a PULL: the fragments of the result that the worker has. The box answers with the
// missing fragments, or with a STATUS if the round is not finished.
struct PullPayload {
  uint64_t held_mask = 0;  // bit i: fragment i
};
static_assert(sizeof(PullPayload) == 8);

// Payload of a STATUS. A worker that uses an address unknown to the box must prove that it receives
// there: the box answers its PULL by a challenge, which is no longer than the PULL, and the worker
// repeats the PULL with it. Until then the box sends results to the former address, if any.
struct Challenge {
  uint64_t number = 0;  // never 0
};
// The first version of the control protocol whose workers answer challenges.
inline constexpr uint32_t kChallengeVersion = 3;
static_assert(sizeof(Challenge) <= sizeof(PullPayload));

struct ProvingPullPayload {
  PullPayload pull;
  Challenge challenge;
};
static_assert(sizeof(ProvingPullPayload) == 16);

// Payload of a STATUS, about the chunk and round in the header.
struct StatusPayload {
  uint64_t received_mask = 0;       // fragments that the box has received from this worker
  uint32_t finished_round = 0;      // newest finished round + 1; 0 if none is finished
  uint16_t missing_workers = 0;     // workers whose push of this round is incomplete
  uint16_t first_missing_rank = 0;  // lowest such rank; valid if missing_workers > 0
  // Statistics of stragglers, for messages to people; 0 where the box keeps none.
  uint32_t waited_ms = 0;     // time since the first worker pushed all of this round
  uint16_t last_percent = 0;  // percentage of rounds in which first_missing_rank was the last
  uint16_t reserved = 0;      // 0
};
static_assert(sizeof(StatusPayload) == 24);

// Returns a - b in serial-number arithmetic (RFC 1982): positive if round a is newer than round b.
// Two rounds in use are always less than 2^31 apart.
constexpr int32_t round_distance(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b);
}

// An spi consists of the index in the pipeline's session table (low bits), one direction bit
// (kSpiToWorker), and a random part. The random part is new for each session, so that packets of an
// earlier session are rejected.
inline constexpr uint32_t kSpiIndexMask = limits::kSessionsPerPipelineMax - 1;
inline constexpr uint32_t kSpiToWorker = limits::kSessionsPerPipelineMax;
// Returns the index in the session table, in [0, kSessionsPerPipelineMax).
constexpr uint32_t spi_index(uint32_t spi) {
  return spi & kSpiIndexMask;
}

// Why a packet is dropped.
enum class Reject : uint8_t {
  kNone = 0,  // it is not dropped
  kTooShort,  // shorter than header and tag
  kVersion,
  kType,      // unknown, or not for this direction
  kReserved,  // reserved flag bits set
  kLength,    // the length field does not match the packet
  kTag,       // integrity check failed
};

// A packet split into its parts. Only the header is copied; payload and tag stay where the port has
// them.
struct Parsed {
  Header header;
  const std::byte* payload = nullptr;  // header.payload_bytes bytes
  const std::byte* tag = nullptr;      // limits::kTagBytes bytes
};

// Splits a packet and checks everything that needs no state: lengths, version, type, reserved bits.
// `parsed` is valid only if the result is kNone. The caller checks the tag next (verify_tag in
// tag.h). Any core may call it; it does not allocate.
inline Reject parse(const std::byte* packet, uint32_t packet_bytes, Parsed& parsed) {
  PBOX_DCHECK(packet != nullptr || packet_bytes == 0);
  if (packet_bytes < limits::kPacketOverheadBytes) return Reject::kTooShort;
  std::memcpy(&parsed.header, packet, sizeof(Header));
  const Header& header = parsed.header;
  if (header.version() != limits::kWireVersion) return Reject::kVersion;
  if (header.type_value() >= kPacketTypeCount) return Reject::kType;
  if ((header.flags & flag::kReserved) != 0) return Reject::kReserved;
  if (packet_bytes - limits::kPacketOverheadBytes != header.payload_bytes) return Reject::kLength;
  parsed.payload = packet + limits::kHeaderBytes;
  parsed.tag = parsed.payload + header.payload_bytes;
  PBOX_DCHECK(parsed.tag + limits::kTagBytes == packet + packet_bytes);
  return Reject::kNone;
}

}  // namespace pbox::wire
