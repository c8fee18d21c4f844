#include "tests/sim/turn_check.h"

#include <algorithm>
#include <string>

#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

bool is_same(const LaneTurn& one, const LaneTurn& other) {
  return one.part == other.part && one.lane == other.lane;
}

std::string text(const std::optional<int32_t>& priority) {
  return priority ? "priority " + std::to_string(*priority) : "nothing to send";
}

}  // namespace

void TurnCheck::begin() {
  waiting_.clear();
  sending_.reset();
  next_.reset();
  lanes_ = extra_bursts_ = 0;
}

void TurnCheck::call(const LaneTurn& lane) {
  if (sending_ && is_same(*sending_, lane)) {
    ++extra_bursts_;
    return;
  }
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const LaneTurn& one) { return is_same(one, lane); });
  require(found != waiting_.end(), "order: a lane has two turns in one pass");
  const LaneTurn called = *found;
  waiting_.erase(found);
  for (const LaneTurn& other : waiting_) {
    require(!(called.priority < other.priority), [&] {
      return "order: a lane of part " + std::to_string(called.part) + " with " +
             text(called.priority) + " sends before a lane of part " + std::to_string(other.part) +
             " with " + text(other.priority);
    });
  }
  // A pass allows as many additional bursts as it has lanes. After these no lane may go on.
  const bool may_go_on = extra_bursts_ < lanes_ + 1 + waiting_.size();
  require(!sending_ || !next_ || !(called.priority < *next_) || !may_go_on, [&] {
    return "order: a lane with " + text(next_) + " gives its turn to one with " +
           text(called.priority);
  });
  sending_ = called;
  ++lanes_;
}

void TurnCheck::end() const {
  require(waiting_.empty(), "order: a lane has no turn in a pass");
}

}  // namespace pbox::sim
