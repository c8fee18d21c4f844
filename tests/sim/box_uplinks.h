// The sessions of a rack's box at the upper box, which sums the racks. appliance/relay does this
// with a thread for each job and libpbox's C ABI. Here each lane has only libpbox's membership and
// exchange.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "appliance/control/upstream.h"
#include "tests/sim/member.h"

namespace pbox::sim {

class JobUplink;

// One part of a job at the upper box, like relay::UplinkLane. Its tensors are the part's chunks.
class UplinkMember final : public Member {
 public:
  struct Plan {
    uint32_t number = 0;  // counts all lanes that the box has had
    uint32_t part = 0, parts = 1;
    std::vector<uint32_t> chunks = {};  // ids of the part's chunks in the job, ascending
    uint64_t deadline_ns = 0;           // end of the time to join, in rack time
  };
  // Joins at once.
  UplinkMember(Rack& rack, JobUplink& job, Plan plan);

  void run(std::vector<control::RelayLane> rings);
  void set_priorities(const std::vector<int32_t>& by_chunk);
  void leave(const std::string& reason);
  // Called when the box's process has died.
  void crash();
  void wake() {
    if (!rings_.empty()) thread().wake_soon();
  }
  bool has_joined() const { return has_joined_; }
  uint32_t workers() const { return membership_->session().workers(); }
  uint64_t started() const { return started_; }
  uint64_t relayed() const { return relayed_; }

 private:
  std::string who() const override;
  uint64_t start_operations(uint64_t now_ns) override;
  bool complete_operations(worker::Exchange& exchange, uint64_t now_ns) override;
  void on_session(const worker::SessionSpec& session) override;
  void end_if_over() override;

  JobUplink& job_;
  Plan plan_;
  std::vector<control::RelayLane> rings_;
  std::vector<size_t> ring_of_;      // by tensor: the ring from which its chunk was taken
  std::vector<uint32_t> tensor_of_;  // by chunk of the job
  bool has_joined_ = false;
  uint64_t started_ = 0, relayed_ = 0;
};

// All lanes of a job, like relay::BoxRelay. It exists until the end of the run.
class JobUplink {
 public:
  // `tell`: see control::Upstream. `next_number` counts the lanes of the box.
  JobUplink(Rack& rack, HostId box, control::RelaySpec spec, std::function<void(Status)> tell,
            uint32_t& next_number);

  // These are the operations of control::Relay.
  void run(const std::vector<control::RelayLane>& rings);
  void set_priorities(const std::vector<int32_t>& by_chunk);
  control::RelayView view() const;
  uint32_t lane_count() const { return static_cast<uint32_t>(lanes_.size()); }
  uint8_t lane_of(uint32_t chunk) const { return lane_of_[chunk]; }
  void leave(const std::string& reason);

  // Called by the lanes.
  void joined();
  void failed(const Error& why);

  void crash();
  const control::RelaySpec& spec() const { return spec_; }
  HostId box() const { return box_; }
  // Calls `each` for each lane that the job has had.
  template <typename Each>
  void for_lanes(const Each& each) const {
    for (const auto& lane : all_lanes_) each(*lane);
  }

 private:
  void try_join();
  void tell(const Status& status);

  Rack& rack_;
  HostId box_;
  control::RelaySpec spec_;
  std::function<void(Status)> tell_;  // null once the relay is over
  uint32_t& next_number_;
  uint64_t deadline_ns_;
  bool is_joined_ = false;
  std::vector<uint8_t> lane_of_;  // by chunk
  std::vector<UplinkMember*> lanes_;
  std::vector<std::unique_ptr<UplinkMember>> all_lanes_;
};

// The uplinks of all jobs of a box, like relay::BoxUpstream.
class BoxUplinks final : public control::Upstream {
 public:
  // `on_done` is called after each change that a relay reports.
  BoxUplinks(Rack& rack, HostId box, std::function<void()> on_done)
      : rack_(rack), box_(box), on_done_(std::move(on_done)) {}
  std::unique_ptr<control::Relay> join(control::RelaySpec spec,
                                       std::function<void(Status)> on_change) override;

  // Called when a pipeline may have chunks for a lane.
  void wake();
  void crash();
  void pause(uint64_t length_ns);
  void jump(uint64_t ahead_ns);
  // Returns the lane that has this connection; null if none has.
  Member* member(ConnectionId id) const;

 private:
  Rack& rack_;
  HostId box_;
  std::function<void()> on_done_;
  uint32_t next_number_ = 0;
  std::vector<std::unique_ptr<JobUplink>> jobs_;
};

}  // namespace pbox::sim
