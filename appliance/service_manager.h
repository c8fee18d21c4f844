// Reports to systemd that the box is ready, that it stops, and that its pipelines are alive. Does
// nothing if systemd did not start the box (NOTIFY_SOCKET is not set).
#pragma once

#include <atomic>
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

// Feeds WatchdogSec= with the progress of the pipelines and of the control thread. Reports to
// systemd only if every pipeline has given a sign of life since the last report, so that a wedged
// pipeline makes systemd restart the box. Runs on a thread of its own, because giving memory to a
// large job can keep the control thread busy for longer than the watchdog waits. The control thread
// counts as wedged after kControlPatience times that long.
class Watchdog {
 public:
  static constexpr uint32_t kControlPatience = 6;

  // The counters of `pipelines` and `control_ticks`, which the control thread advances several
  // times a second, outlive the watchdog. Starts no thread if systemd has no watchdog set.
  Watchdog(std::vector<admin::PipelineView> pipelines, const std::atomic<uint64_t>& control_ticks);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run(std::chrono::microseconds interval);
  // Returns "pipeline 1 gives no sign of life" if a pipeline made no progress since the last call,
  // or the same of the control thread; empty otherwise.
  std::string silent_thread();

  std::vector<admin::PipelineView> pipelines_;
  std::vector<uint64_t> ticks_;  // by pipeline, at the last call
  const std::atomic<uint64_t>& control_ticks_;
  uint64_t control_ticks_seen_ = 0;    // at the last call
  uint32_t control_silent_looks_ = 0;  // calls since the control thread last made progress
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace pbox::appliance
