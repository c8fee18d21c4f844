// The last ten minutes of the box, for the live page: the traffic and work of the box in each
// second, and for each job its progress in each interval of five seconds and its events. Takes
// values and times, so it needs no clock. Control thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "appliance/control/job_view.h"

namespace pbox::admin {

struct PipelineView;

// One second of the box, over all pipelines.
struct BoxPoint {
  double received_per_s = 0, sent_per_s = 0;  // bytes
  double chunk_rounds_per_s = 0;
  double busiest = 0;  // share of the time that the busiest pipeline worked, in [0, 1]
};

// One interval of a job.
struct JobPoint {
  double chunk_rounds_per_s = 0;
  int late_rank = -1;  // the rank that held rounds up the longest; -1: none did
  double late_s = 0;   // how long it did so, over all chunks
};

// Something that happened to a job, as the log says it.
struct JobEvent {
  double age_s = 0;
  std::string name;  // "worker_lost", ...
  bool warns = false;
  std::string text;
};

struct JobHistory {
  std::string job;
  bool is_over = false;               // no part of it is on this box any more
  std::vector<JobPoint> points = {};  // oldest first; the last one is the newest interval
  std::vector<JobEvent> events = {};  // oldest first
};

struct HistoryView {
  std::vector<BoxPoint> points;  // oldest first; the last one is the newest second
  std::vector<JobHistory> jobs;  // in the order of their names
};

class History {
 public:
  static constexpr uint32_t kSeconds = 600;
  static constexpr uint32_t kJobIntervalSeconds = 5;
  static constexpr size_t kJobsMax = 64;    // with more, jobs that are over are dropped first
  static constexpr size_t kEventsMax = 64;  // per job; the newest events are kept

  // To be called once a second, with the pipelines' current counters.
  void add_second(const std::vector<PipelineView>& pipelines, uint64_t now_ns);
  // To be called every kJobIntervalSeconds. Backup copies are left out.
  void add_interval(const std::vector<control::JobView>& jobs, uint64_t now_ns);
  void add_event(const std::string& job, JobEvent event, uint64_t now_ns);
  HistoryView view(uint64_t now_ns) const;
  // Returns the traffic of the newest second in the busier direction; 0 before there is one.
  double newest_traffic_bytes_per_s() const;

 private:
  struct Counts {
    uint64_t received = 0, sent = 0, chunk_rounds = 0, busy_ns = 0;
  };
  struct TimedEvent {
    uint64_t at_ns = 0;
    JobEvent event;
  };
  struct Record {
    std::deque<JobPoint> points;
    std::deque<TimedEvent> events;
    uint64_t chunk_rounds = 0;   // at the end of the newest point
    std::vector<double> late_s;  // by rank, at the end of the newest point
    uint64_t seen_ns = 0;        // time when it was last on this box or last had an event
    bool is_over = false;
  };

  static JobPoint point_of(Record& record, const control::JobView& job, double seconds);
  Record* record_of(const std::string& job);
  void drop_old(uint64_t now_ns);

  std::deque<BoxPoint> points_;
  std::vector<Counts> counted_;               // by pipeline, at the end of the newest point
  uint64_t second_ns_ = 0, interval_ns_ = 0;  // times of the newest points; 0: there is none
  std::map<std::string, Record> jobs_;
};

}  // namespace pbox::admin
