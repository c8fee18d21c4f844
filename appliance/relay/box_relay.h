// One job's way to the other box: a session of libpbox, whose tensors are the job's chunks, and a
// thread that takes sums from the pipelines and hands them to it. The library sends from the
// chunk's accumulator and writes the result there; nothing is copied here.
//
// Sums travel as f32, whatever the job's type, so that they are rounded once, after the last sum.
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

namespace pbox::appliance {

class BoxRelay : public Relay {
 public:
  // `context`: that of the control thread. `tell`: any thread; as Upstream::join says of on_change.
  BoxRelay(boost::asio::io_context& context, const config::Upstream& settings, RelaySpec spec,
           std::function<void(Status)> tell);
  // Leaves the job there. Waits for the library, which ends at once but where it connects.
  ~BoxRelay() override;
  void seed(std::vector<std::vector<float>> values) override;
  void run(std::vector<RelayLane> lanes) override;
  RelayView view() const override;

 private:
  // The relay's thread.
  void work();
  Status join();
  Status attempt(uint64_t deadline_ns);
  Status enter(uint64_t deadline_ns);
  Status count_workers(uint64_t deadline_ns);
  Status await(uint32_t tensor, uint64_t deadline_ns);
  Status send_seeds();
  Status register_tensors();
  void relay_sums();
  bool start_all();
  void start(size_t lane, const pipeline::Uplink::Sum& sum);
  bool may_sleep();
  void sleep(int timeout_ms);
  // The library's I/O thread.
  static void on_result(void* self, uint32_t tensor, pbox_status status);
  // Either; what is told first counts.
  void fail(const Error& error);

  void wake() const;
  Error last_error(pbox_status status) const;

  boost::asio::io_context& context_of_control_;
  const config::Upstream settings_;
  const RelaySpec spec_;
  const std::function<void(Status)> tell_;
  int wake_fd_ = -1;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> is_joined_ = false;
  std::atomic<bool> runs_ = false;
  std::vector<std::vector<float>> seeds_;
  std::atomic<bool> has_seeds_ = false;
  std::vector<RelayLane> lanes_;   // once it runs
  std::vector<uint16_t> lane_of_;  // by chunk, once its first sum has come
  std::mutex context_mutex_;       // the thread makes and destroys it, the destructor ends it
  pbox_context* context_ = nullptr;
  float own_workers_ = 0, all_workers_ = 0;
  std::atomic<uint32_t> workers_ = 0;
  std::atomic<uint64_t> started_ = 0, relayed_ = 0;
  std::thread thread_;
};

}  // namespace pbox::appliance
