// The 40-byte header that starts every data packet, on UDP and in-band on RDMA alike. Little
// endian, every field naturally aligned, so the struct is the wire image.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/limits.h"
#include "nic/wire/dtype.h"

namespace pbox::wire {

static_assert(std::endian::native == std::endian::little, "the wire is little endian");

enum class PacketType : uint8_t {
  kPush = 0,     // worker -> box: a fragment of a gradient
  kResult = 1,   // box -> worker: a fragment of a finished chunk
  kStatus = 2,   // box -> worker: StatusPayload, in answer to a PULL
  kPull = 3,     // worker -> box: PullPayload: "what have you got, what can I have?"
  kGrant = 4,    // box -> worker: new credit, no payload
  kMoved = 5,    // box -> worker: the chunk lives elsewhere since a newer epoch
  kRecover = 6,  // box -> worker: promise a newer epoch; JOIN on the control connection does this
  kState = 7,    // worker -> box: a fragment of a result it consumed, for a round that others need
  kBarrier = 8,
  kClose = 9,
};
inline constexpr uint8_t kPacketTypeCount = 10;

namespace flag {
inline constexpr uint8_t kRetransmission = 1 << 0;
inline constexpr uint8_t kLast = 1 << 1;
inline constexpr uint8_t kEncrypted = 1 << 2;
inline constexpr uint8_t kNonfinite = 1 << 3;
inline constexpr uint8_t kPartial = 1 << 4;
inline constexpr uint8_t kCongestionEcho = 1 << 5;
inline constexpr uint8_t kReserved = 0xc0;  // must be 0 or the packet is dropped
}  // namespace flag

struct Header {
  uint8_t version_type = 0;  // version in the high nibble, PacketType in the low one
  uint8_t flags = 0;
  uint16_t payload_bytes = 0;  // must equal what the chunk's metadata says for this fragment
  uint32_t spi = 0;            // identity comes from here only
  uint64_t packet_number = 0;  // fresh per transmission and spi
  uint32_t epoch = 0;
  uint32_t chunk = 0;
  uint32_t round = 0;  // full round; compared by round_distance, never by parity
  uint16_t fragment = 0;
  uint16_t credit = 0;  // units of limits::kCreditUnitBytes
  uint32_t timestamp_us = 0;
  uint16_t dtype_scale = 0;  // dtype in the low 4 bits, scale in the high 12
  uint16_t generation = 0;

  void set_type(PacketType type) {
    version_type = static_cast<uint8_t>(limits::kWireVersion << 4 | static_cast<uint8_t>(type));
  }
  uint8_t version() const { return version_type >> 4; }
  uint8_t type_value() const { return version_type & 0x0f; }
  PacketType type() const { return static_cast<PacketType>(type_value()); }
  // With flag::kPartial: how many workers' gradients are in this fragment; 0 without.
  uint16_t contributors() const {
    return (flags & flag::kPartial) != 0 ? static_cast<uint16_t>(dtype_scale >> 4) : uint16_t{0};
  }
  // Of a RESULT in a job whose model is not BSP (sync.h). Where pushes are applied as they come:
  // the receiver's own rounds below this one are in the fragment, and all workers' rounds up to and
  // including `round`. Where rounds are dropped: one more than the receiver's newest round if the
  // fragment has that, else less.
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

// A worker states which fragments of the result it holds; the box sends the others, or a STATUS.
struct PullPayload {
  uint64_t held_mask = 0;
};
static_assert(sizeof(PullPayload) == 8);

struct StatusPayload {
  uint64_t received_mask = 0;       // the asker's own fragments that the box has, of this round
  uint32_t finished_round = 0;      // newest finished round + 1; 0: none yet
  uint16_t missing_workers = 0;     // workers whose push of this round is incomplete
  uint16_t first_missing_rank = 0;  // lowest of them; meaningful if missing_workers > 0
  // Of the box's straggler ledger, for people; 0 where it is not kept.
  uint32_t waited_ms = 0;     // since the first worker had pushed all of this round
  uint16_t last_percent = 0;  // rounds of the job's chunks here that first_missing_rank ended
  uint16_t reserved = 0;
};
static_assert(sizeof(StatusPayload) == 24);

// Serial-number arithmetic (RFC 1982): > 0 if a is newer than b. A job ends before 2^31 rounds.
constexpr int32_t round_distance(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b);
}

// An spi: the slot in the pipeline's session table, the direction, and a part that is drawn anew
// for each session so that packets of an earlier one are refused.
inline constexpr uint32_t kSpiIndexMask = limits::kSessionsPerPipelineMax - 1;
inline constexpr uint32_t kSpiToWorker = limits::kSessionsPerPipelineMax;
constexpr uint32_t spi_index(uint32_t spi) {
  return spi & kSpiIndexMask;
}

// Why a packet was dropped. kNone: it was not.
enum class Reject : uint8_t {
  kNone = 0,
  kTooShort,  // less than header and tag
  kVersion,
  kType,      // unknown, or not for this direction
  kReserved,  // reserved flag bits set
  kLength,    // length field and packet disagree
  kTag,       // integrity check failed
};

// A packet split into its parts, none of it copied but the header.
struct Parsed {
  Header header;
  const std::byte* payload = nullptr;
};

// Splits and checks what can be checked without any state: lengths, version, type, reserved bits.
// The tag is the caller's next step (tag.h). Any core; no allocation.
inline Reject parse(const std::byte* packet, uint32_t packet_bytes, Parsed& parsed) {
  if (packet_bytes < limits::kPacketOverheadBytes) return Reject::kTooShort;
  std::memcpy(&parsed.header, packet, sizeof(Header));
  const Header& header = parsed.header;
  if (header.version() != limits::kWireVersion) return Reject::kVersion;
  if (header.type_value() >= kPacketTypeCount) return Reject::kType;
  if ((header.flags & flag::kReserved) != 0) return Reject::kReserved;
  if (packet_bytes - limits::kPacketOverheadBytes != header.payload_bytes) return Reject::kLength;
  parsed.payload = packet + limits::kHeaderBytes;
  return Reject::kNone;
}

}  // namespace pbox::wire
