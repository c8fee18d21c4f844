// Decides when chunks should change boxes while a job trains. PSLD-style: that paper's abstract
// names exploitation, exploration and elastic scaling of parameter servers; the rules here are our
// own reading of it.
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

// The leader's measurement of one box in one round, or in one interval that always has the same
// number of rounds.
struct BoxSample {
  double bytes = 0;         // bytes served for the job
  double busy_seconds = 0;  // from the first push to arrive to the last result to leave
};
struct Observation {
  double iteration_seconds = 0;  // duration of an iteration of the job
  std::vector<BoxSample> boxes;  // indexed by BoxIndex
};

enum class DecisionKind {
  kExploit,      // move to shares in proportion to measured rates
  kExploreMove,  // exploration: move an eighth of a random box's bytes to another
  kScaleOut,     // exploration: activate a standby box
  kScaleIn,      // exploration: put an active box on standby
  kJoin,         // forced: a box has become active
  kDrain,        // forced: a box must lose its chunks
  kRevert,       // undo the last proposal
  kKeep,         // keep the last proposal
  kHold,         // no change is worthwhile
  kAbandon,      // a proposal was not carried out
};
inline constexpr size_t kDecisionKindCount = 10;
const char* to_string(DecisionKind kind);  // one word, used as a metric label

struct BoxChange {
  BoxIndex box;
  BoxState from;
  BoxState to;
};

struct Proposal {
  DecisionKind kind;
  std::vector<Move> moves{};  // each chunk at most once
  // Takes effect with the moves, unless the box's state has been changed in the meantime.
  std::optional<BoxChange> change{};
  double stall_seconds = 0;  // expected cost of the migration to the job
  std::string reason{};
};

struct Decision {
  uint64_t observation;  // number of observations seen before it
  DecisionKind kind;
  std::string reason;
};

// Samples needed for a judgement, and the size of the observation window.
inline constexpr size_t kSamplesPerJudgement = 16;
// Samples after which a clearly slower exploration may be ended early.
inline constexpr size_t kSamplesToGiveUp = 4;
// An exploit must promise to save at least this fraction of the iteration time and to earn back its
// migration within the horizon.
inline constexpr double kGainMin = 0.05;
inline constexpr double kHorizonObservations = 200;
// Factor applied to the probability of exploring after each exploration.
inline constexpr double kExploreDecay = 0.7;
// The pause after a proposal that did not help doubles up to this many observations.
inline constexpr uint32_t kCoolDownMax = 16 * kSamplesPerJudgement;
inline constexpr size_t kDecisionsKept = 64;

struct RebalancerOptions {
  uint64_t seed = 1;
  double explore_probability = 0.2;  // at the first decision, in [0, 1]
};

// Watches one job. From a stream of observations it makes a proposal now and then. The caller
// reports when it has carried the proposal out. After kSamplesPerJudgement more observations the
// proposal is judged: an exploration is kept only if the 95 % interval of the change in iteration
// time lies below 0; an exploit is undone only if it lies above 0, because undoing costs as much as
// doing. A cool-down follows each judgement. One thread at a time; equal inputs give equal
// proposals. If the map changes for another reason (a box was lost), a new Rebalancer is needed.
//
//   if (const auto proposal = rebalancer.observe(observation)) {
//     rebalancer.carried_out(migrate(proposal->moves));
//   }
class Rebalancer {
 public:
  // Every chunk must be on one of `boxes`, whose capacities are as place_job() requires.
  Rebalancer(std::vector<uint32_t> chunk_bytes, std::vector<BoxIndex> box_of_chunk,
             std::vector<Box> boxes, RebalancerOptions options);

  // Boxes are identified by index; a new box gets the next one. A drain or a join forces the next
  // proposal.
  void add_box(Box box);
  void set_state(BoxIndex box, BoxState state);

  // An observation that does not cover all boxes, or has a negative or non-finite number, is
  // counted and ignored. Proposes nothing while a proposal is being carried out.
  std::optional<Proposal> observe(const Observation& observation);

  // Must be called when the proposal has been carried out. `stall_seconds`: what the migration cost
  // the job.
  void carried_out(double stall_seconds);
  // Must be called when the proposal was not carried out at all. `why` is recorded with the
  // decision.
  void abandoned(const std::string& why);

  const std::vector<BoxIndex>& box_of_chunk() const { return box_of_chunk_; }
  const std::vector<Box>& boxes() const { return boxes_; }
  // Returns each box's rate, whatever its state: as last measured, or estimated from the declared
  // rate.
  std::vector<double> bytes_per_second() const;
  // Returns whether a proposal that was carried out is on trial.
  bool is_judging() const { return phase_ == Phase::kJudging; }
  uint64_t observations_ignored() const { return observations_ignored_; }
  // How many decisions of each kind there were, for metrics; and the newest decisions, oldest
  // first, with their reasons.
  uint64_t decision_count(DecisionKind kind) const { return counts_[static_cast<size_t>(kind)]; }
  const std::deque<Decision>& decisions() const { return decisions_; }

 private:
  enum class Phase { kObserving, kMigrating, kJudging };

  bool usable(const Observation& observation) const;
  void measure();
  std::optional<Proposal> propose(Proposal proposal);
  std::optional<Proposal> judge();
  std::optional<Proposal> decide();
  void hold(std::string reason);
  void note(DecisionKind kind, std::string reason);
  void pause(bool helped);

  // rebalancer_proposals.cc
  std::optional<Proposal> forced_proposal();
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
  std::string describe_moves(const Proposal& proposal) const;
  static std::string milliseconds(double seconds);

  std::vector<uint32_t> chunk_bytes_;
  std::vector<BoxIndex> box_of_chunk_;
  std::vector<Box> boxes_;
  std::vector<double> bytes_;  // by box: bytes that the map assigns to it
  // by box: measured bytes per second; 0: never measured, or not since the box was last empty
  std::vector<double> measured_;
  std::vector<bool> joined_;  // by box: it has become active and no proposal has considered it yet
  double traffic_ = 1;        // bytes served per byte of the map
  // ratio of the measured cost of migrations to the time that their bytes would take
  double stall_ratio_ = 1;

  Rng rng_;
  double explore_probability_;
  Phase phase_ = Phase::kObserving;
  // Observations since the map last changed; at most kSamplesPerJudgement.
  std::deque<Observation> window_;
  std::vector<double> before_;        // iteration times before the last proposal
  std::optional<Proposal> proposal_;  // being carried out, or on trial
  uint32_t cool_down_ = 0;
  uint32_t cool_down_next_ = kSamplesPerJudgement;
  uint32_t forced_retry_in_ = 0;

  uint64_t observations_ = 0;
  uint64_t observations_ignored_ = 0;
  std::vector<uint64_t> counts_ = std::vector<uint64_t>(kDecisionKindCount);
  std::deque<Decision> decisions_;
};

}  // namespace pbox::placement
