// Checks the order in which a process's lanes send. In each pass every lane has a turn, and the
// lane with the most urgent packet is first. A lane keeps its turn while its packets are more
// urgent than those of the next lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pbox::sim {

// A lane that may send in a pass: its part in the process, its number there, and the priority of
// its next packet; nothing if there seems to be none.
struct LaneTurn {
  size_t part = 0;
  uint32_t lane = 0;
  std::optional<int32_t> priority = {};
};

class TurnCheck {
 public:
  // Called when a pass begins.
  void begin();
  // Called for each lane that waits in this pass, with the priority of its next packet.
  void add(const LaneTurn& lane) { waiting_.push_back(lane); }
  // Called when the lane sends a burst: its turn begins, or it keeps its turn.
  void call(const LaneTurn& lane);
  // Called with the priority of what that lane could send next; nothing if it is blocked or done.
  void answer(std::optional<int32_t> next) { next_ = next; }
  void end() const;

 private:
  std::vector<LaneTurn> waiting_;
  std::optional<LaneTurn> sending_;
  std::optional<int32_t> next_;
  size_t lanes_ = 0;         // number of lanes that have had a turn
  size_t extra_bursts_ = 0;  // number of bursts of lanes that went on
};

}  // namespace pbox::sim
