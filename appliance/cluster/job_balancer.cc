#include "appliance/cluster/job_balancer.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace pbox::cluster {
namespace {

using placement::BoxState;
using placement::DecisionKind;

// The rebalancer counts sizes in 32 bits. All parts have the same size, so a larger part is counted
// in bigger units.
constexpr double kPartUnitsMax = 1u << 30;
// Boxes measure only after their workers have reported, so a few steps without a new observation
// are normal.
constexpr uint32_t kStepsWithoutMin = 4;

const char* to_string(BoxState state) {
  switch (state) {
    case BoxState::kActive: return "active";
    case BoxState::kStandby: return "standby";
    case BoxState::kDraining: return "draining";
  }
  return "?";
}

double mean(const std::deque<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Returns the mean rate of the boxes that declare one; 1 if none does, which makes all boxes equal.
double usual_rate(const std::vector<BalancedBox>& boxes) {
  double sum = 0;
  size_t known = 0;
  for (const BalancedBox& box : boxes) {
    sum += box.bytes_per_second;
    known += box.bytes_per_second > 0 ? 1 : 0;
  }
  return known > 0 ? sum / static_cast<double>(known) : 1;
}

placement::Box rebalancer_box(const BalancedBox& box, double usual) {
  return {.name = box.name,
          .bytes_per_second = box.bytes_per_second > 0 ? box.bytes_per_second : usual,
          .state = box.takes_parts ? BoxState::kActive : BoxState::kDraining};
}

}  // namespace

size_t JobBalancer::index_of(const std::string& box) const {
  return static_cast<size_t>(std::find(names_.begin(), names_.end(), box) - names_.begin());
}

void JobBalancer::begin(const PartMap& map, const std::vector<BalancedBox>& boxes) {
  names_.clear();
  takes_parts_.clear();
  std::vector<placement::Box> list;
  for (const BalancedBox& box : boxes) {
    names_.push_back(box.name);
    takes_parts_.push_back(box.takes_parts);
    list.push_back(rebalancer_box(box, usual_rate(boxes)));
  }
  std::vector<placement::BoxIndex> box_of_part;
  for (const std::string& box : map.boxes) {
    const size_t index = index_of(box);
    PBOX_CHECK(index < names_.size());  // obstacle() has found every owner
    box_of_part.push_back(static_cast<placement::BoxIndex>(index));
  }
  const auto unit = static_cast<uint32_t>(std::clamp(map.bytes_per_part(), 1.0, kPartUnitsMax));
  rebalancer_.emplace(
      std::vector<uint32_t>(map.boxes.size(), unit), std::move(box_of_part), std::move(list),
      placement::RebalancerOptions{.seed = ++seed_, .explore_share = explore_share_});
  parts_ = map.boxes;
  proposed_.reset();
  rounds_.clear();
  recent_.clear();
  busy_seconds_.assign(names_.size(), 0);
  collected_ = 0;
}

// Adds boxes that have appeared. A box that has disappeared takes no parts.
void JobBalancer::follow(const std::vector<BalancedBox>& boxes) {
  std::vector<bool> takes(names_.size(), false);
  for (const BalancedBox& box : boxes) {
    const size_t index = index_of(box.name);
    if (index < names_.size()) {
      takes[index] = box.takes_parts;
      continue;
    }
    names_.push_back(box.name);
    takes_parts_.push_back(box.takes_parts);
    takes.push_back(box.takes_parts);
    busy_seconds_.push_back(0);
    rebalancer_->add_box(rebalancer_box(box, usual_rate(boxes)));
  }
  for (size_t index = 0; index < names_.size(); ++index) {
    if (takes[index] == takes_parts_[index]) continue;
    takes_parts_[index] = takes[index];
    rebalancer_->set_state(static_cast<placement::BoxIndex>(index),
                           takes[index] ? BoxState::kActive : BoxState::kDraining);
  }
}

// Returns what prevents the job from being rebalanced, now or permanently; nullopt if nothing does.
std::optional<std::string> JobBalancer::obstacle(const PartMap& map,
                                                 const std::vector<BalancedBox>& boxes) const {
  if (!map.may_move) {
    return "nothing: its parts cannot move (bsp with recovery none)";
  }
  for (const std::string& name : map.boxes) {
    const auto found = std::find_if(boxes.begin(), boxes.end(),
                                    [&](const BalancedBox& box) { return box.name == name; });
    if (found == boxes.end()) return "box " + name + ", which has parts but is not registered";
    if (!found->takes_parts)
      return "box " + name +
             " to lose its parts: it drains, the job avoids it, or it cannot serve the job";
  }
  return std::nullopt;
}

std::optional<placement::Observation> JobBalancer::observation(
    const PartMap& map, int64_t map_revision, const std::map<std::string, JobLoads>& loads) {
  placement::Observation seen;
  PBOX_DCHECK(takes_parts_.size() == names_.size());
  seen.boxes.resize(names_.size());
  std::map<std::string, uint64_t> rounds;
  std::vector<double> busy(names_.size(), 0);
  double pause = 0;
  double newest = 0;  // most rounds that a box has finished since its load was last used
  std::string missing;
  for (size_t index = 0; index < names_.size(); ++index) {
    const std::string& name = names_[index];
    if (std::find(map.boxes.begin(), map.boxes.end(), name) == map.boxes.end()) continue;
    const auto box = loads.find(name);
    const JobLoad* load = nullptr;
    if (box != loads.end()) {
      const auto found = box->second.find(job_);
      if (found != box->second.end()) load = &found->second;
    }
    const bool is_new = load != nullptr && load->map_revision == map_revision && load->rounds > 0 &&
                        load->rounds != rounds_[name];
    if (!is_new) {
      missing += (missing.empty() ? "" : ", ") + name;
      continue;
    }
    rounds[name] = load->rounds;
    const auto used = rounds_.find(name);
    if (used != rounds_.end() && used->second > 0 && used->second < load->rounds) {
      newest = std::max(newest, static_cast<double>(load->rounds - used->second));
    }
    seen.boxes[index] = {load->bytes, load->busy_seconds};
    busy[index] = load->busy_seconds;
    seen.iteration_seconds = std::max(seen.iteration_seconds, load->iteration_seconds);
    pause = std::max(pause, load->pause_seconds);
  }
  if (!missing.empty()) {
    waits_for_ = "newer measurements under this part map from " + missing;
    return std::nullopt;
  }
  // How many rounds the first observation under a map covers is unknown.
  if (!proposed_ && newest > 0) seen.rounds = newest;
  rounds_ = std::move(rounds);
  busy_seconds_ = std::move(busy);
  pause_seconds_ = pause;
  iteration_seconds_ = seen.iteration_seconds;
  return seen;
}

std::optional<JobBalancer::Proposal> JobBalancer::step(const PartMap& map, int64_t map_revision,
                                                       const std::vector<BalancedBox>& boxes,
                                                       const std::map<std::string, JobLoads>& loads,
                                                       uint64_t unix_s) {
  if (const auto why = obstacle(map, boxes)) {
    waits_for_ = *why;
    rebalancer_.reset();
    return std::nullopt;
  }
  if (rebalancer_ && proposed_ && map.boxes == parts_) {
    waits_for_ = "the proposed part map to become visible";
    return std::nullopt;
  }
  const bool is_ours = rebalancer_ && map.boxes == (proposed_ ? proposed_->boxes : parts_);
  if (!is_ours) begin(map, boxes);
  follow(boxes);
  const auto seen = observation(map, map_revision, loads);
  if (!seen) {
    ++steps_without_;
    return std::nullopt;
  }
  waits_for_.clear();
  steps_without_ = 0;
  ++observations_;
  if (proposed_) {
    parts_ = map.boxes;
    proposed_.reset();
    before_seconds_ = mean(recent_);
    recent_.clear();
    rebalancer_->carried_out(pause_seconds_);
  }
  const auto moves = rebalancer_->observe(*seen);
  measure_gain(*seen);
  collect(unix_s);
  if (!moves) return std::nullopt;
  Proposal proposal{map, moves->moves.size(), placement::to_string(moves->kind), moves->reason};
  for (const placement::Move& move : moves->moves) {
    PBOX_CHECK(move.chunk < proposal.map.boxes.size() && move.to < names_.size());
    proposal.map.boxes[move.chunk] = names_[move.to];
  }
  proposed_ = proposal.map;
  return proposal;
}

void JobBalancer::measure_gain(const placement::Observation& seen) {
  recent_.push_back(seen.iteration_seconds);
  if (recent_.size() > placement::kTrialMax) recent_.pop_front();
  if (before_seconds_ > 0) last_gain_ = 1 - mean(recent_) / before_seconds_;
  if (recent_.size() == placement::kTrialMax) before_seconds_ = 0;
}

void JobBalancer::committed() {
  PBOX_CHECK(!proposed_ || proposed_->boxes.size() == parts_.size());
  for (size_t part = 0; part < parts_.size(); ++part) {
    parts_moved_ += proposed_ && proposed_->boxes[part] != parts_[part] ? 1 : 0;
  }
}

void JobBalancer::refused(const std::string& why, uint64_t unix_s) {
  if (!rebalancer_ || !proposed_) return;
  proposed_.reset();
  rebalancer_->abandoned(why);
  collect(unix_s);
}

// A hold replaces the hold before it, both in the rebalancer's list and in this one.
void JobBalancer::collect(uint64_t unix_s) {
  uint64_t made = 0;
  for (size_t kind = 0; kind < placement::kDecisionKindCount; ++kind) {
    made += rebalancer_->decision_count(static_cast<DecisionKind>(kind));
  }
  PBOX_DCHECK(made >= collected_);
  const auto& list = rebalancer_->decisions();
  const size_t count = std::min(static_cast<size_t>(made - collected_), list.size());
  collected_ = made;
  for (size_t index = list.size() - count; index < list.size(); ++index) {
    BalanceDecision decision{unix_s, list[index].kind, list[index].reason};
    decision.repeats = decision.kind == DecisionKind::kHold && !decisions_.empty() &&
                       decisions_.back().kind == DecisionKind::kHold;
    if (decision.repeats) decisions_.pop_back();
    fresh_.push_back(decision);
    decisions_.push_back(std::move(decision));
    if (decisions_.size() > placement::kDecisionsKept) decisions_.pop_front();
  }
}

BalanceView JobBalancer::view() const {
  BalanceView view{.job = job_,
                   .state = "waiting",
                   .waits_for = waits_for_,
                   .iteration_seconds = iteration_seconds_,
                   .observations = observations_,
                   .parts_moved = parts_moved_,
                   .last_gain = last_gain_,
                   .decisions = decisions_};
  if (!rebalancer_) return view;
  if (steps_without_ < kStepsWithoutMin) {
    view.state = rebalancer_->is_judging() ? "judging" : "observing";
    view.waits_for.clear();
  }
  if (proposed_) view.state = "migrating";
  const auto rates = rebalancer_->bytes_per_second();
  PBOX_DCHECK(rates.size() == names_.size() && busy_seconds_.size() == names_.size());
  for (size_t index = 0; index < names_.size(); ++index) {
    const auto parts = std::count(parts_.begin(), parts_.end(), names_[index]);
    view.boxes.push_back({.name = names_[index],
                          .state = to_string(rebalancer_->boxes()[index].state),
                          .parts = static_cast<size_t>(parts),
                          .busy_seconds = busy_seconds_[index],
                          .bytes_per_second = rates[index]});
  }
  return view;
}

}  // namespace pbox::cluster
