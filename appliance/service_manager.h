// Reports to systemd that the box is ready, that it stops, and that its pipelines are alive. Does
// nothing if systemd did not start the box (NOTIFY_SOCKET is not set).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "appliance/admin/source.h"

namespace pbox::appliance {

// Reports for Type=notify that the ports are up. Any thread.
void notify_ready(const std::string& status);
void notify_stopping(const std::string& status);

// Feeds WatchdogSec= with the pipelines' own progress. Reports to systemd only if every pipeline
// has given a sign of life since the last report, so that a wedged pipeline makes systemd restart
// the box. Runs on a thread of its own: giving memory to a large job can keep the control thread
// busy for longer than the watchdog waits.
class Watchdog {
 public:
  // The counters of `pipelines` outlive the watchdog. Starts no thread if systemd has no watchdog
  // set.
  explicit Watchdog(std::vector<admin::PipelineView> pipelines);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run(std::chrono::microseconds interval);
  // Returns "pipeline 1 gives no sign of life" if a pipeline made no progress since the last call;
  // empty otherwise.
  std::string silent_pipeline();

  std::vector<admin::PipelineView> pipelines_;
  std::vector<uint64_t> ticks_;  // by pipeline, at the last call
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace pbox::appliance
