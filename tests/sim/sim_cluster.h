// The cluster of a rack: the store that its boxes share, and the part maps in it, which say which
// box has which part. In a rack without a cluster each job stays on one box.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "appliance/cluster/part_map.h"
#include "tests/sim/job_model.h"
#include "tests/sim/network.h"
#include "tests/sim/store_server.h"

namespace pbox::sim {

class SimCluster {
 public:
  SimCluster(EventQueue& queue, const Options& options);

  bool is_on() const { return options_.has_cluster; }
  StoreServer& store() { return store_; }
  // Returns the box that has the part; nothing if no map of the job is in the store.
  std::optional<HostId> owner(const JobOptions& job) const;
  // Called when a map assigns a part to a different box than before.
  using OnMove = std::function<void(const std::string& job, uint32_t part, HostId from, HostId to)>;
  void set_on_move(OnMove on_move) { on_move_ = std::move(on_move); }
  // Returns whether the box has the part now, whatever the map says.
  using Has = std::function<bool(HostId box, const std::string& job, uint32_t part)>;
  void set_has(Has has) { has_ = std::move(has); }
  // Ends the drain of a box, as an operator does, so that it takes parts again.
  void end_drain(HostId box);
  // Returns the number of jobs that have a map.
  size_t map_count() const { return maps_.size(); }

  // Called when a box reports its room. `bytes`: size of the largest part that it can take.
  void note_room(HostId box, uint64_t bytes);
  // Checks that no job on any box has an epoch that another job or start has had. `owner` names
  // box, start and job.
  void note_epoch(uint32_t epoch, const std::string& owner);
  // Checks that all parts of a job, on all boxes, draw alike which reads wait (pssp, dpssp).
  void note_draw_seed(const JobModel& job, uint64_t draw_seed);

 private:
  struct Room {
    uint64_t at_ns = 0;
    uint64_t bytes = 0;
  };

  void on_events(const StoreServer::Events& events);
  void check_parts(const std::string& job, const cluster::PartMap& map) const;
  void check_room(const std::string& job, uint32_t part, const cluster::PartMap& map,
                  HostId to) const;

  EventQueue& queue_;
  const Options& options_;
  StoreServer store_;
  std::map<std::string, cluster::PartMap> maps_;
  std::map<HostId, std::vector<Room>> rooms_;  // by box: its recent reports
  std::map<uint32_t, std::string> epochs_;
  std::map<std::string, uint64_t> draw_seeds_;  // by job
  OnMove on_move_ = [](const std::string&, uint32_t, HostId, HostId) {};
  Has has_ = [](HostId, const std::string&, uint32_t) { return false; };
};

// These return a box's address for workers, for example "box1:9541", its name, for example "box1",
// and the box that has an address or name.
std::string address_of_box(HostId box);
std::string name_of_box(HostId box);
HostId box_at(const std::string& address_or_name);

}  // namespace pbox::sim
