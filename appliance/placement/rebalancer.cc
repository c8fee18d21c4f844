#include "appliance/placement/rebalancer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pbox::placement {
namespace {

bool is_exploration(DecisionKind kind) {
  return kind == DecisionKind::kExploreMove || kind == DecisionKind::kScaleOut ||
         kind == DecisionKind::kScaleIn;
}

// Returns whether a proposal of this kind is on trial after it has been carried out. Forced
// proposals and reverts are final.
bool is_judged(DecisionKind kind) {
  return kind == DecisionKind::kExploit || is_exploration(kind);
}

bool is_amount(double value) {
  return std::isfinite(value) && value >= 0;
}

// Returns the logarithm of a duration. A box that was not busy at all counts as busy for 1 us.
double log_of(double seconds) {
  return std::log(std::max(seconds, 1e-6));
}

}  // namespace

const char* to_string(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::kExploit: return "exploit";
    case DecisionKind::kExploreMove: return "explore_move";
    case DecisionKind::kScaleOut: return "scale_out";
    case DecisionKind::kScaleIn: return "scale_in";
    case DecisionKind::kJoin: return "join";
    case DecisionKind::kDrain: return "drain";
    case DecisionKind::kRevert: return "revert";
    case DecisionKind::kKeep: return "keep";
    case DecisionKind::kHold: return "hold";
    case DecisionKind::kAbandon: return "abandon";
  }
  return "?";
}

Rebalancer::Rebalancer(std::vector<uint32_t> chunk_bytes, std::vector<BoxIndex> box_of_chunk,
                       std::vector<Box> boxes, RebalancerOptions options)
    : chunk_bytes_(std::move(chunk_bytes)),
      box_of_chunk_(std::move(box_of_chunk)),
      boxes_(std::move(boxes)),
      measured_(boxes_.size()),
      joined_(boxes_.size()),
      rng_(options.seed),
      draw_(rng_.next()),
      explore_share_(options.explore_share) {
  PBOX_CHECK(chunk_bytes_.size() == box_of_chunk_.size());
  PBOX_CHECK(explore_share_ >= 0 && explore_share_ < 1);
  bytes_ = bytes_by_box(chunk_bytes_, box_of_chunk_, boxes_.size());
}

void Rebalancer::add_box(Box box) {
  PBOX_CHECK(boxes_.size() < kNoBox && box.bytes_per_second > 0);
  joined_.push_back(box.state == BoxState::kActive);
  boxes_.push_back(std::move(box));
  bytes_.push_back(0);
  measured_.push_back(0);
  if (exploit_) exploit_->bytes.push_back(0);
  window_.clear();  // older observations do not cover the new box
}

void Rebalancer::set_state(BoxIndex box, BoxState state) {
  PBOX_CHECK(box < boxes_.size());
  if (state == boxes_[box].state) return;
  boxes_[box].state = state;
  joined_[box] = state == BoxState::kActive;
  if (joined_[box] && bytes_[box] == 0) measured_[box] = 0;
}

bool Rebalancer::usable(const Observation& observation) const {
  if (!is_amount(observation.iteration_seconds) || !is_amount(observation.rounds)) return false;
  if (observation.boxes.size() != boxes_.size()) return false;
  return std::all_of(observation.boxes.begin(), observation.boxes.end(), [](const BoxSample& box) {
    return is_amount(box.bytes) && is_amount(box.busy_seconds);
  });
}

std::optional<Proposal> Rebalancer::observe(const Observation& observation) {
  ++observations_;
  if (!usable(observation)) {
    ++observations_ignored_;
    return std::nullopt;
  }
  job_seconds_ += observation.rounds * observation.iteration_seconds;
  if (phase_ == Phase::kMigrating) return std::nullopt;
  remember(observation);
  credit_exploit();
  if (pause_ > 0) {
    --pause_;
    return std::nullopt;
  }
  if (auto proposal = forced_proposal()) return propose(std::move(*proposal));
  return phase_ == Phase::kJudging ? judge() : decide();
}

void Rebalancer::remember(const Observation& observation) {
  Sample sample;
  sample.rounds = observation.rounds;
  sample.log_iteration = log_of(observation.iteration_seconds);
  for (const BoxSample& box : observation.boxes) {
    sample.bytes.push_back(box.bytes);
    sample.log_busy.push_back(log_of(box.busy_seconds));
  }
  window_.push_back(std::move(sample));
  if (window_.size() > kWindow) window_.pop_front();
  measure(std::min(window_.size(), kTrialMax));
}

// Derives the boxes' rates from the newest `samples` samples.
void Rebalancer::measure(size_t samples) {
  PBOX_DCHECK(samples > 0 && samples <= window_.size());
  const double count = static_cast<double>(samples);
  double served = 0;
  double mapped = 0;
  for (size_t box = 0; box < boxes_.size(); ++box) {
    double bytes = 0;
    std::vector<double> log_busy;
    for (size_t index = window_.size() - samples; index < window_.size(); ++index) {
      bytes += window_[index].bytes[box];
      log_busy.push_back(window_[index].log_busy[box]);
    }
    if (bytes > 0) measured_[box] = bytes / count / std::exp(median_of(std::move(log_busy)));
    served += bytes;
    mapped += bytes_[box] * count;
  }
  if (served > 0 && mapped > 0) traffic_ = served / mapped;
}

std::optional<Proposal> Rebalancer::propose(Proposal proposal) {
  PBOX_CHECK(phase_ != Phase::kMigrating && !proposal.moves.empty());
  if (is_exploration(proposal.kind)) {
    exploring_ = true;
  } else if (proposal.kind == DecisionKind::kExploit) {
    follow_up(proposal);
  }
  phase_ = Phase::kMigrating;
  note(proposal.kind, proposal.reason);
  proposal_ = proposal;
  return proposal;
}

void Rebalancer::carried_out(double stall_seconds) {
  PBOX_CHECK(phase_ == Phase::kMigrating);
  PBOX_CHECK(proposal_.has_value());
  const double unit = stall_unit_seconds(proposal_->moves);
  if (is_amount(stall_seconds) && unit > 0) {
    stall_ratio_ = (stall_ratio_ + stall_seconds / unit) / 2;
  }
  if (exploring_ && is_amount(stall_seconds)) exploring_seconds_ += stall_seconds;
  for (const Move& move : proposal_->moves) {
    PBOX_CHECK(box_of_chunk_[move.chunk] == move.from);
    box_of_chunk_[move.chunk] = move.to;
  }
  bytes_ = bytes_by_box(chunk_bytes_, box_of_chunk_, boxes_.size());
  const auto& change = proposal_->change;
  if (change && boxes_[change->box].state == change->from) boxes_[change->box].state = change->to;
  window_.clear();
  if (is_judged(proposal_->kind)) {
    phase_ = Phase::kJudging;
    return;
  }
  proposal_.reset();
  exploring_ = false;
  phase_ = Phase::kObserving;
}

void Rebalancer::abandoned(const std::string& why) {
  PBOX_CHECK(phase_ == Phase::kMigrating);
  note(DecisionKind::kAbandon,
       std::string(to_string(proposal_->kind)) + " was not carried out: " + why);
  proposal_.reset();
  exploring_ = false;
  phase_ = Phase::kObserving;
  window_.clear();
  pause_ = kTrialMax;
  doubt();
}

std::optional<Proposal> Rebalancer::judge() {
  PBOX_CHECK(proposal_.has_value() && is_judged(proposal_->kind));
  if (window_.size() < kSamplesMin) return std::nullopt;
  const bool exploration = is_exploration(proposal_->kind);
  const std::vector<double> after = log_iterations(window_.size());
  const Interval change = difference_of_centres(before_, after, kTrialError);
  const double was = std::exp(median_of(before_));
  const double is = std::exp(median_of(after));
  if (exploration) {
    // Counts what this observation has added to the cost.
    exploring_seconds_ += std::max(0.0, is - was) * window_.back().rounds;
  }
  const std::string found = "an iteration took " + milliseconds(was) + ", now " + milliseconds(is);
  const bool is_over = window_.size() >= kTrialMax;
  if (change.above_zero()) return go_back(found + ": certainly slower");
  if (change.below_zero()) {
    keep(found + ": certainly faster");
  } else if (is_over && exploration) {
    return go_back(found + ": not certainly faster");
  } else if (is_over) {
    keep(found + ": not clearly different, and going back would cost as much again");
  } else if (!exploration) {
    auto next = exploit();
    if (!next) return std::nullopt;
    keep(found + ": the boxes differ in another way now");
    return propose(std::move(*next));
  }
  return std::nullopt;
}

void Rebalancer::keep(const std::string& why) {
  note(DecisionKind::kKeep, why);
  proposal_.reset();
  exploring_ = false;
  phase_ = Phase::kObserving;
}

std::optional<Proposal> Rebalancer::go_back(const std::string& found) {
  Proposal reverse = reversed();
  const std::string kind = to_string(proposal_->kind);
  if (!exploring_) {
    exploit_.reset();
    doubt();
  }
  if (reverse.moves.empty()) {
    keep(found + ", but the previous owners no longer take chunks");
    return std::nullopt;
  }
  proposal_.reset();
  phase_ = Phase::kObserving;
  reverse.reason = found + ", so " + kind + " is undone";
  return propose(std::move(reverse));
}

std::optional<Proposal> Rebalancer::decide() {
  auto proposal = exploit();
  if (!proposal && explains()) proposal = explore();
  if (!proposal) return std::nullopt;
  return propose(std::move(*proposal));
}

// Records an exploit that is about to be carried out. If it moves back most of the bytes that the
// last exploits moved, before those have paid, the job oscillates, and the next exploit needs more
// observations.
void Rebalancer::follow_up(const Proposal& exploit) {
  std::vector<double> bytes = bytes_after(exploit.moves);
  for (size_t box = 0; box < bytes.size(); ++box) bytes[box] -= bytes_[box];
  if (exploit_) {
    double moved = 0;
    double back = 0;
    for (size_t box = 0; box < bytes.size(); ++box) {
      moved += exploit_->bytes[box] * exploit_->bytes[box];
      back -= exploit_->bytes[box] * bytes[box];
      bytes[box] += exploit_->bytes[box];
    }
    if (back > moved / 2) {
      exploit_.reset();
      return doubt();
    }
  }
  exploit_ = Exploit{std::move(bytes), observations_};
}

void Rebalancer::credit_exploit() {
  if (!exploit_ || observations_ - exploit_->since < kPaysAfter) return;
  exploit_.reset();
  patience_ = std::max<size_t>(1, patience_ / 2);
}

void Rebalancer::doubt() {
  patience_ = std::min(2 * patience_, kPatienceMax);
}

void Rebalancer::hold(std::string reason) {
  // A hold that follows another hold replaces it, so that holds do not crowd out other decisions.
  if (!decisions_.empty() && decisions_.back().kind == DecisionKind::kHold) decisions_.pop_back();
  note(DecisionKind::kHold, std::move(reason));
}

void Rebalancer::note(DecisionKind kind, std::string reason) {
  PBOX_DCHECK(static_cast<size_t>(kind) < counts_.size());
  ++counts_[static_cast<size_t>(kind)];
  decisions_.push_back({observations_, kind, std::move(reason)});
  if (decisions_.size() > kDecisionsKept) decisions_.pop_front();
}

}  // namespace pbox::placement
