#include "appliance/service_manager.h"

#include <systemd/sd-daemon.h>

#include <utility>

#include "base/cpu_set.h"
#include "base/thread.h"

namespace pbox::appliance {

namespace {

// sd_watchdog_enabled(3) asks for half the limit. A quarter lets one late look pass without a
// restart.
constexpr uint32_t kLooksPerLimit = 4;

}  // namespace

void notify_ready(const std::string& status) {
  sd_notify(0, ("READY=1\nSTATUS=" + status).c_str());
}

void notify_stopping(const std::string& status) {
  sd_notify(0, ("STOPPING=1\nSTATUS=" + status).c_str());
}

Watchdog::Watchdog(std::vector<admin::PipelineView> pipelines,
                   const std::atomic<uint64_t>& control_ticks)
    : pipelines_(std::move(pipelines)),
      ticks_(pipelines_.size(), 0),
      control_ticks_(control_ticks) {
  uint64_t limit_us = 0;
  if (sd_watchdog_enabled(0, &limit_us) <= 0) return;
  // A sleeping pipeline gives ten signs of life a second.
  auto thread = start_thread("watch the others", [this, limit_us] {
    name_current_thread("watchdog");
    run(std::chrono::microseconds(limit_us / kLooksPerLimit));
  });
  if (thread) thread_ = std::move(*thread);  // otherwise systemd hears nothing, and restarts pboxd
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::run(std::chrono::microseconds interval) {
  std::unique_lock lock(mutex_);
  bool complained = false;
  while (!stopped_.wait_for(lock, interval, [this] { return stop_; })) {
    const std::string silent = silent_thread();
    if (silent.empty()) {
      sd_notify(0, std::exchange(complained, false)
                       ? "WATCHDOG=1\nSTATUS=all threads make progress again"
                       : "WATCHDOG=1");
    } else {
      complained = true;
      sd_notify(0, ("STATUS=" + silent).c_str());
    }
  }
}

std::string Watchdog::silent_thread() {
  std::string silent;
  for (size_t index = 0; index < pipelines_.size(); ++index) {
    const uint64_t ticks = pipelines_[index].counters->get(pipeline::Counter::kTicks);
    if (std::exchange(ticks_[index], ticks) != ticks) continue;
    silent = "pipeline " + std::to_string(pipelines_[index].index) + " makes no progress";
  }
  const uint64_t control_ticks = control_ticks_.load(std::memory_order_relaxed);
  const bool is_control_silent = std::exchange(control_ticks_seen_, control_ticks) == control_ticks;
  control_silent_looks_ = is_control_silent ? control_silent_looks_ + 1 : 0;
  if (silent.empty() && control_silent_looks_ >= kControlPatience * kLooksPerLimit) {
    silent = "the control thread makes no progress";
  }
  return silent;
}

ExitGuard::ExitGuard(std::chrono::milliseconds limit,
                     std::function<void(const std::string&)> on_hang)
    : limit_(limit), on_hang_(std::move(on_hang)) {
  PBOX_CHECK(limit_.count() >= 0 && on_hang_ != nullptr);
  auto thread = start_thread("guard the exit", [this] { watch(); });
  if (thread) thread_ = std::move(*thread);  // without it a stage that hangs is systemd's to end
}

ExitGuard::~ExitGuard() {
  PBOX_CHECK(thread_.get_id() != std::this_thread::get_id());  // on_hang_ may not destroy it
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ExitGuard::enter(std::string stage) {
  {
    const std::lock_guard lock(mutex_);
    stage_ = std::move(stage);
    ++stages_;
  }
  changed_.notify_all();
}

void ExitGuard::watch() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    const uint64_t watched = stages_;
    const auto has_changed = [&] { return is_over_ || stages_ != watched; };
    if (stage_.empty()) {
      changed_.wait(lock, has_changed);
    } else if (!changed_.wait_for(lock, limit_, has_changed)) {
      on_hang_(stage_);
      changed_.wait(lock, has_changed);  // only in tests: on_hang_ ends the process
    }
  }
}

}  // namespace pbox::appliance
