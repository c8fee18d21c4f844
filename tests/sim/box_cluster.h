// A box's side of the cluster: the product's register of boxes, part maps and epochs, over a
// simulated store, in simulated time.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <optional>

#include "appliance/cluster/box_directory.h"
#include "appliance/cluster/environment.h"
#include "appliance/cluster/epoch_pool.h"
#include "appliance/cluster/part_maps.h"
#include "appliance/control/job_registry.h"
#include "tests/sim/host.h"
#include "tests/sim/rack.h"
#include "tests/sim/sim_store.h"

namespace pbox::sim {

// Asks the box at `address`, and calls `done` with its answer, or with an error after `timeout_ns`.
using AskBox = std::function<void(const std::string& address, const proto::WorkerMessage& question,
                                  uint64_t timeout_ns, cluster::Environment::Answer done)>;

// The part map of a job that is over is kept this long, which is longer than its ranks look for a
// lost box.
inline constexpr std::chrono::seconds kDeleteMapsAfter{310};

class SimEnvironment final : public cluster::Environment {
 public:
  SimEnvironment(boost::asio::execution_context& context, EventQueue& queue, const Thread& thread,
                 Meter& meter, AskBox ask);

  Clock::time_point now() const override;
  uint64_t unix_seconds() const override;
  void post(std::function<void()> function) override;
  std::shared_ptr<void> after(Clock::duration wait, std::function<void()> function) override;
  void ask_box(const std::string& control, const proto::WorkerMessage& question,
               std::chrono::milliseconds timeout, Answer done) override;

 private:
  // Calls `function` on the box's thread at `due_ns`, unless `alive` has expired by then.
  void at(uint64_t due_ns, std::weak_ptr<void> alive, std::function<void()> function);

  EventQueue& queue_;
  const Thread& thread_;
  Meter& meter_;
  AskBox ask_;
  std::shared_ptr<void> alive_ = std::make_shared<bool>(true);
};

class BoxCluster {
 public:
  struct Callbacks {
    std::function<const control::JobRegistry&()> registry;
    std::function<void()> on_change;   // parts may have moved
    std::function<void()> on_answers;  // questions have been answered
    AskBox ask;
  };

  // All arguments that are passed by reference outlive this object. `starts` counts the processes
  // of this box.
  BoxCluster(Rack& rack, HostId box, uint64_t starts, const Thread& thread, storage::Disk& disk,
             storage::EpochStore& epochs, Callbacks callbacks);

  cluster::PartMaps& maps() { return *maps_; }
  const cluster::PartMaps& maps() const { return *maps_; }
  const cluster::BoxDirectory& boxes() const { return *directory_; }
  // Returns whether `box` is registered, as far as this box knows.
  bool lists(const std::string& box) const;
  // Returns whether this box knows how much room `box` has. When a lease ends, it forgets the room
  // of that box until it asks again.
  bool knows_room(const std::string& box);
  storage::Epochs& epochs() { return *epochs_; }
  SimStore& store() { return store_; }
  // Returns whether this box has recently looked for a box with room for the part and found none.
  bool found_no_room(const JobModel& job) const;

 private:
  void check_duties(const cluster::Transaction& transaction) const;

  const std::string name_;
  const Thread& thread_;
  std::map<std::string, uint64_t> no_room_ns_;  // by message: its time, on this box's clock
  boost::asio::io_context context_;
  SimStore store_;
  std::optional<cluster::EpochPool> epochs_;
  std::optional<cluster::BoxDirectory> directory_;
  std::optional<cluster::PartMaps> maps_;
};

}  // namespace pbox::sim
