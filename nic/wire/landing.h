// Landing slots: memory of a box that a worker writes its packets to by RDMA WRITE WITH IMMEDIATE,
// as in PHub (Luo et al., SoCC 2018). This file defines the slots and the 32-bit immediate that
// announces each packet. It does not call the RDMA library.
#pragma once

#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::wire {

// A ring of slots that only one queue pair may write to. The sender fills them in order and wraps.
struct LandingRing {
  uint64_t address = 0;     // address of slot 0, in the box's address space
  uint32_t key = 0;         // the rkey for writing
  uint32_t slots = 0;       // in [kLandingSlotsMin, kLandingSlotsMax]; 0: there is no ring
  uint32_t slot_bytes = 0;  // at least limits::kPacketBytesMax
  bool operator==(const LandingRing&) const = default;
};

// At least two: one slot is written while another is read.
inline constexpr uint32_t kLandingSlotsMin = 2;
inline constexpr uint32_t kLandingSlotsMax = 1u << 16;

// The queue pair identifies the sender, so the immediate needs only the slot and the length, 16
// bits each.
struct Immediate {
  uint16_t slot = 0;
  uint16_t bytes = 0;  // length of the packet: header, payload and tag
  bool operator==(const Immediate&) const = default;
};
static_assert(limits::kPacketBytesMax <= UINT16_MAX);

constexpr uint32_t pack(const Immediate& immediate) {
  return uint32_t{immediate.slot} << 16 | immediate.bytes;
}
constexpr Immediate unpack_immediate(uint32_t bits) {
  return {static_cast<uint16_t>(bits >> 16), static_cast<uint16_t>(bits & UINT16_MAX)};
}

// Returns the length of the packet in slot `next`, the only slot that the sender may fill now.
// Returns nullopt if the immediate names another slot, or more bytes than a slot has. `bits` comes
// from the sender and is not trusted; `next` and `slot_bytes` are the box's own.
constexpr std::optional<uint32_t> landed_bytes(uint32_t bits, uint32_t next, uint32_t slot_bytes) {
  PBOX_DCHECK(next < kLandingSlotsMax && slot_bytes <= UINT16_MAX);
  const Immediate immediate = unpack_immediate(bits);
  if (immediate.slot != next || immediate.bytes > slot_bytes) return std::nullopt;
  return immediate.bytes;
}

}  // namespace pbox::wire
