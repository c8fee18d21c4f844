// The controller of a part with adaptive tensors. It chooses the PSSP rule by which the ranks'
// reads wait, within bounds that the user gives, from how long the ranks wait and how far ahead
// they are. Each part decides alone, as each server does in FluentPS (CLUSTER 2019). The
// controller's rules are our own. It is pure: the same counts at the same times give the same
// decisions.
//
// Its rules are ordered from tight to loose. First staleness grows, up to its bound. Then the
// probability c that the fastest rank waits falls, down to its bound. A PSSP of staleness s and
// probability c has about the regret of an SSP of staleness s + 1/c - 1 (FluentPS), so each step
// trades freshness for time.
//
//   looser    if ranks waited for more than kMuch of the time. If the last rise of staleness has
//             not helped, because a rank that stays slow uses up any staleness, the probability
//             falls instead.
//   tighter   if ranks waited for less than kLittle of the time, in kCalmWindows windows in a row.
//             The probability rises first. Then staleness falls, as long as the ranks do not use
//             the lead that they may have.
//   release   lazy if the readers are on average less than half as far ahead as they may be. A rank
//             that is released lazily has no lead left, so it waits longer but more rarely.
//             Otherwise soft, which is faster beside a rank that stays slow.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "nic/wire/sync.h"

namespace pbox::control {

// Counts of a part since it was opened, over its chunks whose pushes are applied on arrival.
struct SyncCounts {
  uint64_t reads = 0;
  uint64_t delayed = 0;    // reads that had to wait
  uint64_t parked_ns = 0;  // time that reads have waited
  uint64_t lead_sum = 0;   // rounds that the reader was ahead of the slowest rank, over all reads
};

struct SyncDecision {
  uint64_t at_ns = 0;
  wire::SyncSpec rule;  // in force since then
  std::string why;      // "ranks waited 31% of the time, 2.9 rounds ahead: staleness 3, was 2"
};

class SyncController {
 public:
  static constexpr double kMuch = 0.05, kLittle = 0.01;  // shares of the ranks' time
  static constexpr uint32_t kCalmWindows = 4;
  static constexpr uint64_t kReadsPerWindow = 4;  // by each reader
  static constexpr uint64_t kWindowMaxNs = 2'000'000'000;
  static constexpr size_t kDecisionsKept = 8;

  // `bounds`: a spec of model kAdaptive. `readers`: ranks times chunks.
  SyncController(const wire::SyncSpec& bounds, uint64_t readers);

  // Looks at the counts. Returns true if the rule has changed. Call it often; it decides once per
  // window, which lasts until each reader has read kReadsPerWindow times, or kWindowMaxNs.
  bool observe(const SyncCounts& counts, uint64_t now_ns);

  // The rule in force, for tensors with the bounds of the controller.
  const wire::SyncSpec& rule() const { return rule_; }
  // Returns that rule within a tensor's own bounds, which are of model kAdaptive.
  wire::SyncSpec rule_within(const wire::SyncSpec& bounds) const;

  struct Window {
    double waited = 0;   // share of the readers' time
    double delayed = 0;  // share of the reads
    double lead = 0;     // rounds, mean over the reads
  };
  // The last complete window; zeros before the first.
  const Window& window() const { return window_; }
  uint64_t decisions_made() const { return decisions_made_; }
  // The newest decisions, oldest first.
  const std::deque<SyncDecision>& decisions() const { return decisions_; }

 private:
  void loosen(wire::SyncSpec& rule, std::string& what);
  void tighten(wire::SyncSpec& rule, std::string& what) const;
  void choose_release(wire::SyncSpec& rule, std::string& what) const;
  bool decide(uint64_t now_ns);

  wire::SyncSpec bounds_;
  uint64_t readers_;
  wire::SyncSpec rule_;
  std::optional<SyncCounts> begin_;  // at the beginning of the window
  uint64_t begin_ns_ = 0;
  Window window_;
  uint32_t calm_ = 0;                    // windows in a row in which ranks hardly waited
  std::optional<double> waited_before_;  // at the last rise of staleness, until it is judged
  bool staleness_helps_ = true;
  uint64_t decisions_made_ = 0;
  std::deque<SyncDecision> decisions_;
};

}  // namespace pbox::control
