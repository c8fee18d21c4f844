// The rings between a pipeline and an uplink lane, for a shard whose sums or states go to another
// box before results are published here. A lane is a thread that talks to the other box. The shard
// has one uplink for each lane. Values are not copied: while the lane has the chunk, its round
// stays open and the pipeline does not touch the values.
//
// Two-level aggregation (PHub's cross-rack reduction: Luo et al., SoCC 2018, section 3.4) sends
// sums, and the lane writes the results to separate memory. Replication sends a chunk's state after
// its round, and the lane gives the chunk back once the backup box has the state.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/event.h"
#include "base/limits.h"
#include "base/spsc_ring.h"

namespace pbox::pipeline {

class Uplink {
 public:
  static constexpr uint32_t kLanesMax = limits::kPipelinesMax;  // uplinks of one shard

  struct Sum {
    uint32_t chunk = 0;  // job-local id
    // `values`: the sums of the chunk's elements, or its state as a block (StateLayout::block).
    // `result`: where the result goes; it may be the same place. Both belong to the lane until it
    // gives the chunk back.
    float* values = nullptr;
    float* result = nullptr;
  };

  // Each chunk is in a ring at most once, so no ring is ever full.
  explicit Uplink(size_t chunks) : sums_(std::bit_ceil(chunks)), results_(std::bit_ceil(chunks)) {}
  // Returns the bytes of the rings for this number of chunks. Any thread may call it.
  static size_t ring_bytes(size_t chunks) {
    return std::bit_ceil(chunks) * (sizeof(Sum) + sizeof(uint32_t));
  }

  // Returns an upper bound on the bytes of the rings of kLanesMax uplinks that share these chunks.
  static size_t rings_bytes(size_t chunks) {
    return (kLanesMax + 2 * chunks) * (sizeof(Sum) + sizeof(uint32_t));
  }

  // Pipeline: sends a chunk to the relay, which is the lane's thread, and wakes it if it sleeps.
  void send(const Sum& sum) {
    PBOX_CHECK(sums_.push(sum));
    if (relay_sleeps_.exchange(false)) wake_relay();
  }
  // Pipeline: takes the next chunk that the relay has given back. Returns false if there is none.
  bool take(uint32_t& chunk) { return results_.pop(chunk); }

  // The relay calls it before it gives any chunk back. `wake_fd` is an eventfd that the relay owns.
  void open(int wake_fd) { wake_fd_.store(wake_fd, std::memory_order_release); }
  // Relay: takes the next sum or state. Returns false if there is none.
  bool next(Sum& sum) { return sums_.pop(sum); }
  // Relay: called before it sleeps on its wake_fd. Returns false if it must first look for work.
  bool may_sleep() {
    relay_sleeps_.exchange(true);
    return sums_.empty();
  }
  // Relay: gives a chunk back. One thread at a time; the caller must wake the pipeline afterwards.
  void give_back(uint32_t chunk) { PBOX_CHECK(results_.push(chunk)); }

 private:
  void wake_relay() const {
    // The relay does not sleep before open() has set the fd.
    set_event(wake_fd_.load(std::memory_order_acquire));
  }

  SpscRing<Sum> sums_;
  SpscRing<uint32_t> results_;
  std::atomic<bool> relay_sleeps_{false};
  std::atomic<int> wake_fd_{-1};
};

}  // namespace pbox::pipeline
