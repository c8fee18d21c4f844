// A count in pinned host memory that a stream waits for, so that work of the host can precede
// copies that have been queued already. Tickets are passed in the order in which they were drawn,
// because the stream runs what is queued in that order.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "worker/cuda/runtime.h"

namespace pbox::worker::cuda {

class Gate {
 public:
  // `word` is pinned memory of four bytes that outlives the gate, and has the value 0.
  explicit Gate(uint32_t* word) : word_(word) {}

  // Draws `count` tickets, and returns the first. Any thread may call it.
  uint64_t draw(uint64_t count);
  // Opens a ticket, whose work is done. Calls no CUDA function, so that host functions may call it.
  void open(uint64_t ticket);
  // Returns the word's value once the ticket and those before it are open.
  static uint32_t value_of(uint64_t ticket) { return static_cast<uint32_t>(ticket + 1); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(word_); }

 private:
  std::mutex mutex_;
  uint32_t* const word_;
  uint64_t passed_ = 0;       // all tickets below this one are open
  std::deque<bool> is_open_;  // tickets from passed_ on
};

}  // namespace pbox::worker::cuda
