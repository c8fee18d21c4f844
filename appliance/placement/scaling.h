// Decides when a cluster needs another box, and when it can do without one. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pbox::placement {

// A registered box, as its newest report describes it.
struct ScaledBox {
  std::string name = {};
  bool has_reported = true;  // if not, nothing but the name is known
  bool takes_parts = true;   // neither drains nor is a standby
  bool is_standby = false;   // empty or being emptied, until the cluster needs it
  bool leads = false;
  uint64_t parts = 0;  // over all jobs
  double memory_bytes = 0;
  double memory_used_bytes = 0;    // also by copies of other boxes' parts
  double link_bytes_per_s = 0;     // in one direction; 0: unknown
  double traffic_bytes_per_s = 0;  // in the busier direction
  uint64_t refusals = 0;           // parts that it had no room for since it started
};

struct ScaleRules {
  // Shares of the capacity of all boxes that take parts, in (0, 1]. `in_below` < `out_above`: the
  // distance keeps the cluster from emptying a box and needing it again in turn.
  double out_above = 0.8;
  double in_below = 0.5;   // relates to the boxes that would remain
  uint32_t boxes_min = 1;  // fewest boxes that take parts
  double after_s = 60;     // how long a condition must hold, and least time between two decisions
};

struct ScaleDecision {
  enum class Kind : uint8_t {
    kUseStandby,  // `box`, a registered standby, takes parts again
    kAskForBox,   // there is no standby: somebody has to start a box
    kEmpty,       // `box` becomes a standby
  };
  Kind kind = Kind::kAskForBox;
  std::string box = {};  // empty for kAskForBox
  std::string reason = {};
};
inline constexpr size_t kScaleKinds = 3;
const char* to_string(ScaleDecision::Kind kind);

// Decides by two thresholds and by the time for which a condition must hold. A refusal counts at
// once, because a job or a part has already found no room.
class ScalePolicy {
 public:
  explicit ScalePolicy(const ScaleRules& rules);

  // To be called about once a second, with all registered boxes. `now_s`: any clock that does not
  // go back. The caller carries the decision out before the next call, or asks again later.
  std::optional<ScaleDecision> step(const std::vector<ScaledBox>& boxes, double now_s);

  // Returns the share of memory or of links in use, whichever is larger, over all boxes that take
  // parts, as of the last step.
  double pressure() const { return pressure_; }
  // Returns whether the boxes that take parts are too few, as of the last step.
  bool is_short() const { return is_short_; }

 private:
  std::optional<ScaleDecision> step_known(const std::vector<ScaledBox>& boxes, size_t registered,
                                          double now_s);
  uint64_t new_refusals(const std::vector<ScaledBox>& boxes);
  std::optional<ScaleDecision> grow(const std::vector<ScaledBox>& boxes, size_t registered,
                                    double now_s, std::string reason);
  std::optional<ScaleDecision> shrink(const std::vector<ScaledBox>& boxes, double now_s);

  ScaleRules rules_;
  double pressure_ = 0;
  bool is_short_ = false;
  std::map<std::string, uint64_t> refusals_;  // by box, as of the last step
  // Times since which the boxes are too few, or too many; unset if they are not.
  std::optional<double> short_since_, spare_since_;
  std::optional<double> refused_at_;  // time of the newest refusal; unset after a decision
  std::optional<double> decided_at_;
  // Set while a box that was asked for has not registered: when it was asked for, and how many
  // boxes were registered then.
  std::optional<double> asked_at_;
  size_t boxes_when_asked_ = 0;
};

}  // namespace pbox::placement
