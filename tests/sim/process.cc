#include "tests/sim/process.h"

#include <algorithm>

#include "tests/sim/member.h"
#include "worker/protocol/send_turns.h"

namespace pbox::sim {
namespace {

constexpr uint64_t kProcessTurnNs = 2'000;
constexpr uint64_t kSlowTurnNs = 200'000;

}  // namespace

struct Process::Turns : worker::SendTurns {};

Process::Process(Rack& rack, HostId host)
    : rack_(rack),
      host_(host),
      thread_(rack.queue, [this] { turn(); }),
      turns_(std::make_unique<Turns>()) {}

Process::~Process() = default;

void Process::on_connected(ConnectionId id) {
  for (Member* member : members_) member->on_connected(id);
}

void Process::on_control_message(ConnectionId id, const std::string& body) {
  for (Member* member : members_) member->on_control_message(id, body);
}

void Process::on_closed(ConnectionId id, const std::string& reason) {
  for (Member* member : members_) member->on_closed(id, reason);
}

// Does one round of the client's I/O thread.
void Process::turn() {
  const uint64_t now_ns = thread_.now_ns();
  turns_->begin();
  check_.begin();
  for (size_t part = 0; part < members_.size(); ++part) {
    for (const LaneTurn& lane : members_[part]->begin_turn(part, now_ns)) {
      turns_->add({lane.part, lane.lane, lane.priority});
      if (rack_.checks) check_.add(lane);
    }
  }
  turns_->run([&](const worker::SendTurns::Lane& lane) {
    if (rack_.checks) check_.call({lane.part, lane.lane, lane.priority});
    const std::optional<int32_t> next = members_[lane.part]->send(lane.lane, now_ns);
    check_.answer(next);
    return next;
  });
  if (rack_.checks) check_.end();
  uint64_t next_ns = UINT64_MAX;
  for (Member* member : members_) {
    bool is_busy = false;
    next_ns = std::min(next_ns, member->end_turn(now_ns, is_busy));
    if (is_busy) next_ns = std::min(next_ns, now_ns + (is_slow_ ? kSlowTurnNs : kProcessTurnNs));
  }
  if (next_ns != UINT64_MAX) thread_.wake_at(std::max(next_ns, now_ns + 1));
}

}  // namespace pbox::sim
