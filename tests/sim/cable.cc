#include "tests/sim/cable.h"

#include <algorithm>

#include "tests/sim/cubic_flow.h"

namespace pbox::sim {

uint64_t CableUse::bytes(CableUser user, uint64_t first, uint64_t last) const {
  const std::vector<uint64_t>& slices = bytes_by_slice[static_cast<size_t>(user)];
  uint64_t sum = 0;
  for (uint64_t slice = first; slice < std::min<uint64_t>(last, slices.size()); ++slice) {
    sum += slices[slice];
  }
  return sum;
}

// Returns whether the queue has room for the frame. The rest of the frame that is being sent takes
// room, too.
bool CableQueue::has_room(uint64_t frame_bytes, uint64_t now_ns) const {
  if (queue_bytes_ == UINT64_MAX) return true;
  const uint64_t waiting_bytes = (free_ns_ - now_ns) * bytes_per_second_ / kNanosPerSecond;
  return waiting_bytes + frame_bytes <= queue_bytes_;
}

std::optional<uint64_t> CableQueue::pass(CableUser user, uint64_t payload_bytes, uint64_t now_ns) {
  const uint64_t frame_bytes = payload_bytes + kFrameHeaderBytes;
  if (free_ns_ <= now_ns) {
    free_ns_ = now_ns;
    remainder_ = 0;
  }
  if (!has_room(frame_bytes, now_ns)) return std::nullopt;
  const uint64_t needs = frame_bytes * kNanosPerSecond + remainder_;
  free_ns_ += needs / bytes_per_second_;
  remainder_ = needs % bytes_per_second_;
  const uint64_t slice = (free_ns_ - EventQueue::kBeginNs) / CableUse::kSliceNs;
  std::vector<uint64_t>& slices = use_.bytes_by_slice[static_cast<size_t>(user)];
  if (slices.size() <= slice) slices.resize(slice + 1);
  slices[slice] += payload_bytes;
  return free_ns_ + delay_ns_;
}

AccessCable::AccessCable(EventQueue& queue, const Cable& cable, uint64_t latency_ns)
    : queues_{CableQueue(cable), CableQueue(cable)} {
  const auto add_flow = [&](CableDirection direction) {
    flows_.push_back(std::make_unique<CubicFlow>(queue, this->queue(direction), latency_ns));
  };
  if (cable.tcp_to_box) add_flow(CableDirection::kToBox);
  if (cable.tcp_from_box) add_flow(CableDirection::kFromBox);
}

AccessCable::~AccessCable() = default;

void AccessCable::start_flows() {
  for (auto& flow : flows_) flow->start();
}

void AccessCable::heal() {
  for (auto& flow : flows_) flow->stop();
  for (CableQueue& queue : queues_) queue.remove_bound();
}

}  // namespace pbox::sim
