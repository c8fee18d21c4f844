// The proposals that the rebalancer may make, and their expected effect.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

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

std::vector<double> Rebalancer::log_iterations(size_t samples) const {
  PBOX_DCHECK(samples <= window_.size());
  std::vector<double> logs;
  for (size_t index = window_.size() - samples; index < window_.size(); ++index) {
    logs.push_back(window_[index].log_iteration);
  }
  return logs;
}

double Rebalancer::rounds_of(size_t samples) const {
  double rounds = 0;
  for (size_t index = window_.size() - samples; index < window_.size(); ++index) {
    rounds += window_[index].rounds;
  }
  return rounds;
}

double Rebalancer::slowest_seconds(const std::vector<double>& bytes,
                                   const std::vector<double>& bytes_per_second) const {
  const size_t slowest = slowest_of(bytes, bytes_per_second);
  PBOX_DCHECK(bytes_per_second[slowest] > 0);
  return traffic_ * bytes[slowest] / bytes_per_second[slowest];
}

// Returns the time of an iteration if each box had exactly its share by rate.
double Rebalancer::levelled_seconds(const std::vector<double>& bytes_per_second) const {
  const double bytes = std::accumulate(bytes_.begin(), bytes_.end(), 0.0);
  const double rate = std::accumulate(bytes_per_second.begin(), bytes_per_second.end(), 0.0);
  PBOX_DCHECK(rate > 0);
  return traffic_ * bytes / rate;
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
    pause_ = kTrialMax;
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
  std::vector<double> spare = rates_of_active();
  for (size_t box = 0; box < boxes_.size(); ++box) {
    if (bytes_[box] > 0) spare[box] = 0;
    spare[box] /= traffic_;
  }
  const auto found = find_imbalance(window_, bytes_, spare, kSamplesMin * patience_, kExploitError);
  if (!found) {
    if (explains()) hold("no box is certainly slower than another");
    return std::nullopt;
  }
  measure(found->samples);
  const std::vector<double> rates = rates_of_active();
  std::vector<double> iterations = log_iterations(found->samples);
  const double iteration_seconds = std::exp(median_of(iterations));
  std::string seen = boxes_[found->slowest].name + " is busy " +
                     milliseconds(found->seconds[found->slowest]) + " per iteration, " +
                     boxes_[found->fastest].name + " " +
                     milliseconds(found->seconds[found->fastest]) + " (" +
                     std::to_string(found->samples) + " observations)";
  const double worth = kGainMin * iteration_seconds;
  const double now = slowest_seconds(bytes_, rates);
  // No map is faster than one that could divide chunks.
  if (now - levelled_seconds(rates) < worth) {
    if (explains()) hold(seen + ": shares by measured rate would save too little");
    return std::nullopt;
  }
  Proposal proposal{.kind = DecisionKind::kExploit,
                    .moves = moves_for(chunk_bytes_, box_of_chunk_, rates, Leveling::kFull)};
  const std::vector<double> after = bytes_after(proposal.moves);
  // Among many boxes one always looks slow. Therefore only the certain difference counts.
  std::vector<double> certain_rates = rates;
  for (size_t box = 0; box < boxes_.size(); ++box) {
    if (bytes_[box] > 0) certain_rates[box] *= found->seconds[box] / found->certain_seconds[box];
  }
  const double gain =
      slowest_seconds(bytes_, certain_rates) - slowest_seconds(after, certain_rates);
  proposal.stall_seconds = stall_ratio_ * stall_unit_seconds(proposal.moves);
  seen += "; shares by measured rate would save at least " + milliseconds(gain) + " of " +
          milliseconds(iteration_seconds) + " for " + milliseconds(proposal.stall_seconds) +
          " of migration";
  if (gain <= 0 || now - slowest_seconds(after, rates) < worth) {
    if (explains()) hold(seen + ": too little");
    return std::nullopt;
  }
  // The migration counts twice, because a move that turns out wrong has to be undone.
  if (gain * rounds_of(found->samples) < 2 * proposal.stall_seconds) {
    if (explains()) hold(seen + ": not earned back yet");
    return std::nullopt;
  }
  before_ = std::move(iterations);
  proposal.reason = seen + ": " + describe_moves(proposal) + " move";
  return proposal;
}

// Returns an exploration whose expected cost is within the share; nullopt if there is none.
std::optional<Proposal> Rebalancer::explore() {
  if (explore_share_ == 0 || window_.size() < kTrialMax) return std::nullopt;
  auto proposal = draw_exploration();
  if (!proposal || proposal->moves.empty()) {
    draw_ = rng_.next();
    return std::nullopt;
  }
  proposal->stall_seconds = stall_ratio_ * stall_unit_seconds(proposal->moves);
  const double cost = 2 * proposal->stall_seconds + trial_seconds(*proposal);
  if (exploring_seconds_ + cost > explore_share_ * job_seconds_) return std::nullopt;
  draw_ = rng_.next();
  before_ = log_iterations(window_.size());
  return proposal;
}

// Returns the exploration that draw_ stands for; nullopt if there is nothing to explore.
std::optional<Proposal> Rebalancer::draw_exploration() {
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
  Rng rng(draw_);
  const DecisionKind kind = kinds[rng.below(kinds.size())];
  if (kind == DecisionKind::kExploreMove) return random_move(rng);
  const auto& candidates = kind == DecisionKind::kScaleOut ? standby : active;
  return scaling(kind, candidates[rng.below(candidates.size())]);
}

// Returns what a trial of this exploration costs if it does not help, without its migrations. An
// exploration that should cost nothing by the measured rates is expected to cost kGainMin.
double Rebalancer::trial_seconds(const Proposal& exploration) const {
  std::vector<double> rates = rates_of_active();
  const double now = slowest_seconds(bytes_, rates);
  if (const auto& change = exploration.change) {
    rates[change->box] = change->to == BoxState::kActive ? bytes_per_second()[change->box] : 0;
  }
  const double slower = slowest_seconds(bytes_after(exploration.moves), rates) - now;
  const double least = kGainMin * std::exp(median_of(log_iterations(window_.size())));
  return std::max(slower, least) * rounds_of(kTrialMax);
}

Proposal Rebalancer::random_move(Rng& rng) const {
  const std::vector<BoxIndex> active = boxes_in(BoxState::kActive);
  PBOX_CHECK(active.size() > 1);
  const size_t donor_at = rng.below(active.size());
  const BoxIndex donor = active[donor_at];
  const BoxIndex taker = active[(donor_at + 1 + rng.below(active.size() - 1)) % active.size()];
  Proposal proposal{.kind = DecisionKind::kExploreMove};
  double left = kRandomMoveShare * bytes_[donor];
  const size_t start = rng.below(chunk_bytes_.size());
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
