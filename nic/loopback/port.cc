#include "nic/loopback/port.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pbox::nic {

void LoopbackNetwork::advance_to(uint64_t now_ns) {
  PBOX_DCHECK(now_ns != UINT64_MAX);
  const std::lock_guard lock(mutex_);
  now_ns_ = std::max(now_ns_, now_ns);
}

uint64_t LoopbackNetwork::next_due_ns() const {
  const std::lock_guard lock(mutex_);
  uint64_t due = UINT64_MAX;
  for (const auto& [address, queue] : queues_) {
    if (!queue.empty()) due = std::min(due, queue.begin()->first);
  }
  return due;
}

FaultCounts LoopbackNetwork::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void LoopbackNetwork::send(const Endpoint& from, const TxPacket& packet) {
  const size_t payload_bytes = packet.header.payload_bytes;
  PBOX_CHECK(packet.to != nullptr && (packet.payload != nullptr || payload_bytes == 0));
  std::vector<std::byte> bytes(limits::kPacketOverheadBytes + payload_bytes);
  std::memcpy(bytes.data(), &packet.header, sizeof(packet.header));
  if (payload_bytes > 0) {
    std::memcpy(bytes.data() + limits::kHeaderBytes, packet.payload, payload_bytes);
  }
  std::memcpy(bytes.data() + limits::kHeaderBytes + payload_bytes, packet.tag.data(),
              packet.tag.size());

  const std::lock_guard lock(mutex_);
  ++counts_.sent;
  if (chance(plan_.loss)) {
    ++counts_.lost;
    return;
  }
  if (chance(plan_.duplication)) {
    ++counts_.duplicated;
    deliver(from, *packet.to, bytes);
  }
  deliver(from, *packet.to, std::move(bytes));
}

void LoopbackNetwork::deliver(const Endpoint& from, const Endpoint& to,
                              std::vector<std::byte> bytes) {
  PBOX_DCHECK(bytes.size() >= limits::kPacketOverheadBytes);
  uint64_t due_ns = now_ns_ + plan_.delay_ns;
  PBOX_DCHECK(due_ns >= now_ns_);
  if (plan_.delay_max_ns > 0 && chance(plan_.reordering)) {
    ++counts_.reordered;
    due_ns += rng_.below(plan_.delay_max_ns + 1);
  }
  if (chance(plan_.truncation)) {
    ++counts_.truncated;
    bytes.resize(rng_.below(bytes.size()));
  }
  if (!bytes.empty() && chance(plan_.bit_flip)) {
    ++counts_.flipped;
    const uint64_t bit = rng_.below(bytes.size() * 8);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  queues_[{to.address, to.port}].emplace(due_ns, Packet{std::move(bytes), from});
}

size_t LoopbackPort::rx_burst(std::span<RxPacket> packets) {
  PBOX_DCHECK(network_ != nullptr);
  const std::lock_guard lock(network_->mutex_);
  held_.clear();
  auto& queue = network_->queues_[{local_.address, local_.port}];
  while (held_.size() < packets.size() && !queue.empty() &&
         queue.begin()->first <= network_->now_ns_) {
    held_.push_back(std::move(queue.begin()->second));
    queue.erase(queue.begin());
  }
  PBOX_DCHECK(held_.size() <= packets.size());
  for (size_t index = 0; index < held_.size(); ++index) {
    const auto& packet = held_[index];
    packets[index] = {packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), packet.from};
  }
  return held_.size();
}

size_t LoopbackPort::tx_burst(std::span<const TxPacket> packets) {
  for (const TxPacket& packet : packets) {
    if (!connected_) {
      network_->send(local_, packet);
      continue;
    }
    PBOX_DCHECK(packet.header.payload_bytes <= limits::kPacketBytesMax);
    TxPacket addressed = packet;
    addressed.to = &remote_;
    network_->send(local_, addressed);
  }
  return packets.size();
}

Capabilities LoopbackPort::capabilities() const {
  return {.kind = "loopback", .mtu = 65536, .receive_buffer_bytes = 64u << 20};
}

}  // namespace pbox::nic
