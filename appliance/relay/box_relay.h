// One job's connection to another box: a session there for each lane (uplink_lane.h), and the
// thread that joins them.
//
// Sums travel as f32 whatever the job's type, so that they are rounded only once, after the last
// sum. There are as many lanes as the other box has pipelines, so that each lane ends on a pipeline
// of its own there. If this box has as many pipelines, each lane also begins on one of its own.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "appliance/control/upstream.h"
#include "appliance/relay/uplink_lane.h"
#include "base/descriptor.h"
#include "config/config.h"

namespace pbox::relay {

class BoxRelay : public control::Relay {
 public:
  // `context` is the control thread's. `report` is called when `on_change` of Upstream::join is
  // due, but on any thread, also within this constructor. `post` runs a function on the control
  // thread, and then carries out what the function has caused.
  BoxRelay(boost::asio::io_context& context, const config::Upstream& settings, std::string keys,
           control::RelaySpec spec, std::function<void(Status)> report,
           std::function<void(std::function<void()>)> post);
  // Leaves the job at the other box and waits for the library, which ends at once unless it is
  // connecting.
  ~BoxRelay() override;
  void seed(std::vector<std::vector<float>> values) override;
  void run(std::vector<control::RelayLane> lanes) override;
  void set_priorities(std::vector<int32_t> by_chunk) override;
  void set_learning_rate(float learning_rate, const std::function<void()>& confirmed) override;
  control::RelayView view() const override;
  uint32_t lane_count() const override;
  uint8_t lane_of(uint32_t chunk) const override;
  void set_reason(const std::string& reason) override;

 private:
  // The following functions run on the relay's thread.
  void work();
  Status join();
  Status try_join(uint64_t deadline_ns);
  Result<uint32_t> ask_lanes(uint64_t deadline_ns);
  bool set_lanes(std::vector<std::unique_ptr<UplinkLane>> lanes);
  Status join_lanes(uint64_t deadline_ns);
  Status run_lanes();
  Status set_learning_rates();
  // Ends the lanes' joins, and what they relay. May be called on any thread.
  void leave_lanes();
  // Reports the first error; further ones are ignored. May be called on any thread.
  void fail(const Error& error);
  void sleep(int timeout_ms);
  void wake() const;

  boost::asio::io_context& control_context_;
  const LanePlan plan_;
  const std::function<void(Status)> report_;
  const std::function<void(std::function<void()>)> post_;
  Descriptor wake_;                     // event that wakes the relay's thread
  std::vector<Descriptor> lane_wakes_;  // by lane: the event that pipelines set
  std::atomic<bool> stop_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> is_joined_ = false;
  std::atomic<bool> is_running_ = false;
  std::vector<std::vector<float>> seeds_;
  std::atomic<bool> has_seeds_ = false;
  std::vector<control::RelayLane> rings_;  // set before is_running_
  std::vector<uint8_t> lane_of_;           // by chunk; set before is_joined_
  // A learning rate that is to be set, and the function to call once it is.
  struct LearningRate {
    float value = 0;
    std::function<void()> confirmed;
  };
  std::mutex rates_mutex_;
  std::vector<LearningRate> rates_;  // oldest first
  // Guards `lanes_`, because the thread replaces the lanes while the destructor may make them
  // leave. The lanes stay the same once is_joined_ is set.
  std::mutex lanes_mutex_;
  std::vector<std::unique_ptr<UplinkLane>> lanes_;
  std::string reason_;  // guarded by lanes_mutex_
  std::thread thread_;
};

}  // namespace pbox::relay
