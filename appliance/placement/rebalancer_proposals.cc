// The proposals that the rebalancer may make, and their expected effect.
#include <algorithm>
#include <cstdio>

#include "appliance/placement/rebalancer.h"
#include "base/check.h"

namespace pbox::placement {
namespace {

// Share of the donor's bytes that a random move takes.
constexpr double kRandomMoveShare = 1.0 / 8;

size_t slowest_of(const std::vector<double>& bytes, const std::vector<double>& bytes_per_second) {
  size_t slowest = 0;
  double seconds = -1;
  for (size_t box = 0; box < bytes.size(); ++box) {
    if (bytes_per_second[box] <= 0) continue;
    if (bytes[box] / bytes_per_second[box] > seconds) {
      slowest = box;
      seconds = bytes[box] / bytes_per_second[box];
    }
  }
  return slowest;
}

size_t fastest_of(const std::vector<double>& bytes, const std::vector<double>& bytes_per_second) {
  size_t fastest = slowest_of(bytes, bytes_per_second);
  for (size_t box = 0; box < bytes.size(); ++box) {
    if (bytes_per_second[box] <= 0) continue;
    if (bytes[box] / bytes_per_second[box] < bytes[fastest] / bytes_per_second[fastest]) {
      fastest = box;
    }
  }
  return fastest;
}

}  // namespace

std::vector<double> Rebalancer::bytes_per_second() const {
  // A box without a measurement is assumed to deviate from its declared rate by the same ratio as
  // the median of the measured boxes.
  std::vector<double> ratios;
  for (size_t box = 0; box < boxes_.size(); ++box) {
    if (measured_[box] > 0) ratios.push_back(measured_[box] / boxes_[box].bytes_per_second);
  }
  double ratio = 1;
  if (!ratios.empty()) {
    const auto middle = ratios.begin() + static_cast<ptrdiff_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    ratio = *middle;
  }
  std::vector<double> rates;
  for (size_t box = 0; box < boxes_.size(); ++box) {
    rates.push_back(measured_[box] > 0 ? measured_[box] : ratio * boxes_[box].bytes_per_second);
  }
  return rates;
}

std::vector<double> Rebalancer::rates_of_active() const {
  std::vector<double> rates = bytes_per_second();
  for (size_t box = 0; box < boxes_.size(); ++box) {
    if (boxes_[box].state != BoxState::kActive) rates[box] = 0;
  }
  return rates;
}

std::vector<BoxIndex> Rebalancer::boxes_in(BoxState state) const {
  std::vector<BoxIndex> found;
  for (size_t box = 0; box < boxes_.size(); ++box) {
    if (boxes_[box].state == state) found.push_back(static_cast<BoxIndex>(box));
  }
  return found;
}

std::vector<double> Rebalancer::iteration_seconds() const {
  std::vector<double> seconds;
  for (const Observation& seen : window_) seconds.push_back(seen.iteration_seconds);
  return seconds;
}

double Rebalancer::slowest_seconds(const std::vector<double>& bytes,
                                   const std::vector<double>& bytes_per_second) const {
  const size_t slowest = slowest_of(bytes, bytes_per_second);
  PBOX_DCHECK(bytes_per_second[slowest] > 0);
  return traffic_ * bytes[slowest] / bytes_per_second[slowest];
}

std::vector<double> Rebalancer::bytes_after(std::span<const Move> moves) const {
  std::vector<double> bytes = bytes_;
  for (const Move& move : moves) {
    PBOX_DCHECK(box_of_chunk_[move.chunk] == move.from);
    bytes[move.from] -= chunk_bytes_[move.chunk];
    bytes[move.to] += chunk_bytes_[move.chunk];
  }
  return bytes;
}

// Returns how long the busiest box needs to send and receive the moved bytes.
double Rebalancer::stall_unit_seconds(std::span<const Move> moves) const {
  return slowest_seconds(moved_bytes_by_box(chunk_bytes_, moves, boxes_.size()),
                         bytes_per_second()) /
         traffic_;
}

std::string Rebalancer::milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  return text;
}

std::string Rebalancer::describe_moves(const Proposal& proposal) const {
  double bytes = 0;
  for (const Move& move : proposal.moves) bytes += chunk_bytes_[move.chunk];
  char text[96];
  std::snprintf(text, sizeof text, "%zu of %zu chunks, %.4g MB", proposal.moves.size(),
                chunk_bytes_.size(), bytes / 1e6);
  return text;
}

std::optional<Proposal> Rebalancer::forced_proposal() {
  std::string leaving;
  std::string joining;
  for (size_t box = 0; box < boxes_.size(); ++box) {
    const bool active = boxes_[box].state == BoxState::kActive;
    if (!active && bytes_[box] > 0) leaving += (leaving.empty() ? "" : ", ") + boxes_[box].name;
    if (active && joined_[box]) joining += (joining.empty() ? "" : ", ") + boxes_[box].name;
  }
  if (leaving.empty() && joining.empty()) return std::nullopt;
  if (boxes_in(BoxState::kActive).empty()) {
    forced_retry_in_ = kSamplesPerJudgement;
    hold("no box is active to take the chunks of " + leaving + ": activate one");
    return std::nullopt;
  }
  Proposal proposal{.kind = leaving.empty() ? DecisionKind::kJoin : DecisionKind::kDrain};
  proposal.moves = moves_for(chunk_bytes_, box_of_chunk_, rates_of_active(),
                             joining.empty() ? Leveling::kNone : Leveling::kFull);
  std::fill(joined_.begin(), joined_.end(), false);
  if (proposal.moves.empty()) {
    hold(joining + " joins but gets no chunks, because the other boxes are no busier");
    return std::nullopt;
  }
  proposal.stall_seconds = stall_ratio_ * stall_unit_seconds(proposal.moves);
  proposal.reason = leaving.empty() ? "" : leaving + " must lose its chunks";
  if (!joining.empty()) proposal.reason += (leaving.empty() ? "" : "; ") + joining + " joins";
  proposal.reason += ": " + describe_moves(proposal) + " move, in proportion to the boxes' rates";
  return proposal;
}

std::optional<Proposal> Rebalancer::exploit() {
  const std::vector<double> rates = rates_of_active();
  const size_t slowest = slowest_of(bytes_, rates);
  const size_t fastest = fastest_of(bytes_, rates);
  std::vector<double> slow_busy;
  std::vector<double> fast_busy;
  for (const Observation& seen : window_) {
    slow_busy.push_back(seen.boxes[slowest].busy_seconds);
    fast_busy.push_back(seen.boxes[fastest].busy_seconds);
  }
  const std::string pair = boxes_[slowest].name + " is busy " +
                           milliseconds(moments_of(slow_busy).mean) + " per iteration, " +
                           boxes_[fastest].name + " " + milliseconds(moments_of(fast_busy).mean);
  const Interval apart = difference_of_means(fast_busy, slow_busy);
  if (!apart.above_zero()) {
    hold(pair + ": no significant difference");
    return std::nullopt;
  }
  Proposal proposal{.kind = DecisionKind::kExploit,
                    .moves = moves_for(chunk_bytes_, box_of_chunk_, rates, Leveling::kFull)};
  // Among many equal boxes one always looks slow. Therefore only the statistically certain share of
  // the difference counts.
  PBOX_DCHECK(apart.low > 0 && apart.low <= apart.high);
  const double certain = apart.low / ((apart.low + apart.high) / 2);
  const double gain = certain * (slowest_seconds(bytes_, rates) -
                                 slowest_seconds(bytes_after(proposal.moves), rates));
  proposal.stall_seconds = stall_ratio_ * stall_unit_seconds(proposal.moves);
  const std::string expected = pair + "; shares by measured rate would save at least " +
                               milliseconds(gain) + " of " +
                               milliseconds(moments_of(iteration_seconds()).mean) + " for " +
                               milliseconds(proposal.stall_seconds) + " of migration";
  if (gain < kGainMin * moments_of(iteration_seconds()).mean) {
    hold(expected + ": too little");
    return std::nullopt;
  }
  if (gain * kHorizonObservations <= proposal.stall_seconds) {
    hold(expected + ": not earned back in " +
         std::to_string(static_cast<int>(kHorizonObservations)) + " iterations");
    return std::nullopt;
  }
  proposal.reason = expected + ": " + describe_moves(proposal) + " move";
  return proposal;
}

std::optional<Proposal> Rebalancer::explore() {
  const std::vector<BoxIndex> active = boxes_in(BoxState::kActive);
  const std::vector<BoxIndex> standby = boxes_in(BoxState::kStandby);
  std::vector<DecisionKind> kinds;
  if (!standby.empty()) kinds.push_back(DecisionKind::kScaleOut);
  if (active.size() > 1) kinds.push_back(DecisionKind::kScaleIn);
  if (active.size() > 1) kinds.push_back(DecisionKind::kExploreMove);
  if (kinds.empty()) {
    hold("nothing to explore: there is one active box and none on standby");
    return std::nullopt;
  }
  std::optional<Proposal> proposal;
  const DecisionKind kind = kinds[rng_.below(kinds.size())];
  if (kind == DecisionKind::kExploreMove) {
    proposal = random_move();
  } else {
    const auto& candidates = kind == DecisionKind::kScaleOut ? standby : active;
    proposal = scaling(kind, candidates[rng_.below(candidates.size())]);
  }
  if (!proposal || proposal->moves.empty()) {
    hold(std::string(to_string(kind)) + ": chosen at random, but no chunk would move");
    return std::nullopt;
  }
  // Doing and undoing it may cost at most what the smallest useful gain would earn within the
  // horizon.
  proposal->stall_seconds = stall_ratio_ * stall_unit_seconds(proposal->moves);
  const double worth = kGainMin * moments_of(iteration_seconds()).mean * kHorizonObservations;
  if (2 * proposal->stall_seconds > worth) {
    hold(std::string(to_string(kind)) + ": chosen at random, but doing and undoing it would cost " +
         milliseconds(2 * proposal->stall_seconds) + ", and it may gain " + milliseconds(worth));
    return std::nullopt;
  }
  return proposal;
}

std::optional<Proposal> Rebalancer::random_move() {
  const std::vector<BoxIndex> active = boxes_in(BoxState::kActive);
  PBOX_CHECK(active.size() > 1);
  const size_t donor_at = rng_.below(active.size());
  const BoxIndex donor = active[donor_at];
  const BoxIndex taker = active[(donor_at + 1 + rng_.below(active.size() - 1)) % active.size()];
  if (bytes_[donor] == 0) return std::nullopt;
  Proposal proposal{.kind = DecisionKind::kExploreMove};
  double left = kRandomMoveShare * bytes_[donor];
  const size_t start = rng_.below(chunk_bytes_.size());
  for (size_t i = 0; i < chunk_bytes_.size() && left > 0; ++i) {
    const auto chunk = static_cast<uint32_t>((start + i) % chunk_bytes_.size());
    if (box_of_chunk_[chunk] != donor) continue;
    proposal.moves.push_back({chunk, donor, taker});
    left -= chunk_bytes_[chunk];
  }
  proposal.reason = "exploring: " + describe_moves(proposal) + " move from " + boxes_[donor].name +
                    " to " + boxes_[taker].name + ", chosen at random";
  return proposal;
}

Proposal Rebalancer::scaling(DecisionKind kind, BoxIndex box) const {
  const bool out = kind == DecisionKind::kScaleOut;
  Proposal proposal{.kind = kind};
  std::vector<double> rates = rates_of_active();
  rates[box] = out ? bytes_per_second()[box] : 0;
  proposal.change = out ? BoxChange{box, BoxState::kStandby, BoxState::kActive}
                        : BoxChange{box, BoxState::kActive, BoxState::kStandby};
  proposal.moves =
      moves_for(chunk_bytes_, box_of_chunk_, rates, out ? Leveling::kFull : Leveling::kNone);
  proposal.reason = "exploring: " + boxes_[box].name + (out ? " joins, " : " goes on standby, ") +
                    describe_moves(proposal) + " move";
  return proposal;
}

// Reverses the proposal on trial, except for moves whose origin no longer takes chunks.
Proposal Rebalancer::reversed() const {
  Proposal reverse{.kind = DecisionKind::kRevert};
  PBOX_CHECK(proposal_.has_value());
  BoxIndex returns = kNoBox;
  const auto& change = proposal_->change;
  if (change && boxes_[change->box].state == change->to) {
    reverse.change = BoxChange{change->box, change->to, change->from};
    if (change->from == BoxState::kActive) returns = change->box;
  }
  for (const Move& move : proposal_->moves) {
    if (move.from == returns || boxes_[move.from].state == BoxState::kActive) {
      reverse.moves.push_back({move.chunk, move.to, move.from});
    }
  }
  reverse.stall_seconds = stall_ratio_ * stall_unit_seconds(reverse.moves);
  return reverse;
}

}  // namespace pbox::placement
