// Packets that wait for room in the full send queue of their peer, so that packets to other peers
// can leave before them. A bounded queue, allocated once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "nic/payload_memory.h"
#include "nic/port.h"

namespace pbox::nic {

inline constexpr uint32_t kInlineBytes = 128;  // largest inline packet: PULL, STATUS, GRANT

// Belongs to the polling thread.
class HeldPackets {
 public:
  static constexpr uint32_t kPerPeerMax = 64;

  // A packet with its own copy of the header, the tag, and the payload if that is small. Any other
  // payload stays where it is, in registered memory, whose region counts it as in flight.
  struct Packet {
    uint32_t peer = 0;
    PayloadMemory::Region* region = nullptr;  // null: the payload is small
    wire::Header header;
    wire::Tag tag;
    const std::byte* payload = nullptr;
    std::array<std::byte, kInlineBytes> small;

    TxPacket to_send() const {
      PBOX_DCHECK(region != nullptr || header.payload_bytes <= small.size());
      TxPacket packet;
      packet.header = header;
      packet.payload = region != nullptr ? payload : small.data();
      packet.tag = tag;
      return packet;
    }
  };

  // Peers are numbered from 0. If `packets_max` is 0, nothing can be held.
  HeldPackets(uint32_t packets_max, uint32_t peers)
      : packets_max_(packets_max), counts_(peers, 0), passed_by_(peers, 0) {
    packets_.reserve(packets_max);
  }

  bool is_enabled() const { return packets_max_ > 0; }
  bool empty() const { return packets_.empty(); }
  uint32_t count(uint32_t peer) const {
    PBOX_DCHECK(peer < counts_.size());
    return counts_[peer];
  }

  // Adds a packet with a small payload (`region` is nullptr) or one that lies in the region.
  // Returns false if this peer has kPerPeerMax packets already, or all peers together packets_max.
  bool add(uint32_t peer, const TxPacket& packet, PayloadMemory::Region* region) {
    PBOX_DCHECK(peer < counts_.size());
    if (counts_[peer] >= kPerPeerMax || packets_.size() >= packets_max_) return false;
    Packet& held = packets_.emplace_back();
    held.peer = peer;
    held.region = region;
    held.header = packet.header;
    held.tag = packet.tag;
    held.payload = packet.payload;
    if (region != nullptr) {
      region->in_flight.fetch_add(1, std::memory_order_relaxed);
    } else if (packet.header.payload_bytes > 0) {
      PBOX_DCHECK(packet.header.payload_bytes <= held.small.size());
      std::memcpy(held.small.data(), packet.payload, packet.header.payload_bytes);
    }
    ++counts_[peer];
    return true;
  }

  // Calls `leave(packet)` for each packet, the oldest first, and removes those for which it returns
  // true. Once a packet of a peer stays, the peer's later packets stay too, without a call.
  template <typename F>
  void release(F&& leave) {
    PBOX_DCHECK(packets_.size() <= packets_max_);
    std::fill(passed_by_.begin(), passed_by_.end(), uint8_t{0});
    size_t kept = 0;
    for (size_t index = 0; index < packets_.size(); ++index) {
      Packet& packet = packets_[index];
      PBOX_DCHECK(packet.peer < passed_by_.size() && kept <= index);
      if (passed_by_[packet.peer] == 0 && leave(packet)) {
        PBOX_DCHECK(counts_[packet.peer] > 0);
        --counts_[packet.peer];
        if (packet.region == nullptr) continue;
        packet.region->in_flight.fetch_sub(1, std::memory_order_release);
        continue;
      }
      passed_by_[packet.peer] = 1;
      if (kept != index) packets_[kept] = packet;
      ++kept;
    }
    packets_.resize(kept);
  }

  // Forgets the packets of a peer. Returns how many there were.
  uint32_t drop(uint32_t peer) {
    PBOX_DCHECK(peer < counts_.size());
    const uint32_t count = counts_[peer];
    if (count > 0) release([peer](const Packet& packet) { return packet.peer == peer; });
    PBOX_DCHECK(counts_[peer] == 0);
    return count;
  }

 private:
  uint32_t packets_max_;
  std::vector<Packet> packets_;     // oldest first
  std::vector<uint32_t> counts_;    // packets by peer
  std::vector<uint8_t> passed_by_;  // by peer, during release(): 1 once a packet has stayed
};

}  // namespace pbox::nic
