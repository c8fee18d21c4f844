// The rebalancing state that the leader shows to operators. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "appliance/placement/rebalancer.h"
#include "appliance/placement/scaling.h"

namespace pbox::cluster {

struct BalanceDecision {
  uint64_t unix_s = 0;
  placement::DecisionKind kind = placement::DecisionKind::kHold;
  std::string reason = {};
  bool repeats = false;  // a hold that replaces the hold before it
};

// The rebalancing state of one job.
struct BalanceView {
  struct Box {
    std::string name = {};
    std::string state = {};  // "active", "standby", "draining"
    size_t parts = 0;
    double busy_seconds = 0;      // per iteration, as last reported
    double bytes_per_second = 0;  // measured, or estimated if never measured
  };
  std::string job = {};
  std::string state = {};        // "observing", "migrating", "judging" or "waiting"
  std::string waits_for = {};    // reason for `state` "waiting"; else empty
  double iteration_seconds = 0;  // as last reported
  uint64_t observations = 0;
  uint64_t parts_moved = 0;
  // Share of the iteration time saved, below 1; negative: a loss.
  std::optional<double> last_gain = {};
  std::vector<Box> boxes = {};
  std::deque<BalanceDecision> decisions = {};  // oldest first; at most placement::kDecisionsKept
};

struct ScaledDecision {
  uint64_t unix_s = 0;
  placement::ScaleDecision decision = {};
};

// How many boxes the cluster uses, and why. Only the leader decides.
struct ScalingView {
  bool enabled = false;
  // Share of the capacity in use, of memory or links, of the boxes that take parts; absent: another
  // box leads.
  std::optional<double> pressure = {};
  std::array<uint64_t, placement::kScaleKinds> counts{};  // by kind, since the daemon started
  uint64_t hook_failures = 0;
  std::deque<ScaledDecision> decisions = {};  // oldest first; at most placement::kDecisionsKept
};

// The rebalancing state of all jobs. The counts are since the daemon started. `jobs` is empty if
// rebalancing is off or another box leads.
struct BalancingView {
  bool enabled = false;
  bool leads = false;
  std::array<uint64_t, placement::kDecisionKindCount> decisions{};  // indexed by DecisionKind
  uint64_t parts_moved = 0;
  std::vector<BalanceView> jobs = {};
  ScalingView scaling = {};
  // Moves between the pipelines of this box (pipeline_balancer.h). In these views a box is a
  // pipeline, and a part is a group of chunks.
  struct Inside {
    bool enabled = false;
    uint64_t groups_moved = 0;
    std::vector<BalanceView> jobs = {};
  } inside = {};
};

}  // namespace pbox::cluster
