// One job's session at the other box: a libpbox session whose tensors are the job's chunks, and a
// thread that passes sums from the pipelines to the library. The library sends from the chunk's
// accumulator and writes the result there; nothing is copied here.
//
// Sums travel as f32 whatever the job's type, so that they are rounded only once, after the last
// sum.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "appliance/control/upstream.h"
#include "config/config.h"
#include "pbox/pbox.h"

namespace pbox::relay {

class BoxRelay : public control::Relay {
 public:
  // `context` is the control thread's. `report` is called on any thread, as Upstream::join says of
  // `on_change`.
  BoxRelay(boost::asio::io_context& context, const config::Upstream& settings, std::string keys,
           control::RelaySpec spec, std::function<void(Status)> report);
  // Leaves the job at the other box and waits for the library, which ends at once unless it is
  // connecting.
  ~BoxRelay() override;
  void seed(std::vector<std::vector<float>> values) override;
  void run(std::vector<control::RelayLane> lanes) override;
  void set_priorities(std::vector<int32_t> by_chunk) override;
  control::RelayView view() const override;

 private:
  // On the relay's thread.
  void work();
  Status join();
  Status try_join(uint64_t deadline_ns);
  Status join_and_count(uint64_t deadline_ns);
  Status count_workers(uint64_t deadline_ns);
  Status await(uint32_t tensor, uint64_t deadline_ns);
  Status send_seeds();
  Status register_tensors();
  void relay_sums();
  bool start_all();
  void start(size_t lane, const pipeline::Uplink::Sum& sum);
  bool may_sleep();
  void sleep(int timeout_ms);
  // On the library's I/O thread.
  static void on_result(void* self, uint32_t tensor, pbox_status status);
  // On either thread; only the first error is reported.
  void fail(const Error& error);

  void wake() const;
  Error last_error(pbox_status status) const;

  boost::asio::io_context& control_context_;
  const config::Upstream settings_;
  const std::string keys_;  // folder of this box's keys; empty: none
  const control::RelaySpec spec_;
  const std::function<void(Status)> report_;
  int wake_fd_ = -1;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> is_joined_ = false;
  std::atomic<bool> is_running_ = false;
  std::vector<std::vector<float>> seeds_;
  std::atomic<bool> has_seeds_ = false;
  std::vector<control::RelayLane> lanes_;  // set before is_running_
  // by chunk: index of its lane; valid once its first sum has arrived
  std::vector<uint16_t> lane_of_;
  // Guards `context_`: the thread creates and destroys it, the destructor makes it leave.
  std::mutex context_mutex_;
  pbox_context* context_ = nullptr;
  float own_workers_ = 0, all_workers_ = 0;
  std::atomic<uint32_t> workers_ = 0;
  std::atomic<uint64_t> started_ = 0, relayed_ = 0;
  std::thread thread_;
};

}  // namespace pbox::relay
