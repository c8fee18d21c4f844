// A job's finished chunks on one pipeline, in the order in which they leave: strictly by descending
// priority, then by ascending sequence number (P3: Jayarajan et al., MLSys 2019). An order by
// priority alone would let chunks of equal priority starve. Bounded, and allocated once, by
// reserve(). The pipeline's own core calls everything else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace pbox::pipeline {

struct Chunk;

// A finished round of a chunk that is to leave for every worker.
struct FanOut {
  Chunk* chunk = nullptr;
  uint32_t round = 0;
  int32_t priority = 0;
  uint64_t sequence = 0;
};

// Fragments of a finished round that one worker lacks and is sent again.
struct Resend {
  Chunk* chunk = nullptr;
  uint32_t round = 0;
  uint32_t rank = 0;
  uint64_t mask = 0;  // one bit per fragment
};

// Delivery `pull`: fragments of a finished round that one worker asks for the first time.
struct Answer : Resend {
  int32_t priority = 0;
  uint64_t sequence = 0;
};

class EgressQueue {
 public:
  // Reserves room for `results` finished rounds; and for answers, where delivery is `pull`. Control
  // thread.
  void reserve(size_t results, bool answers = false);
  // Returns the bytes that reserve() takes. Any thread.
  static constexpr size_t reserved_bytes(size_t results, bool answers) {
    return results * sizeof(FanOut) + kResendCapacity * sizeof(Resend) +
           (answers ? kAnswerCapacity * sizeof(Answer) : 0);
  }

  // Never full: reserve() has room for every result that chunks keep.
  void push(Chunk* chunk, uint32_t round, int32_t priority);
  bool pop(FanOut& next);
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }

  // Returns false when the queue is full. The worker's timer asks again.
  bool push_resend(const Resend& resend);
  bool pop_resend(Resend& next);
  bool has_resend() const {
    PBOX_DCHECK(resend_head_ <= resend_tail_);
    return resend_head_ != resend_tail_;
  }

  // Answers leave in the same order as finished rounds. Returns false when the queue is full.
  bool push_answer(const Resend& asked, int32_t priority);
  // Puts the rest of an answer back, in its former place.
  void return_answer(const Answer& answer);
  bool pop_answer(Answer& next);
  bool has_answer() const { return !answers_.empty(); }

  // The position of the fan-out in progress. A group of chunks leaves together to one worker, then
  // to the next. A group has two chunks because two chunks of a job fill what a port can hand to
  // the kernel or NIC as one segmented packet. Step `step` of [0, workers) serves rank
  // (step + rotation) % workers, so that successive chunks do not all reach the same worker first.
  struct Cursor {
    std::array<FanOut, 2> group;
    uint32_t count = 0;  // chunks in the group; 0: no fan-out is in progress
    uint32_t step = 0;
    uint32_t index = 0;  // in [0, count)
    uint32_t fragment = 0;
  } cursor;

 private:
  void drop_superseded();

  static constexpr size_t kResendCapacity = 1024;
  static constexpr size_t kAnswerCapacity = 4096;

  std::vector<FanOut> heap_;  // the next to leave in front
  uint64_t next_sequence_ = 0;
  std::vector<Resend> resends_;  // a ring of kResendCapacity
  size_t resend_head_ = 0;
  size_t resend_tail_ = 0;
  std::vector<Answer> answers_;  // the next to leave in front
};

}  // namespace pbox::pipeline
