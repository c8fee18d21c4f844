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
#include "appliance/placement/imbalance.h"
#include "appliance/placement/moves.h"
#include "base/rng.h"

namespace pbox::placement {

// The leader's measurement of one box: means per round.
struct BoxSample {
  double bytes = 0;         // bytes served for the job
  double busy_seconds = 0;  // how long ranks wait for the box (cluster/job_load.h)
};
struct Observation {
  double iteration_seconds = 0;  // duration of an iteration of the job
  std::vector<BoxSample> boxes;  // indexed by BoxIndex
  double rounds = 1;             // rounds that the observation covers
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

// Observations that are kept while the map does not change.
inline constexpr size_t kWindow = 256;
// A trial that has shown no difference ends after this many observations.
inline constexpr size_t kTrialMax = 16;
// Probability that a difference is found where there is none: by the test that leads to an exploit,
// and by the one that judges a trial.
inline constexpr double kExploitError = 0.01;
inline constexpr double kTrialError = 0.05;
// An exploit must promise to save at least this fraction of the iteration time.
inline constexpr double kGainMin = 0.03;
// An exploit has paid when its map has been in use for this many observations.
inline constexpr uint64_t kPaysAfter = 2 * kTrialMax;
// An exploit needs at most kSamplesMin times this many observations, however many exploits have
// failed.
inline constexpr size_t kPatienceMax = 4;
inline constexpr size_t kDecisionsKept = 64;

struct RebalancerOptions {
  uint64_t seed = 1;
  // Share of the job's time that explorations may cost, in [0, 1). 0 turns explorations off.
  double explore_share = 0.005;
};

// Watches one job. From a stream of observations it makes a proposal now and then. The caller
// reports when it has carried the proposal out.
//
// An exploit is proposed as soon as three things hold over some run of newest observations: a box
// is certainly slower than another one (imbalance.h); the likely gain is at least kGainMin; and the
// certain gain that this run has missed is at least twice the cost of the migration, so that a
// change and its undoing never cost more than waiting has cost already (the rule for ski rental:
// Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching", 1988). After an exploit that was
// undone, or reversed before it had paid, the next one needs twice as many observations; after one
// that has paid, half as many.
//
// An exploration is proposed when explorations have cost less than their share of the time. Both
// kinds are put on trial: an exploration is kept only if the job is certainly faster; an exploit is
// undone only if the job is certainly slower, because undoing costs as much as doing.
//
// One thread at a time; equal inputs give equal proposals. If the map changes for another reason (a
// box was lost), a new Rebalancer is needed.
//
//   if (const auto proposal = rebalancer.observe(observation)) {
//     rebalancer.carried_out(migrate(proposal->moves));
//   }
class Rebalancer {
 public:
  // Every chunk must be on one of `boxes`, whose rates are above 0 and finite.
  Rebalancer(std::vector<uint32_t> chunk_bytes, std::vector<BoxIndex> box_of_chunk,
             std::vector<Box> boxes, RebalancerOptions options);

  // Boxes are identified by index; a new box gets the next one. A drain or a join forces the next
  // proposal.
  void add_box(Box box);
  void set_state(BoxIndex box, BoxState state);

  // An observation that does not cover all boxes, or has a negative or non-finite number, is
  // counted and ignored. Proposes nothing while a proposal is being carried out.
  std::optional<Proposal> observe(const Observation& observation);

  // Must be called when the proposal has been carried out. `stall_seconds`: the time that the
  // migration cost the job.
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
  // The number of decisions of each kind, for metrics, and the newest decisions with their reasons,
  // oldest first.
  uint64_t decision_count(DecisionKind kind) const { return counts_[static_cast<size_t>(kind)]; }
  const std::deque<Decision>& decisions() const { return decisions_; }

 private:
  enum class Phase { kObserving, kMigrating, kJudging };
  // The newest exploits, until they have paid or were reversed.
  struct Exploit {
    std::vector<double> bytes;  // by box: bytes moved to it less bytes moved away from it
    uint64_t since = 0;         // observations_ at the last exploit
  };

  bool usable(const Observation& observation) const;
  void remember(const Observation& observation);
  void measure(size_t samples);
  std::optional<Proposal> propose(Proposal proposal);
  std::optional<Proposal> judge();
  std::optional<Proposal> decide();
  std::optional<Proposal> go_back(const std::string& found);
  void keep(const std::string& why);
  void follow_up(const Proposal& exploit);
  void credit_exploit();
  void doubt();
  bool explains() const { return observations_ % kTrialMax == 0; }
  void hold(std::string reason);
  void note(DecisionKind kind, std::string reason);

  // rebalancer_proposals.cc
  std::optional<Proposal> forced_proposal();
  std::optional<Proposal> exploit();
  std::optional<Proposal> explore();
  std::optional<Proposal> draw_exploration();
  Proposal random_move(Rng& rng) const;
  double trial_seconds(const Proposal& exploration) const;
  Proposal scaling(DecisionKind kind, BoxIndex box) const;
  Proposal reversed() const;
  std::vector<BoxIndex> boxes_in(BoxState state) const;
  std::vector<double> rates_of_active() const;
  double slowest_seconds(const std::vector<double>& bytes,
                         const std::vector<double>& bytes_per_second) const;
  double levelled_seconds(const std::vector<double>& bytes_per_second) const;
  std::vector<double> bytes_after(std::span<const Move> moves) const;
  double stall_unit_seconds(std::span<const Move> moves) const;
  std::vector<double> log_iterations(size_t samples) const;
  double rounds_of(size_t samples) const;
  std::string describe_moves(const Proposal& proposal) const;
  static std::string milliseconds(double seconds);

  std::vector<uint32_t> chunk_bytes_;
  std::vector<BoxIndex> box_of_chunk_;
  std::vector<Box> boxes_;
  std::vector<double> bytes_;  // by box: bytes that the map assigns to it
  // By box: measured bytes per second; 0: never measured since the box became active. A box that
  // has become empty keeps its rate.
  std::vector<double> measured_;
  std::vector<bool> joined_;  // by box: it has become active and no proposal has considered it yet
  double traffic_ = 1;        // bytes served per byte of the map
  // Ratio of the measured cost of migrations to the time that their bytes would take.
  double stall_ratio_ = 1;

  Rng rng_;
  uint64_t draw_ = 0;  // seed of the next exploration
  double explore_share_;
  Phase phase_ = Phase::kObserving;
  std::deque<Sample> window_;         // since the map last changed; at most kWindow
  std::vector<double> before_;        // log_iteration of the samples that led to the last proposal
  std::optional<Proposal> proposal_;  // being carried out, or on trial
  size_t patience_ = 1;               // times kSamplesMin: observations that an exploit needs
  std::optional<Exploit> exploit_;
  bool exploring_ = false;        // proposal_ is an exploration, or undoes one
  double job_seconds_ = 0;        // time of all rounds observed
  double exploring_seconds_ = 0;  // time that explorations have cost
  size_t pause_ = 0;  // observations to pass without a decision: a proposal was not possible

  uint64_t observations_ = 0;
  uint64_t observations_ignored_ = 0;
  std::vector<uint64_t> counts_ = std::vector<uint64_t>(kDecisionKindCount);
  std::deque<Decision> decisions_;
};

}  // namespace pbox::placement
