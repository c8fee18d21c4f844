// Holds back the optimizer steps of a shard until there is a verdict on the whole round, for a job
// that clips gradients or skips rounds that are not finite. The norm that clipping needs is known
// only once the sums of all chunks are complete, on all shards and parts of the job.
//
//   1. A chunk whose sum is complete is held: its squares are added up, and its round stays open.
//   2. Once every chunk of the shard is held, the gate reports the round and the sum of squares.
//   3. The control thread gives the verdict (CommandKind::kGiveVerdict). The pipeline then steps
//      the chunks, a bounded number in each turn of its loop.
//   4. A chunk whose sum is complete only later, for example after a recovery, is stepped at once.
//
// The pipeline's core calls everything here, unless a declaration says otherwise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/event.h"

namespace pbox::pipeline {

// The decision on one round of a job.
struct StepVerdict {
  uint32_t round = 0;    // modulo 2^32
  float factor = 1;      // multiplies the gradient: undoes the loss scale and clips
  bool is_skip = false;  // weights, optimizer state and step count stay as they are
};

// The sum of the squares of a shard's gradient in one round. It is infinite or NaN only if some
// element is, or if the guard rejects the round: squares of f32 do not overflow f64.
struct StepReport {
  uint32_t round = 0;
  double squares = 0;
};

class StepGate {
 public:
  // `report_fd`: an eventfd of the control thread that is written to with each report; -1: none.
  StepGate(size_t chunks, int report_fd) : held_(chunks), report_fd_(report_fd) {}
  // Returns the bytes of the tables for this number of chunks. Any thread may call it.
  static constexpr size_t table_bytes(size_t chunks) { return chunks * sizeof(Held); }

  // Holds a chunk, whose sum is complete. `is_averaged`: it is already divided by its contributors.
  void hold(uint32_t index, double squares, bool is_averaged) {
    PBOX_DCHECK(index < held_.size() && held_count_ < held_.size());
    held_[index] = {squares, is_averaged};
    ++held_count_;
  }
  void release() {
    PBOX_DCHECK(held_count_ > 0);
    --held_count_;
  }
  bool holds_all() const { return held_count_ == held_.size(); }
  double squares(uint32_t index) const { return held_[index].squares; }
  bool is_averaged(uint32_t index) const { return held_[index].is_averaged; }

  void give(const StepVerdict& verdict) {
    verdict_ = verdict;
    next_ = 0;
  }
  bool has_verdict(uint32_t round) const { return verdict_ && verdict_->round == round; }
  const StepVerdict& verdict() const {
    PBOX_DCHECK(verdict_.has_value());
    return *verdict_;
  }
  // The index of the chunk to look at next for a round that waits for the newest verdict. It is at
  // least the number of chunks if no chunk is left to look at.
  size_t& next() { return next_; }

  void report(const StepReport& report) {
    squares_[report.round & 1].store(report.squares, std::memory_order_relaxed);
    reported_.store(uint64_t{report.round} + 1, std::memory_order_release);
    set_event(report_fd_);
  }
  // Returns the newest report; nullopt before the first. The report of the next round follows only
  // after a verdict, so it does not replace one that is being read. The control thread calls it.
  std::optional<StepReport> reported() const {
    const uint64_t reported = reported_.load(std::memory_order_acquire);
    if (reported == 0) return std::nullopt;
    const auto round = static_cast<uint32_t>(reported - 1);
    return StepReport{round, squares_[round & 1].load(std::memory_order_relaxed)};
  }

 private:
  struct Held {
    double squares = 0;
    bool is_averaged = false;
  };

  std::vector<Held> held_;  // by chunk index; valid for the chunks that are held
  size_t held_count_ = 0;
  std::optional<StepVerdict> verdict_;
  size_t next_ = SIZE_MAX;
  int report_fd_;
  std::array<std::atomic<double>, 2> squares_{};  // by round & 1
  std::atomic<uint64_t> reported_{0};             // round + 1; 0: no report
};

}  // namespace pbox::pipeline
