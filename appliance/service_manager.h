// What the box tells systemd: that it is ready, that it stops, and that its pipelines live. Without
// systemd around it (NOTIFY_SOCKET is not set) nothing is told.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "appliance/admin/source.h"

namespace pbox::appliance {

// Type=notify: ports are up. Any thread.
void notify_ready(const std::string& status);
void notify_stopping(const std::string& status);

// Feeds WatchdogSec= with the pipelines' own progress: systemd hears of it only while every
// pipeline has given a sign of life since the last time, so that one that is wedged gets the box
// restarted. A thread of its own does it: to hand memory to a large job may keep the control thread
// for longer than a watchdog waits.
class Watchdog {
 public:
  // `pipelines`: their counters outlive this. Starts nothing where systemd expects nothing.
  explicit Watchdog(std::vector<PipelineView> pipelines);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run(std::chrono::microseconds interval);
  // "" or "pipeline 1 gives no sign of life", from one call to the next.
  std::string silent_pipeline();

  std::vector<PipelineView> pipelines_;
  std::vector<uint64_t> ticks_;  // seen last
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace pbox::appliance
