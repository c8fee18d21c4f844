// What of a shard goes on to another box before it is given out here. Between the pipeline, which
// has one per shard of such a job, and the relay, a thread that speaks to the other box. Values
// stay where they are: they are the relay's while the round stays open, and the pipeline does not
// touch them.
//
// Two-level aggregation (PHub's cross-rack reduction; Luo et al., SoCC 2018, section 3.4): sums go,
// and results come into their place. Replicas: what a chunk is after its round goes to the backup
// box, and is given back once it is there.
#pragma once

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/spsc_ring.h"

namespace pbox::pipeline {

class Uplink {
 public:
  struct Sum {
    uint32_t chunk = 0;  // job-local id
    // Of all its elements, or its BackupBlock; the relay's until it gives them back.
    float* values = nullptr;
  };

  // Each chunk is at most once in either ring, so that none is ever full.
  explicit Uplink(size_t chunks) : sums_(std::bit_ceil(chunks)), results_(std::bit_ceil(chunks)) {}

  // The pipeline: to the relay, which is woken if it sleeps.
  void send(const Sum& sum) {
    PBOX_CHECK(sums_.push(sum));
    if (relay_sleeps_.exchange(false)) wake_relay();
  }
  // The pipeline: a chunk that is given back; false if there is none.
  bool take(uint32_t& chunk) { return results_.pop(chunk); }
  // The pipeline, once it has taken something: how many workers' gradients are in each result.
  uint32_t workers() const { return workers_; }

  // The relay, before it gives anything back. wake_fd: an eventfd of the relay's.
  void open(uint32_t workers, int wake_fd) {
    workers_ = workers;
    wake_fd_.store(wake_fd, std::memory_order_release);
  }
  // The relay: the next sum; false if there is none.
  bool next(Sum& sum) { return sums_.pop(sum); }
  // The relay, about to sleep on its wake_fd: false if it has to look again first.
  bool may_sleep() {
    relay_sleeps_.exchange(true);
    return sums_.empty();
  }
  // The relay, one thread at a time; the pipeline is to be woken then.
  void give_back(uint32_t chunk) { PBOX_CHECK(results_.push(chunk)); }

 private:
  void wake_relay() const {
    const uint64_t one = 1;
    const int fd = wake_fd_.load(std::memory_order_acquire);
    // Not asleep before it has said where to wake it. A counter that is full wakes it as well.
    if (fd >= 0) [[maybe_unused]]
      const ssize_t written = write(fd, &one, sizeof(one));
  }

  SpscRing<Sum> sums_;
  SpscRing<uint32_t> results_;
  std::atomic<bool> relay_sleeps_{false};
  std::atomic<int> wake_fd_{-1};
  uint32_t workers_ = 1;
};

}  // namespace pbox::pipeline
