// The cluster's map of which box has which job, and each box's current view of it. It behaves as a
// cluster store promises: changes are made one after the other, each on top of the last, and every
// box hears of all of them in order, sooner or later.
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

  // `on_change` is called when the box has heard of a change.
  void attach(HostId box, std::function<void()> on_change);

  HostId owner(const std::string& job) const { return jobs_.at(job).owner; }
  // False for a backup copy of a part.
  bool may_move(const std::string& job) const {
    const auto found = jobs_.find(job);
    return found != jobs_.end() && found->second.may_move;
  }
  // Whether the box is registered. All boxes learn of a change at once.
  bool is_registered(HostId box) const { return registered_.contains(box); }
  void set_registered(HostId box, bool is_there) {
    if (is_there) {
      registered_.insert(box);
    } else {
      registered_.erase(box);
    }
  }
  // Returns the owner in this box's view; nothing if it has not heard of the job yet.
  std::optional<HostId> known_owner(HostId box, const std::string& job) const;
  // Resets the view of a box that starts.
  void forget(HostId box);

  void move(const std::string& job, HostId to);
  // Moves the job only if `from` still has it, whatever the caller's view says.
  void give_away(const std::string& job, HostId from, HostId to) {
    if (jobs_.at(job).owner == from) move(job, to);
  }
  // The box hears of no change until this time.
  void cut_off(HostId box, uint64_t until_ns);
  uint64_t moves() const { return moves_; }

 private:
  struct Job {
    HostId owner = 0;
    bool may_move = false;
    std::vector<HostId> history;  // owners, by revision
  };
  struct View {
    std::function<void()> on_change = [] {};
    std::map<std::string, size_t> revisions;  // the latest revision heard of, by job
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

// The address that workers are told, for example "box1:9541", and its inverse.
std::string address_of_box(HostId box);
HostId box_at(const std::string& address);

}  // namespace pbox::sim
