// Packets that a worker writes into a box's memory (RDMA WRITE WITH IMMEDIATE), as PHub's do (Luo
// et al., SoCC 2018): where they land, and the 32 bits that tell the box of each. No verbs in here.
#pragma once

#include <cstdint>
#include <optional>

#include "base/limits.h"

namespace pbox::wire {

// Slots that one queue pair alone may write to, one after the other, round and round.
struct LandingRing {
  uint64_t address = 0;  // of slot 0, in the box's memory
  uint32_t key = 0;
  uint32_t slots = 0;  // in [kLandingSlotsMin, kLandingSlotsMax]; 0: there is no ring
  uint32_t slot_bytes = 0;
  bool operator==(const LandingRing&) const = default;
};

// One slot is being written while another is read.
inline constexpr uint32_t kLandingSlotsMin = 2;
inline constexpr uint32_t kLandingSlotsMax = 1u << 16;

// The sender is known by its queue pair, so that slot and length are all that is left to say. Both
// have 16 bits.
struct Immediate {
  uint16_t slot = 0;
  uint16_t bytes = 0;  // of the packet: header, payload and tag
  bool operator==(const Immediate&) const = default;
};
static_assert(limits::kPacketBytesMax <= UINT16_MAX);

constexpr uint32_t pack(const Immediate& immediate) {
  return uint32_t{immediate.slot} << 16 | immediate.bytes;
}
constexpr Immediate unpack_immediate(uint32_t bits) {
  return {static_cast<uint16_t>(bits >> 16), static_cast<uint16_t>(bits & UINT16_MAX)};
}

// Bytes of the packet in slot `next`, the only one that may be written now; nothing if the sender
// names another, or more bytes than a slot has.
constexpr std::optional<uint32_t> landed_bytes(uint32_t bits, uint32_t next, uint32_t slot_bytes) {
  const Immediate immediate = unpack_immediate(bits);
  if (immediate.slot != next || immediate.bytes > slot_bytes) return std::nullopt;
  return immediate.bytes;
}

}  // namespace pbox::wire
