// A shard's finished chunks, in the order in which they leave: strictly by descending priority,
// then by ascending sequence number (P3: Jayarajan et al., MLSys 2019). An order by priority alone
// would let chunks of equal priority starve. All shards of a pipeline draw sequence numbers from
// one counter, so that the parts of a job have one order. The queue is bounded, and reserve()
// allocates it once. The pipeline's own core calls everything else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace pbox::pipeline {

struct Chunk;

// The position of a queued result or reply in the order in which those of one job leave.
struct EgressPlace {
  int32_t priority = 0;
  uint64_t sequence = 0;

  bool is_before(const EgressPlace& other) const {
    if (priority != other.priority) return priority > other.priority;
    return sequence < other.sequence;
  }
};

// A finished round of a chunk, whose result is to leave for every worker. Step `step` in
// [0, workers) serves rank (step + rotation) % workers, so that successive chunks do not all reach
// the same worker first.
struct FanOut {
  Chunk* chunk = nullptr;
  uint32_t round = 0;
  EgressPlace place = {};
  uint32_t step = 0;      // steps that were done before a more urgent chunk went first
  uint32_t rotation = 0;  // valid if step > 0
};

// Fragments of the last result that a rank wants.
struct AskedResult {
  uint64_t mask = 0;     // one bit per fragment
  bool in_full = false;  // as result_form() takes it
};

// Fragments of a finished round that one worker lacks. They are sent again, or, with delivery
// `pull`, for the first time.
struct Answer {
  Chunk* chunk = nullptr;
  uint32_t round = 0;
  uint32_t rank = 0;
  uint64_t mask = 0;     // one bit per fragment
  bool in_full = false;  // as result_form() takes it
  EgressPlace place = {};
};

class EgressQueue {
 public:
  // Reserves room for `results` finished rounds, and for answers if delivery is `pull`. Called by
  // the control thread.
  void reserve(size_t results, bool answers = false);
  // Returns the bytes that reserve() takes. Any thread may call it.
  static constexpr size_t reserved_bytes(size_t results, bool answers) {
    return results * sizeof(FanOut) + kResendCapacity * sizeof(Answer) +
           (answers ? kAnswerCapacity * sizeof(Answer) : 0);
  }
  // Draws sequence numbers from `*sequence` from now on; from the queue's own counter if null.
  void number_from(uint64_t* sequence) { shared_sequence_ = sequence; }

  // Never full: reserve() has room for every result that chunks keep.
  void push(Chunk* chunk, uint32_t round, int32_t priority) {
    give_back({chunk, round, {priority, take_sequence()}});
  }
  // Puts back, in its former place, a round that has left for some ranks only.
  void give_back(const FanOut& rest);
  bool pop(FanOut& next);
  // Returns the next to leave; null if there is none.
  const FanOut* top() const { return heap_.empty() ? nullptr : &heap_.front(); }
  size_t size() const { return heap_.size(); }

  // The same functions for resends and for answers. push_resend() and push_answer() return false if
  // the queue is full; the worker then asks again after a while. A resend is merged into the one
  // pushed before it if both have the same worker, chunk, round and form. `asked.place` is ignored.
  bool push_resend(const Answer& asked, int32_t priority);
  void give_back_resend(const Answer& rest) { insert(resends_, rest); }
  bool pop_resend(Answer& next) { return take_top(resends_, next); }
  const Answer* top_resend() const { return resends_.empty() ? nullptr : &resends_.front(); }
  // The same for the resend that has waited longest. Takes time linear in the number of resends.
  const Answer* oldest_resend() const;
  bool pop_oldest_resend(Answer& oldest);
  bool push_answer(const Answer& asked, int32_t priority);
  void give_back_answer(const Answer& rest) { insert(answers_, rest); }
  bool pop_answer(Answer& next) { return take_top(answers_, next); }
  const Answer* top_answer() const { return answers_.empty() ? nullptr : &answers_.front(); }

  // The position of the fan-out in progress. A group of chunks leaves together to one worker, then
  // to the next. A group has two chunks because two chunks of a job fill what a port can hand to
  // the kernel or NIC as one segmented packet.
  struct Cursor {
    std::array<FanOut, 2> group;
    uint32_t count = 0;  // chunks in the group; 0: no fan-out is in progress
    uint32_t step = 0;
    uint32_t rotation = 0;
    uint32_t index = 0;  // in [0, count)
    uint32_t fragment = 0;

    // Returns whether the current worker has been sent a part of the group only.
    bool is_within_worker() const { return index > 0 || fragment > 0; }
  } cursor;

 private:
  uint64_t take_sequence() {
    return (shared_sequence_ != nullptr ? *shared_sequence_ : sequence_)++;
  }
  void drop_superseded();
  static void insert(std::vector<Answer>& heap, const Answer& answer);
  static bool take_top(std::vector<Answer>& heap, Answer& next);

  static constexpr size_t kResendCapacity = 1024;
  static constexpr size_t kAnswerCapacity = 4096;

  uint64_t* shared_sequence_ = nullptr;
  uint64_t sequence_ = 0;
  std::vector<FanOut> heap_;  // in this and the other heaps, the next to leave is in front
  std::vector<Answer> resends_;
  Answer newest_resend_;  // as it was pushed; its mask is not kept up to date
  std::vector<Answer> answers_;
};

}  // namespace pbox::pipeline
