// The flight recorder in the daemon: reports crash files at start and records late rounds.
#include <algorithm>

#include "appliance/appliance.h"
#include "base/clock.h"

namespace pbox::appliance {
namespace {

constexpr std::chrono::milliseconds kLateLookInterval{250};
// Least time between two late-round files: one file is enough for a job whose rounds are always
// late.
constexpr uint64_t kLateFileIntervalNs = 60 * kNanosPerSecond;

}  // namespace

Status Appliance::open_recorder() {
  std::vector<int> nodes;
  for (const topology::PipelinePlan& pipeline : topology_.pipelines) nodes.push_back(pipeline.node);
  auto recorder = pipelines::FlightRecorder::start(config_.recorder, nodes);
  if (!recorder) return recorder.error();
  recorder_ = std::move(*recorder);
  if (!recorder_->warning().empty()) {
    log(EventLog::Level::kWarning, "flight_recorder", recorder_->warning());
  }
  if (!recorder_->crash_file().empty()) {
    log(EventLog::Level::kWarning, "crash_recorded",
        "the previous pboxd did not stop in order; the last packets of its pipelines are in " +
            recorder_->crash_file() + "; read them with `pboxctl replay`");
  }
  return ok_status();
}

void Appliance::look_for_late_rounds() {
  late_timer_.expires_after(kLateLookInterval);
  late_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    control_ticks_.fetch_add(1, std::memory_order_relaxed);
    record_late_rounds(monotonic_ns());
    look_for_late_rounds();
  });
}

// Writes at most one file each time that a job becomes late.
void Appliance::record_late_rounds(uint64_t now_ns) {
  const double late_s = config_.recorder.late_after_ms / 1e3;
  std::set<std::string> late;
  for (const control::JobView& job : registry_->views(now_ns)) {
    const auto longest =
        std::max_element(job.workers.begin(), job.workers.end(),
                         [](const control::WorkerView& one, const control::WorkerView& other) {
                           return one.awaited_s < other.awaited_s;
                         });
    if (longest == job.workers.end() || longest->awaited_s < late_s) continue;
    const bool is_recorded = late_jobs_.count(job.name) != 0;
    // A job that is late too soon after another one is recorded when the interval is over.
    const bool is_too_soon =
        late_recorded_ns_ != 0 && now_ns - late_recorded_ns_ < kLateFileIntervalNs;
    if (is_recorded || !is_too_soon) late.insert(job.name);
    if (is_recorded || is_too_soon) continue;
    late_recorded_ns_ = now_ns;
    const auto path = recorder_->write("late");
    log(EventLog::Level::kWarning, "late_round",
        "job '" + job.name + "' has waited for rank " + std::to_string(longest->rank) + " for " +
            in_seconds(static_cast<uint64_t>(longest->awaited_s * 1e9)) + "; " +
            (path ? "recorded in " + *path : "not recorded: " + path.error().message));
  }
  late_jobs_ = std::move(late);
}

Result<std::string> Appliance::flight() const {
  return recorder_->copy();
}

}  // namespace pbox::appliance
