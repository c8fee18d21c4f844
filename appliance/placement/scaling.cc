#include "appliance/placement/scaling.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"

namespace pbox::placement {
namespace {

// A machine takes minutes to start. If a box that was asked for has not registered after this many
// times ScaleRules::after_s, it is asked for again.
constexpr double kAskAgainAfter = 10;

struct Use {
  double memory_bytes = 0, memory_used_bytes = 0;
  double link_bytes_per_s = 0, traffic_bytes_per_s = 0;

  // Share of the capacity that is in use.
  double pressure() const {
    const double memory = memory_bytes > 0 ? memory_used_bytes / memory_bytes : 0;
    const double links = link_bytes_per_s > 0 ? traffic_bytes_per_s / link_bytes_per_s : 0;
    return std::max(memory, links);
  }
};

// Returns the use of the boxes that take parts. The capacity of `without` does not count, as if the
// others had taken over its parts.
Use use_of(const std::vector<ScaledBox>& boxes, const ScaledBox* without = nullptr) {
  Use use;
  for (const ScaledBox& box : boxes) {
    if (!box.takes_parts) continue;
    const double share = &box == without ? 0 : 1;
    use.memory_bytes += share * box.memory_bytes;
    use.memory_used_bytes += box.memory_used_bytes;
    if (box.link_bytes_per_s <= 0) continue;
    use.link_bytes_per_s += share * box.link_bytes_per_s;
    use.traffic_bytes_per_s += box.traffic_bytes_per_s;
  }
  return use;
}

std::string percent(double share) {
  return std::to_string(std::lround(100 * share)) + " %";
}

size_t takers(const std::vector<ScaledBox>& boxes) {
  return static_cast<size_t>(
      std::count_if(boxes.begin(), boxes.end(), [](const auto& box) { return box.takes_parts; }));
}

// Returns the box with the fewest parts; of several such boxes, one that has no copies of others'
// parts, and one that does not lead.
const ScaledBox* emptiest(const std::vector<ScaledBox>& boxes) {
  const ScaledBox* best = nullptr;
  const auto rank = [](const ScaledBox& box) {
    return std::tuple(box.parts, box.memory_used_bytes > 0, box.leads, box.name);
  };
  for (const ScaledBox& box : boxes) {
    if (box.takes_parts && (best == nullptr || rank(box) < rank(*best))) best = &box;
  }
  return best;
}

std::vector<ScaledBox>::const_iterator first_standby(const std::vector<ScaledBox>& boxes) {
  return std::find_if(boxes.begin(), boxes.end(),
                      [](const ScaledBox& box) { return box.is_standby; });
}

// Returns the time since which the condition has held without a break; nullopt if it does not hold.
std::optional<double> since(bool holds, std::optional<double> before, double now_s) {
  if (!holds) return std::nullopt;
  return before ? before : now_s;
}

}  // namespace

const char* to_string(ScaleDecision::Kind kind) {
  switch (kind) {
    case ScaleDecision::Kind::kUseStandby: return "use_standby";
    case ScaleDecision::Kind::kAskForBox: return "ask_for_box";
    case ScaleDecision::Kind::kEmpty: return "empty";
  }
  PBOX_CHECK(false);
  return "";
}

ScalePolicy::ScalePolicy(const ScaleRules& rules) : rules_(rules) {
  PBOX_CHECK(rules.in_below < rules.out_above && rules.boxes_min >= 1);
}

// Returns the number of refusals since the last step. A box that has restarted counts from 0 again,
// so a count that has fallen adds nothing.
uint64_t ScalePolicy::new_refusals(const std::vector<ScaledBox>& boxes) {
  uint64_t count = 0;
  std::map<std::string, uint64_t> now;
  for (const ScaledBox& box : boxes) {
    const auto before = refusals_.find(box.name);
    now[box.name] = box.refusals;
    if (before != refusals_.end() && box.refusals > before->second) {
      count += box.refusals - before->second;
    }
  }
  refusals_ = std::move(now);
  return count;
}

std::optional<ScaleDecision> ScalePolicy::step(const std::vector<ScaledBox>& boxes, double now_s) {
  std::vector<ScaledBox> known = boxes;
  std::erase_if(known, [](const ScaledBox& box) { return !box.has_reported; });
  return step_known(known, boxes.size(), now_s);
}

// `registered`: the number of all boxes. A box that misses one report and then reports again is not
// the box that was asked for.
std::optional<ScaleDecision> ScalePolicy::step_known(const std::vector<ScaledBox>& boxes,
                                                     size_t registered, double now_s) {
  pressure_ = use_of(boxes).pressure();
  if (new_refusals(boxes) > 0) refused_at_ = now_s;
  if (refused_at_ && now_s - *refused_at_ > rules_.after_s) refused_at_.reset();
  const size_t count = takers(boxes);
  const bool is_short = pressure_ > rules_.out_above || count < rules_.boxes_min;
  short_since_ = since(is_short, short_since_, now_s);
  is_short_ = is_short || refused_at_.has_value();
  const ScaledBox* spare = count > rules_.boxes_min ? emptiest(boxes) : nullptr;
  const bool has_spare =
      spare != nullptr && !refused_at_ && use_of(boxes, spare).pressure() < rules_.in_below;
  spare_since_ = since(has_spare, spare_since_, now_s);
  if (asked_at_ && registered > boxes_when_asked_) {
    asked_at_.reset();
    // A machine that was switched off as a standby registers as a standby again.
    if (first_standby(boxes) != boxes.end())
      return grow(boxes, registered, now_s, "it was asked for");
  }
  if (decided_at_ && now_s - *decided_at_ < rules_.after_s) return std::nullopt;
  if (refused_at_) return grow(boxes, registered, now_s, "a part or a job found no room");
  if (short_since_ && now_s - *short_since_ >= rules_.after_s) {
    if (count < rules_.boxes_min) {
      return grow(boxes, registered, now_s,
                  std::to_string(count) + " boxes take parts, fewer than " +
                      std::to_string(rules_.boxes_min));
    }
    return grow(boxes, registered, now_s,
                percent(pressure_) + " of the boxes' capacity is in use, more than " +
                    percent(rules_.out_above));
  }
  if (spare_since_ && now_s - *spare_since_ >= rules_.after_s) return shrink(boxes, now_s);
  return std::nullopt;
}

std::optional<ScaleDecision> ScalePolicy::grow(const std::vector<ScaledBox>& boxes,
                                               size_t registered, double now_s,
                                               std::string reason) {
  const auto standby = first_standby(boxes);
  const bool has_standby = standby != boxes.end();
  if (!has_standby && asked_at_ && now_s - *asked_at_ < kAskAgainAfter * rules_.after_s) {
    return std::nullopt;
  }
  decided_at_ = now_s;
  refused_at_.reset();
  short_since_.reset();
  if (has_standby) {
    return ScaleDecision{ScaleDecision::Kind::kUseStandby, standby->name, std::move(reason)};
  }
  asked_at_ = now_s;
  boxes_when_asked_ = registered;
  return ScaleDecision{ScaleDecision::Kind::kAskForBox, "", std::move(reason)};
}

std::optional<ScaleDecision> ScalePolicy::shrink(const std::vector<ScaledBox>& boxes,
                                                 double now_s) {
  const ScaledBox* spare = emptiest(boxes);
  PBOX_CHECK(spare != nullptr);
  decided_at_ = now_s;
  spare_since_.reset();
  return ScaleDecision{ScaleDecision::Kind::kEmpty, spare->name,
                       "the other boxes would use " + percent(use_of(boxes, spare).pressure()) +
                           " of their capacity, less than " + percent(rules_.in_below)};
}

}  // namespace pbox::placement
