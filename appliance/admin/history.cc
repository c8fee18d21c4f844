#include "appliance/admin/history.h"

#include <algorithm>
#include <utility>

#include "appliance/admin/source.h"
#include "base/check.h"

namespace pbox::admin {
namespace {

constexpr uint64_t kKeptNs = uint64_t{History::kSeconds} * 1'000'000'000;
constexpr size_t kPointsPerJob = History::kSeconds / History::kJobIntervalSeconds;

double seconds_between(uint64_t from_ns, uint64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) / 1e9 : 0;
}

// Returns how much a counter has grown. A counter that has fallen has begun again from zero.
uint64_t grown(uint64_t now, uint64_t before) {
  return now >= before ? now - before : now;
}

template <typename Point>
void push(std::deque<Point>& points, Point point, size_t most) {
  PBOX_CHECK(most > 0 && points.size() <= most);
  points.push_back(std::move(point));
  if (points.size() > most) points.pop_front();
}

}  // namespace

void History::add_second(const std::vector<PipelineView>& pipelines, uint64_t now_ns) {
  using pipeline::Counter;
  const double seconds = seconds_between(std::exchange(second_ns_, now_ns), now_ns);
  const bool is_first = counted_.size() != pipelines.size();
  counted_.resize(pipelines.size());
  BoxPoint point;
  for (size_t index = 0; index < pipelines.size(); ++index) {
    const auto* counters = pipelines[index].counters;
    if (counters == nullptr) continue;
    const Counts now{.received = counters->get(Counter::kRxBytes),
                     .sent = counters->get(Counter::kTxBytes),
                     .chunk_rounds = counters->get(Counter::kRoundsFinished),
                     .busy_ns = counters->get(Counter::kBusyNs)};
    const Counts before = std::exchange(counted_[index], now);
    point.received_per_s += static_cast<double>(grown(now.received, before.received));
    point.sent_per_s += static_cast<double>(grown(now.sent, before.sent));
    point.chunk_rounds_per_s += static_cast<double>(grown(now.chunk_rounds, before.chunk_rounds));
    const double busy_s = static_cast<double>(grown(now.busy_ns, before.busy_ns)) / 1e9;
    point.busiest = std::max(point.busiest, busy_s);
  }
  if (is_first || seconds <= 0) return;
  point.received_per_s /= seconds;
  point.sent_per_s /= seconds;
  point.chunk_rounds_per_s /= seconds;
  point.busiest = std::min(1.0, point.busiest / seconds);
  push(points_, point, kSeconds);
}

double History::newest_traffic_bytes_per_s() const {
  if (points_.empty()) return 0;
  return std::max(points_.back().received_per_s, points_.back().sent_per_s);
}

void History::add_interval(const std::vector<control::JobView>& jobs, uint64_t now_ns) {
  const double seconds = seconds_between(std::exchange(interval_ns_, now_ns), now_ns);
  for (auto& [name, record] : jobs_) record.is_over = true;
  // All at first, since a record that is made drops that of a job that is over.
  for (const control::JobView& job : jobs) {
    const auto found = jobs_.find(job.name);
    if (found != jobs_.end()) found->second.is_over = false;
  }
  for (const control::JobView& job : jobs) {
    if (job.is_backup) {
      jobs_.erase(job.name);
      continue;
    }
    Record* record = record_of(job.name);
    if (record == nullptr) continue;
    record->is_over = false;
    record->seen_ns = now_ns;
    const JobPoint point = point_of(*record, job, seconds);
    if (seconds > 0) push(record->points, point, kPointsPerJob);
  }
  for (auto& [name, record] : jobs_) {
    if (record.is_over) push(record.points, JobPoint{}, kPointsPerJob);
  }
  drop_old(now_ns);
  PBOX_CHECK(jobs_.size() <= kJobsMax);
}

JobPoint History::point_of(Record& record, const control::JobView& job, double seconds) {
  JobPoint point;
  const uint64_t rounds = grown(job.chunk_rounds, record.chunk_rounds);
  record.chunk_rounds = job.chunk_rounds;
  if (seconds > 0) point.chunk_rounds_per_s = static_cast<double>(rounds) / seconds;
  record.late_s.resize(job.workers.size());
  for (size_t rank = 0; rank < job.workers.size(); ++rank) {
    const double before = std::exchange(record.late_s[rank], job.workers[rank].late_s);
    const double late_s = job.workers[rank].late_s - before;
    if (late_s <= point.late_s) continue;
    point.late_s = late_s;
    point.late_rank = static_cast<int>(rank);
  }
  return point;
}

void History::add_event(const std::string& job, JobEvent event, uint64_t now_ns) {
  Record* record = record_of(job);
  if (record == nullptr) return;
  record->seen_ns = now_ns;
  push(record->events, TimedEvent{now_ns, std::move(event)}, kEventsMax);
}

// Returns null if kJobsMax jobs are kept and none of them is over.
History::Record* History::record_of(const std::string& job) {
  if (const auto found = jobs_.find(job); found != jobs_.end()) return &found->second;
  if (jobs_.size() >= kJobsMax) {
    auto oldest = jobs_.end();
    for (auto entry = jobs_.begin(); entry != jobs_.end(); ++entry) {
      const bool is_older = oldest == jobs_.end() || entry->second.seen_ns < oldest->second.seen_ns;
      if (entry->second.is_over && is_older) oldest = entry;
    }
    if (oldest == jobs_.end()) return nullptr;
    jobs_.erase(oldest);
  }
  PBOX_CHECK(jobs_.size() < kJobsMax);
  return &jobs_[job];
}

void History::drop_old(uint64_t now_ns) {
  for (auto& [name, record] : jobs_) {
    while (!record.events.empty() && now_ns - record.events.front().at_ns > kKeptNs) {
      record.events.pop_front();
    }
  }
  std::erase_if(jobs_, [now_ns](const auto& entry) {
    return entry.second.is_over && now_ns - entry.second.seen_ns > kKeptNs;
  });
}

HistoryView History::view(uint64_t now_ns) const {
  HistoryView view{.points = {points_.begin(), points_.end()}, .jobs = {}};
  for (const auto& [name, record] : jobs_) {
    JobHistory& job = view.jobs.emplace_back();
    job.job = name;
    job.is_over = record.is_over;
    job.points.assign(record.points.begin(), record.points.end());
    for (const TimedEvent& timed : record.events) {
      job.events.push_back(timed.event);
      job.events.back().age_s = seconds_between(timed.at_ns, now_ns);
    }
  }
  return view;
}

}  // namespace pbox::admin
