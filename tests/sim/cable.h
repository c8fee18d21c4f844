// The access cable of one worker's host, which is the bottleneck between the host and all boxes. In
// each direction the cable has a rate, a delay and a queue. The queue is drop-tail: it drops a
// frame for which it has no room. Packets of jobs and TCP flows share the queue.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/options.h"

namespace pbox::sim {

inline constexpr uint64_t kFrameHeaderBytes = 66;  // Ethernet, IP, and UDP or TCP

enum class CableDirection : uint8_t { kToBox, kFromBox };
enum class CableUser : uint8_t { kJob, kTcp };

// The traffic in one direction of a cable.
struct CableUse {
  static constexpr uint64_t kSliceNs = 100 * kNanosPerMilli;

  // Payload bytes that left the queue in each slice of time since EventQueue::kBeginNs, by
  // CableUser. Headers are not included.
  std::array<std::vector<uint64_t>, 2> bytes_by_slice;
  // Fragments of pushes or results that were sent towards the cable, including those that the
  // network lost before.
  uint64_t fragments = 0;

  // Returns the payload bytes of the slices [first, last).
  uint64_t bytes(CableUser user, uint64_t first, uint64_t last) const;
};

// One direction of a cable.
class CableQueue {
 public:
  explicit CableQueue(const Cable& cable)
      : bytes_per_second_(cable.bytes_per_second),
        delay_ns_(cable.delay_ns),
        queue_bytes_(cable.queue_bytes) {}

  // Takes a frame with this payload. Returns the time at which the whole frame has reached the
  // other end, or nothing if it was dropped. `now_ns` must not decrease between calls.
  std::optional<uint64_t> pass(CableUser user, uint64_t payload_bytes, uint64_t now_ns);
  // The queue drops nothing from now on.
  void remove_bound() { queue_bytes_ = UINT64_MAX; }
  void count_fragment() { ++use_.fragments; }

  uint64_t delay_ns() const { return delay_ns_; }
  const CableUse& use() const { return use_; }

 private:
  bool has_room(uint64_t frame_bytes, uint64_t now_ns) const;

  uint64_t bytes_per_second_;
  uint64_t delay_ns_;
  uint64_t queue_bytes_;
  uint64_t free_ns_ = 0;    // when the last frame has left the queue
  uint64_t remainder_ = 0;  // fraction that free_ns_ lacks, in 1/bytes_per_second_ ns
  CableUse use_;
};

class CubicFlow;

class AccessCable {
 public:
  // `latency_ns`: the latency of the network beyond the cable, in one direction.
  AccessCable(EventQueue& queue, const Cable& cable, uint64_t latency_ns);
  ~AccessCable();

  // Starts the TCP flows that the options name.
  void start_flows();
  // Ends the flows and removes the bounds of the queues.
  void heal();
  CableQueue& queue(CableDirection direction) { return queues_[static_cast<size_t>(direction)]; }

 private:
  std::array<CableQueue, 2> queues_;  // by CableDirection
  std::vector<std::unique_ptr<CubicFlow>> flows_;
};

}  // namespace pbox::sim
