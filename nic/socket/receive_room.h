// Computes how much a socket's receive buffer holds. Pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::nic {

// Returns the bytes of fragments of this size that may wait unread in a receive buffer of
// `buffer_bytes`, as SO_RCVBUF gives it. The kernel counts the memory that a packet takes
// (sk_buff::truesize), not its length: 8192 bytes of payload may take 16 KiB. The result is for
// packets that come one by one; coalesced ones take less.
constexpr uint32_t receivable_bytes(uint32_t buffer_bytes, uint32_t fragment_bytes) {
  constexpr uint32_t kDescriptorBytes = 256;     // sk_buff
  constexpr uint32_t kLinkAndIpBytes = 64 + 64;  // headers, and room before them
  constexpr uint32_t kSharedInfoBytes = 320;     // skb_shared_info, behind the packet
  constexpr uint32_t kSmallestBytes = 2048;      // a NIC takes this for the smallest packet
  constexpr uint32_t kLinearBytesMax = 16 * 1024;
  constexpr uint32_t kPageBytes = 4096;
  const uint32_t packet_bytes =
      fragment_bytes + limits::kPacketOverheadBytes + kLinkAndIpBytes + kSharedInfoBytes;
  const uint32_t taken_bytes = packet_bytes <= kLinearBytesMax
                                   ? std::max(std::bit_ceil(packet_bytes), kSmallestBytes)
                                   : packet_bytes + kPageBytes;
  PBOX_DCHECK(taken_bytes >= packet_bytes);
  return buffer_bytes / (taken_bytes + kDescriptorBytes) * fragment_bytes;
}

}  // namespace pbox::nic
