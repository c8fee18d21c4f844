// When chunks should change boxes while a job trains. PSLD-style: that paper's abstract names
// exploitation, exploration and elastic scaling of parameter servers; the rules here are our own
// reading of it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "appliance/placement/confidence.h"
#include "appliance/placement/moves.h"
#include "base/rng.h"

namespace pbox::placement {

// One round, or one interval of equal length in rounds, as the leader saw it.
struct BoxSample {
  double bytes = 0;         // served for the job
  double busy_seconds = 0;  // from the first push that arrived to the last result that left
};
struct Observation {
  double iteration_seconds = 0;  // of the job
  std::vector<BoxSample> boxes;  // by BoxIndex
};

enum class DecisionKind {
  kExploit,      // to shares in proportion to measured rates
  kExploreMove,  // an eighth of a box elsewhere, at random
  kScaleOut,     // exploration: a standby box joins
  kScaleIn,      // exploration: an active box stands by
  kJoin,         // forced: a box was made active
  kDrain,        // forced: a box must lose its chunks
  kRevert,       // back to what was before the last plan
  kKeep,         // the last plan stands
  kHold,         // nothing is worth doing
  kAbandon,      // the plan was not carried out
};
inline constexpr size_t kDecisionKindCount = 10;
const char* to_string(DecisionKind kind);  // one word, for a metric's label

struct BoxChange {
  BoxIndex box;
  BoxState from;
  BoxState to;
};

struct Proposal {
  DecisionKind kind;
  std::vector<Move> moves{};  // each chunk at most once
  // Takes effect with the moves, unless the box was told something else meanwhile.
  std::optional<BoxChange> change{};
  double stall_seconds = 0;  // what migration is expected to cost the job
  std::string reason{};
};

struct Decision {
  uint64_t observation;  // how many had been seen
  DecisionKind kind;
  std::string reason;
};

// Judgements count samples, not seconds.
inline constexpr size_t kSamplesPerJudgement = 16;
// An exploration that is plainly slower ends as soon as this many show it.
inline constexpr size_t kSamplesToGiveUp = 4;
// A plan must promise this part of the iteration time, and earn its migration within the horizon.
inline constexpr double kGainMin = 0.05;
inline constexpr double kHorizonObservations = 200;
// Of the probability of exploring, with each exploration.
inline constexpr double kExploreDecay = 0.7;
// Pauses after plans that did not help double up to this many observations.
inline constexpr uint32_t kCoolDownMax = 16 * kSamplesPerJudgement;
inline constexpr size_t kDecisionsKept = 64;

struct RebalancerOptions {
  uint64_t seed = 1;
  double explore_probability = 0.2;  // of the first decision, in [0, 1]
};

// Watches one job. Fed with observations, it proposes a plan now and then; whoever carries it out
// says so, and after kSamplesPerJudgement more observations it is judged: an exploration stays only
// if the 95 % interval of the iteration time's change lies below 0; an exploit goes back only if it
// lies above 0, since going back costs as much as going did. The next decision waits for a
// cool-down. One thread at a time; equal inputs give equal plans. A map that changed by other means
// (a box was lost) needs a new Rebalancer.
//
//   if (const auto plan = rebalancer.observe(observation)) {
//     rebalancer.carried_out(migrate(plan->moves));
//   }
class Rebalancer {
 public:
  // Every chunk on one of `boxes`, whose capacities are as place_job() wants them.
  Rebalancer(std::vector<uint32_t> chunk_bytes, std::vector<BoxIndex> box_of_chunk,
             std::vector<Box> boxes, RebalancerOptions options);

  // Boxes are told by index; a new one comes last. Drains and joins force the next plan.
  void add_box(Box box);
  void set_state(BoxIndex box, BoxState state);

  // Ignored, and counted, if it is not of all boxes or a number in it is negative or not finite.
  // Nothing is proposed while a plan is out.
  std::optional<Proposal> observe(const Observation& observation);

  // The plan that is out stands; `stall_seconds`: what it cost the job.
  void carried_out(double stall_seconds);
  // Nothing of the plan that is out was done; `why` goes into the decisions.
  void abandoned(const std::string& why);

  const std::vector<BoxIndex>& box_of_chunk() const { return box_of_chunk_; }
  const std::vector<Box>& boxes() const { return boxes_; }
  // As measured last, or estimated from what was declared; by box, whatever its state.
  std::vector<double> bytes_per_second() const;
  // A plan that was carried out is on trial.
  bool is_judging() const { return phase_ == Phase::kJudging; }
  uint64_t observations_ignored() const { return observations_ignored_; }
  // Of each kind, for metrics; and the last ones, oldest first, with their reasons.
  uint64_t decision_count(DecisionKind kind) const { return counts_[static_cast<size_t>(kind)]; }
  const std::deque<Decision>& decisions() const { return decisions_; }

 private:
  enum class Phase { kObserving, kMigrating, kJudging };

  bool usable(const Observation& observation) const;
  void measure();
  std::optional<Proposal> propose(Proposal plan);
  std::optional<Proposal> judge();
  std::optional<Proposal> decide();
  void hold(std::string reason);
  void note(DecisionKind kind, std::string reason);
  void pause(bool helped);

  // rebalancer_plans.cc
  std::optional<Proposal> forced();
  std::optional<Proposal> exploit();
  std::optional<Proposal> explore();
  std::optional<Proposal> random_move();
  Proposal scaling(DecisionKind kind, BoxIndex box) const;
  Proposal reversed() const;
  std::vector<BoxIndex> boxes_in(BoxState state) const;
  std::vector<double> rates_of_active() const;
  double slowest_seconds(const std::vector<double>& bytes,
                         const std::vector<double>& bytes_per_second) const;
  std::vector<double> bytes_after(std::span<const Move> moves) const;
  double stall_unit_seconds(std::span<const Move> moves) const;
  std::vector<double> iteration_seconds() const;
  std::string describe_moves(const Proposal& plan) const;
  static std::string milliseconds(double seconds);

  std::vector<uint32_t> chunk_bytes_;
  std::vector<BoxIndex> box_of_chunk_;
  std::vector<Box> boxes_;
  std::vector<double> bytes_;     // by box, of the map
  std::vector<double> measured_;  // bytes per second by box; 0: never, or not since it was empty
  std::vector<bool> joined_;      // made active, and nothing planned for it yet
  double traffic_ = 1;            // bytes served per byte of the map
  double stall_ratio_ = 1;        // of what migrations cost to what their bytes would take

  Rng rng_;
  double explore_probability_;
  Phase phase_ = Phase::kObserving;
  std::deque<Observation> window_;  // since the map changed last, at most kSamplesPerJudgement
  std::vector<double> before_;      // iteration times before the last plan
  std::optional<Proposal> plan_;    // out, or on trial
  uint32_t cool_down_ = 0;
  uint32_t cool_down_next_ = kSamplesPerJudgement;
  uint32_t forced_retry_in_ = 0;

  uint64_t observations_ = 0;
  uint64_t observations_ignored_ = 0;
  std::vector<uint64_t> counts_ = std::vector<uint64_t>(kDecisionKindCount);
  std::deque<Decision> decisions_;
};

}  // namespace pbox::placement
