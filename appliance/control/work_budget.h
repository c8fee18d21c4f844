// How much of the control thread one peer may take: a burst at once, and a share of the time in the
// long run (a leaky bucket). A peer that has used it up is not read from for a while, so that no
// peer keeps the others waiting. None of these classes has a clock. Control thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::control {

class WorkBudget {
 public:
  static constexpr uint64_t kBurstNs = kNanosPerMilli;
  static constexpr uint64_t kShare = 4;  // one part in kShare of the time
  // Opening a large job takes seconds, which are charged to the rank that joins last. The box must
  // not stop hearing that rank for long.
  static constexpr uint64_t kPauseMaxNs = 250 * kNanosPerMilli;

  // Charges `spent_ns`, the time that the peer's messages took up to now.
  void charge(uint64_t now_ns, uint64_t spent_ns) {
    level_ns_ = std::min(debt_ns(now_ns) + spent_ns, kBurstNs + kPauseMaxNs / kShare);
    charged_ns_ = now_ns;
    PBOX_CHECK(pause_ns() <= kPauseMaxNs);
  }

  // Returns the part of the charged time that the peer's share has not paid off yet.
  uint64_t debt_ns(uint64_t now_ns) const {
    const uint64_t drained_ns = (now_ns - std::min(now_ns, charged_ns_)) / kShare;
    return level_ns_ - std::min(level_ns_, drained_ns);
  }
  // Returns the time from the last charge() until the box may read from the peer again; 0 for at
  // once.
  uint64_t pause_ns() const { return level_ns_ <= kBurstNs ? 0 : (level_ns_ - kBurstNs) * kShare; }
  uint64_t heard_at_ns() const { return charged_ns_ + pause_ns(); }

 private:
  uint64_t level_ns_ = 0;
  uint64_t charged_ns_ = 0;
};

// The debts of connections that have ended, by source (nic::source_of). Connections that a source
// opens while it is in debt share one budget. Otherwise a peer that connects anew for each message
// would have a burst for each.
class SourceDebts {
 public:
  // Records that a connection of the source has ended with this debt.
  void add(const std::string& source, uint64_t debt_ns, uint64_t now_ns);
  // Returns the budget of a source that is in debt, else null. Valid until the next call.
  WorkBudget* find(const std::string& source, uint64_t now_ns);

 private:
  std::map<std::string, WorkBudget> by_source_;
};

// The budget of one connection.
class ConnectionBudget {
 public:
  // `debts` outlives it.
  ConnectionBudget(SourceDebts& debts, std::string source, uint64_t now_ns)
      : debts_(debts),
        source_(std::move(source)),
        shares_(debts.find(source_, now_ns) != nullptr) {}

  // The connection's messages took `spent_ns` up to now. The last one may have ended it.
  void charge(uint64_t now_ns, uint64_t spent_ns);
  // Returns when the next message may be handled. If that is in the past, it may be at once.
  uint64_t heard_at_ns(uint64_t now_ns);
  // The connection has ended.
  void end(uint64_t now_ns);

 private:
  WorkBudget* shared(uint64_t now_ns);

  SourceDebts& debts_;
  std::string source_;
  bool shares_;  // the source was in debt when the connection began, and still is
  bool has_ended_ = false;
  WorkBudget own_;
};

}  // namespace pbox::control
