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
      explore_probability_(options.explore_probability) {
  PBOX_CHECK(chunk_bytes_.size() == box_of_chunk_.size());
  bytes_ = bytes_by_box(chunk_bytes_, box_of_chunk_, boxes_.size());
}

void Rebalancer::add_box(Box box) {
  PBOX_CHECK(boxes_.size() < kNoBox && box.bytes_per_second > 0);
  joined_.push_back(box.state == BoxState::kActive);
  boxes_.push_back(std::move(box));
  bytes_.push_back(0);
  measured_.push_back(0);
  window_.clear();  // older observations do not cover the new box
}

void Rebalancer::set_state(BoxIndex box, BoxState state) {
  PBOX_CHECK(box < boxes_.size());
  if (state == boxes_[box].state) return;
  boxes_[box].state = state;
  joined_[box] = state == BoxState::kActive;
}

bool Rebalancer::usable(const Observation& observation) const {
  if (!is_amount(observation.iteration_seconds)) return false;
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
  if (phase_ == Phase::kMigrating) return std::nullopt;
  window_.push_back(observation);
  if (window_.size() > kSamplesPerJudgement) window_.pop_front();
  measure();
  if (forced_retry_in_ > 0) {
    --forced_retry_in_;
  } else if (auto proposal = forced_proposal()) {
    return propose(std::move(*proposal));
  }
  if (phase_ == Phase::kJudging) return judge();
  if (cool_down_ > 0) {
    --cool_down_;
    return std::nullopt;
  }
  return window_.size() < kSamplesPerJudgement ? std::nullopt : decide();
}

void Rebalancer::measure() {
  PBOX_DCHECK(bytes_.size() == boxes_.size() && measured_.size() == boxes_.size());
  double served = 0;
  double mapped = 0;
  for (size_t box = 0; box < boxes_.size(); ++box) {
    double bytes = 0;
    double busy_seconds = 0;
    for (const Observation& observation : window_) {
      bytes += observation.boxes[box].bytes;
      busy_seconds += observation.boxes[box].busy_seconds;
    }
    if (bytes > 0 && busy_seconds > 0) {
      measured_[box] = bytes / busy_seconds;
    } else if (bytes_[box] == 0) {
      measured_[box] = 0;
    }
    served += bytes;
    mapped += bytes_[box] * static_cast<double>(window_.size());
  }
  if (served > 0 && mapped > 0) traffic_ = served / mapped;
}

std::optional<Proposal> Rebalancer::propose(Proposal proposal) {
  PBOX_CHECK(phase_ != Phase::kMigrating && !proposal.moves.empty());
  phase_ = Phase::kMigrating;
  if (is_judged(proposal.kind)) before_ = iteration_seconds();
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
  phase_ = Phase::kObserving;
  cool_down_ = std::max(cool_down_, static_cast<uint32_t>(kSamplesPerJudgement));
}

void Rebalancer::abandoned(const std::string& why) {
  PBOX_CHECK(phase_ == Phase::kMigrating);
  note(DecisionKind::kAbandon,
       std::string(to_string(proposal_->kind)) + " was not carried out: " + why);
  proposal_.reset();
  phase_ = Phase::kObserving;
  window_.clear();
  forced_retry_in_ = kSamplesPerJudgement;
  pause(false);
}

std::optional<Proposal> Rebalancer::judge() {
  PBOX_CHECK(proposal_.has_value() && is_judged(proposal_->kind));
  const bool exploration = is_exploration(proposal_->kind);
  const size_t needed = exploration ? kSamplesToGiveUp : kSamplesPerJudgement;
  if (window_.size() < needed) return std::nullopt;
  const std::vector<double> after = iteration_seconds();
  const Interval change = difference_of_means(before_, after);
  if (window_.size() < kSamplesPerJudgement && !change.above_zero()) return std::nullopt;
  const std::string found = "an iteration took " + milliseconds(moments_of(before_).mean) +
                            ", now " + milliseconds(moments_of(after).mean) +
                            " (change, 95 %: " + milliseconds(change.low) + " to " +
                            milliseconds(change.high) + ")";
  const bool faster = change.below_zero();
  const bool go_back = exploration ? !faster : change.above_zero();
  const DecisionKind kind = proposal_->kind;
  Proposal reverse = go_back ? reversed() : Proposal{};
  proposal_.reset();
  phase_ = Phase::kObserving;
  // An exploration usually fails, so a failed one costs only the normal pause.
  pause(faster || exploration);
  if (!reverse.moves.empty()) {
    reverse.reason = found + ": " + to_string(kind) + " has not helped, so it is undone";
    return propose(std::move(reverse));
  }
  const char* why = faster    ? ": faster"
                    : go_back ? ": no better, but the previous owners no longer take chunks"
                              : ": not clearly different, and going back would cost as much again";
  note(DecisionKind::kKeep, found + why);
  return std::nullopt;
}

std::optional<Proposal> Rebalancer::decide() {
  cool_down_ = kSamplesPerJudgement;  // minimum until the next decision
  auto proposal = rng_.unit() < explore_probability_ ? explore() : exploit();
  if (!proposal) return std::nullopt;
  if (is_exploration(proposal->kind)) explore_probability_ *= kExploreDecay;
  return propose(std::move(*proposal));
}

void Rebalancer::pause(bool helped) {
  cool_down_next_ = helped ? static_cast<uint32_t>(kSamplesPerJudgement)
                           : std::min(2 * cool_down_next_, kCoolDownMax);
  cool_down_ = cool_down_next_;
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
