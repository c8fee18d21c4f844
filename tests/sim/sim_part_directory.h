// What the boxes of a rack agree on, and what each of them knows of it by now: which box has which
// job. The store of a cluster as its promises go: changes are made one after the other, each on top
// of the last, and every box hears of them in order, sooner or later.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"

namespace pbox::sim {

class SimPartDirectory {
 public:
  SimPartDirectory(EventQueue& queue, const Options& options);

  // `on_change`: the box has heard of something.
  void attach(HostId box, std::function<void()> on_change);

  HostId owner(const std::string& job) const { return jobs_.at(job).owner; }
  // A copy of a part may not.
  bool may_move(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found != jobs_.end() && found->second.may_move;
  }
  // Whether the box is there, as all others hear at once.
  bool is_registered(HostId box) const { return registered_.contains(box); }
  void set_registered(HostId box, bool is_there) {
    if (is_there) {
      registered_.insert(box);
    } else {
      registered_.erase(box);
    }
  }
  // As the box has heard; nothing: it has yet to hear of the job.
  std::optional<HostId> known_owner(HostId box, const std::string& job) const;
  // A box that starts knows nothing at first.
  void forget(HostId box);

  void move(const std::string& job, HostId to);
  // Only if `from` still has it, whatever the asking box knows.
  void give_away(const std::string& job, HostId from, HostId to) {
    if (jobs_.at(job).owner == from) move(job, to);
  }
  // The box hears nothing until then.
  void cut_off(HostId box, uint64_t until_ns);
  uint64_t moves() const { return moves_; }

 private:
  struct Job {
    HostId owner = 0;
    bool may_move = false;
    std::vector<HostId> history;  // by revision
  };
  struct View {
    std::function<void()> on_change = [] {};
    std::map<std::string, size_t> revisions;  // heard of, by job
    uint64_t cut_off_until_ns = 0;
    uint64_t starts = 0;
  };

  void tell(HostId box, const std::string& job);

  EventQueue& queue_;
  std::map<std::string, Job> jobs_;
  std::map<HostId, View> views_;
  std::set<HostId> registered_;
  uint64_t latency_ns_;
  uint64_t moves_ = 0;
  Rng rng_;
};

// "box1:9541", as workers are told, and back.
std::string address_of_box(HostId box);
HostId box_at(const std::string& address);

}  // namespace pbox::sim
