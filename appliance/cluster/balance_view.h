// What the box that leads shows of rebalancing: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "appliance/placement/rebalancer.h"

namespace pbox::cluster {

struct BalanceDecision {
  uint64_t unix_s = 0;
  placement::DecisionKind kind = placement::DecisionKind::kHold;
  std::string reason = {};
  bool repeats = false;  // a hold that takes the place of the one before
};

// What the leader shows of a job.
struct BalanceView {
  struct Box {
    std::string name = {};
    std::string state = {};  // "active", "standby", "draining"
    size_t parts = 0;
    double busy_seconds = 0;      // of an iteration, as said last
    double bytes_per_second = 0;  // as measured, or estimated
  };
  std::string job = {};
  std::string state = {};        // "observing", "migrating", "judging", "waiting"
  std::string waits_for = {};    // while it waits: what for
  double iteration_seconds = 0;  // as said last
  uint64_t observations = 0;
  uint64_t parts_moved = 0;
  std::optional<double> last_gain = {};  // of the iteration time, [.., 1); below 0: a loss
  std::vector<Box> boxes = {};
  std::deque<BalanceDecision> decisions = {};  // oldest first, at most placement::kDecisionsKept
};

// Of all jobs, since the daemon started. Empty where nothing is rebalanced, or another box leads.
struct BalancingView {
  bool enabled = false;
  bool leads = false;
  std::array<uint64_t, placement::kDecisionKindCount> decisions{};  // by DecisionKind
  uint64_t parts_moved = 0;
  std::vector<BalanceView> jobs = {};
};

}  // namespace pbox::cluster
