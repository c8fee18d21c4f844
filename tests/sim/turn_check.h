// Checks the order in which a process's lanes send. In each pass every lane has a turn, the lane
// with the most urgent packet first, and a lane that goes on with more urgent packets than the next
// one has keeps its turn.
#pragma once

#include <optional>
#include <vector>

#include "worker/protocol/send_turns.h"

namespace pbox::sim {

class TurnCheck {
 public:
  // A pass begins.
  void begin();
  // The lane waits in this pass, with the priority of its next packet.
  void add(const worker::SendTurns::Lane& lane) { waiting_.push_back(lane); }
  // The lane's turn has come, or it goes on.
  void call(const worker::SendTurns::Lane& lane);
  // The priority of what that lane could send next; nothing if it is blocked or done.
  void answer(std::optional<int32_t> next) { next_ = next; }
  void end() const;

 private:
  std::vector<worker::SendTurns::Lane> waiting_;
  std::optional<worker::SendTurns::Lane> sending_;
  std::optional<int32_t> next_;
  size_t lanes_ = 0;         // that have had a turn
  size_t extra_bursts_ = 0;  // of lanes that went on
};

}  // namespace pbox::sim
