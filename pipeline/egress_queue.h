// A job's finished chunks on one pipeline, in the order they leave: (priority desc, sequence asc),
// strictly (P3; facts: an order by priority alone lets equal priorities starve). Bounded, allocated
// once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace pbox::pipeline {

struct Chunk;

// A finished round on its way to every worker.
struct FanOut {
  Chunk* chunk = nullptr;
  uint32_t round = 0;
  int32_t priority = 0;
  uint64_t sequence = 0;
};

// Fragments of a finished round that one worker asked for again.
struct Resend {
  Chunk* chunk = nullptr;
  uint32_t round = 0;
  uint32_t rank = 0;
  uint64_t mask = 0;
};

// Fragments of a finished round that one worker asked for, having been told of it.
struct Answer : Resend {
  int32_t priority = 0;
  uint64_t sequence = 0;
};

class EgressQueue {
 public:
  void reserve(size_t results, bool answers = false);

  // Never full: at most the results that a chunk keeps.
  void push(Chunk* chunk, uint32_t round, int32_t priority);
  bool pop(FanOut& next);
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }

  // False when the bounded resend queue is full; the asker's timer will ask again.
  bool push_resend(const Resend& resend);
  bool pop_resend(Resend& next);
  bool has_resend() const { return resend_head_ != resend_tail_; }

  // In the same order. False when the bounded queue is full.
  bool push_answer(const Resend& asked, int32_t priority);
  // What is left of an answer keeps its place.
  void return_answer(const Answer& answer);
  bool pop_answer(Answer& next);
  bool has_answer() const { return !answers_.empty(); }

  // Where the fan-out at hand stands: a group of chunks leaves together to one worker, then to the
  // next. Two, because two of a job's chunks fill what a port can hand to the kernel or NIC as one
  // segmented packet. Worker `step` of [0, workers) is rank (step + rotation) % workers, so that
  // the copies of successive chunks do not all reach the same worker first.
  struct Cursor {
    std::array<FanOut, 2> group;
    uint32_t count = 0;  // chunks in the group; 0: none at hand
    uint32_t step = 0;
    uint32_t index = 0;  // in [0, count)
    uint32_t fragment = 0;
  } cursor;

 private:
  void drop_void();

  static constexpr size_t kResendCapacity = 1024;
  static constexpr size_t kAnswerCapacity = 4096;

  std::vector<FanOut> heap_;
  uint64_t next_sequence_ = 0;
  std::vector<Resend> resends_;
  size_t resend_head_ = 0;
  size_t resend_tail_ = 0;
  std::vector<Answer> answers_;  // a heap
};

}  // namespace pbox::pipeline
