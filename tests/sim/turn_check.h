// Checks the order in which a process's lanes send. In each pass every lane has a turn, the lane
// with the most urgent packet first, and a lane that goes on with more urgent packets than the next
// one has keeps its turn.
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
  // A pass begins.
  void begin();
  // The lane waits in this pass, with the priority of its next packet.
  void add(const LaneTurn& lane) { waiting_.push_back(lane); }
  // The lane's turn has come, or it goes on.
  void call(const LaneTurn& lane);
  // The priority of what that lane could send next; nothing if it is blocked or done.
  void answer(std::optional<int32_t> next) { next_ = next; }
  void end() const;

 private:
  std::vector<LaneTurn> waiting_;
  std::optional<LaneTurn> sending_;
  std::optional<int32_t> next_;
  size_t lanes_ = 0;         // that have had a turn
  size_t extra_bursts_ = 0;  // of lanes that went on
};

}  // namespace pbox::sim
