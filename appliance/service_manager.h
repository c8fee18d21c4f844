// Reports to systemd that the box is ready, that it stops, and that its pipelines are alive, if
// systemd started the box (NOTIFY_SOCKET is set). Makes sure that the process ends in time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "appliance/admin/source.h"

namespace pbox::appliance {

// Reports that the ports are up, to a unit of Type=notify. May be called on any thread.
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
  // times a second, must outlive the watchdog. Starts no thread if the unit sets no WatchdogSec=.
  Watchdog(std::vector<admin::PipelineView> pipelines, const std::atomic<uint64_t>& control_ticks);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run(std::chrono::microseconds interval);
  // Returns "pipeline 1 makes no progress" if that pipeline has made none since the last call.
  // Otherwise returns "the control thread makes no progress" if that thread counts as wedged, or
  // "".
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

// Ends the process if its orderly end hangs. The end joins threads that may wait for something
// outside of the process: a network disk, a resolver, the cluster's store. A service manager would
// kill the process without saying which of them hangs.
class ExitGuard {
 public:
  // `on_hang` is called on the guard's thread with the name of the stage that hangs. It should not
  // return, because the stage cannot be ended.
  ExitGuard(std::chrono::milliseconds limit, std::function<void(const std::string&)> on_hang);
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;

  // Begins a stage, which may last for `limit`, and ends the one before. An empty name only ends
  // the stage before.
  void enter(std::string stage);

 private:
  void watch();

  const std::chrono::milliseconds limit_;
  const std::function<void(const std::string&)> on_hang_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string stage_;  // empty if no stage is under way
  uint64_t stages_ = 0;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace pbox::appliance
