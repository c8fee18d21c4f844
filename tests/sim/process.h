// A process of the rack: the one I/O thread that drives a rank's members in all parts of its job,
// as libpbox's client drives them. Its parts share the host, the clock, the order in which lanes
// send, and the path to each pipeline.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "nic/wire/control.pb.h"
#include "tests/sim/host.h"
#include "tests/sim/rack.h"
#include "tests/sim/turn_check.h"
#include "worker/protocol/send_path.h"

namespace pbox::sim {

class Member;

class Process final : public ControlEnd {
 public:
  Process(Rack& rack, HostId host);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() override;

  // Adds the member of one more part of the job.
  void add(Member& member) { members_.push_back(&member); }

  // As the end of its host's connections, it passes each event on to all members. They ignore those
  // of connections that are not theirs.
  bool on_accept(ConnectionId, HostId) override { return false; }
  void on_connected(ConnectionId id) override;
  void on_control_message(ConnectionId id, const std::string& body) override;
  void on_closed(ConnectionId id, const std::string& reason) override;

  HostId host() const { return host_; }
  Thread& thread() { return thread_; }
  const Thread& thread() const { return thread_; }
  const std::shared_ptr<worker::SendPaths>& paths() const { return paths_; }
  // Registers a callback for the part map, which it gets once the map is there. Used by the members
  // of a process that asks for the map once.
  void await_map(std::function<void(const proto::PartMap&)> take) {
    await_map_.push_back(std::move(take));
  }
  void tell_map(const proto::PartMap& map) {
    for (const auto& take : std::exchange(await_map_, {})) take(map);
  }
  // A slow process takes one packet per lane and turn, and has fewer turns.
  void set_slow(bool slow) { is_slow_ = slow; }
  bool is_slow() const { return is_slow_; }

 private:
  // Defined in process.cc, so that a planted bug in SendTurns is compiled into that source only.
  struct Turns;

  void turn();

  Rack& rack_;
  HostId host_;
  Thread thread_;
  std::vector<Member*> members_;
  std::unique_ptr<Turns> turns_;
  std::shared_ptr<worker::SendPaths> paths_ = std::make_shared<worker::SendPaths>();
  TurnCheck check_;
  bool is_slow_ = false;
  std::vector<std::function<void(const proto::PartMap&)>> await_map_;
};

}  // namespace pbox::sim
