// A fake box with two pipelines and two jobs. The name of one job needs escaping everywhere.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "appliance/admin/source.h"

namespace pbox::admin {

class FakeSource : public AdminSource {
 public:
  static constexpr const char* kOddName = "a\"b\\c<d>&/e%\n\xc3\xa9 f";
  static constexpr const char* kOddNameEncoded = "a%22b%5Cc%3Cd%3E%26%2Fe%25%0A%C3%A9%20f";

  FakeSource() {
    box_view = {.name = "box<1>",
                .version = "0.1.0",
                .ready = true,
                .uptime_s = 12.5,
                .job_memory_bytes = 4096,
                .job_memory_limit_bytes = 1 << 20,
                .joins_refused = 3,
                .workers_lost = 2,
                .jobs_failed = 1,
                .jobs_finished = 5,
                .control_connections = 4,
                .handshakes_refused = 6,
                .keys_expire_unix_s = 1'800'000'000,
                .audit_lost = 7,
                .links_down = {"net_af_packet0", "0000:3b:00.0"}};
    counters[0].add(pipeline::Counter::kRxPackets, 7);
    counters[0].add(pipeline::Counter::kBusyNs, 1'500'000'000);
    counters[1].add(pipeline::Counter::kRxPackets, (uint64_t{1} << 40) + 1);
    counters[1].add(pipeline::Counter::kRejectTag, 9);
    port_counters.add(nic::PortCounter::kSendFailures, 6);
    port_counters.add(nic::PortCounter::kDropVlan, 8);

    control::JobView job;
    job.name = "bert";
    job.state = "running";
    job.mode = "optimize";
    job.reduction = "mean";
    job.optimizer = "adam";
    job.priority_policy = "forward-order";
    job.priority_source = "learned";
    job.delivery = "broadcast";
    job.world_size = 3;
    job.chunk_rounds = 1234;
    job.memory_bytes = 4096;
    job.workers = {{.rank = 0,
                    .peer = "10.0.0.1:5",
                    .state = "joined",
                    .bytes_received = 100,
                    .fragments_received = 10,
                    .duplicates = 1,
                    .last_arrivals = 8,
                    .last_packet_age_s = 0.25,
                    .late_s = 0.5},
                   {.rank = 1,
                    .peer = "10.0.0.2:5",
                    .state = "lost",
                    .awaited_s = 3.5,
                    .nonfinite_fragments = 21,
                    .newest_nonfinite = control::NonfiniteView{{"head", 12}, 1.5},
                    .gradient_squares = 6.25},
                   {.rank = 2, .peer = "", .state = "absent"}};
    job.sync = {.model = "ssp", .staleness = 3, .release = "lazy", .reads = "fresh"};
    job.pulls = {.pulls = 400, .delayed = 5, .parked_s = 1.25, .lead_rounds = 2};
    job.reads_by_rounds_behind = {300, 60, 0, 40};
    job_views.push_back(job);
    job.name = kOddName;
    job.workers.resize(1);
    job.sync = {.model = "drop", .release = "soft", .reads = "fresh", .quorum = 1};
    job.pulls.reset();
    job.reads_by_rounds_behind.clear();
    job.workers[0].dropped_fragments = 17;
    job_views.push_back(job);
  }

  BoxView box() const override { return box_view; }
  std::vector<PipelineView> pipelines() const override {
    PipelineView pinned;
    pinned.cpu = 2;
    pinned.node = 0;
    pinned.address = "10.0.0.9";
    pinned.udp_port = 9542;
    pinned.counters = &counters[0];
    PipelineView floating;
    floating.index = 1;
    floating.counters = &counters[1];
    floating.port_counters = &port_counters;
    return {pinned, floating};
  }
  std::vector<control::JobView> jobs() const override { return job_views; }
  std::vector<control::StragglerView> stragglers() const override { return straggler_views; }
  HistoryView history() const override { return history_view; }
  ClusterView cluster() const override { return cluster_view; }
  cluster::BalancingView balancing() const override { return balancing_view; }
  Status set_priorities(const std::string& job, wire::PriorityPolicy policy) override {
    for (control::JobView& view : job_views) {
      if (view.name != job) continue;
      view.priority_policy = wire::kPriorityPolicyNames[static_cast<size_t>(policy)];
      return ok_status();
    }
    return Error{ErrorCode::kNotFound, "no such job"};
  }
  Status set_sync(const std::string& job, const control::SyncChange& change) override {
    for (control::JobView& view : job_views) {
      if (view.name != job) continue;
      if (change.sync.model == wire::SyncModel::kBsp) {
        return Error{ErrorCode::kInvalidArgument, "bsp sums a round"};
      }
      if (change.tensors.empty()) view.sync.text = wire::sync_text(change.sync);
      view.sync.by_tensor[change.tensors] = wire::sync_text(change.sync);
      return ok_status();
    }
    return Error{ErrorCode::kNotFound, "no such job"};
  }

  Status begin_trace(const std::string& job, double seconds) override {
    if (job != "bert") return Error{ErrorCode::kNotFound, "no such job"};
    if (traced_s > 0) return Error{ErrorCode::kUnavailable, "a trace is being recorded"};
    traced_s = seconds;
    return ok_status();
  }
  Result<control::TraceView> trace(const std::string& job) override {
    if (job != "bert") return Error{ErrorCode::kNotFound, "no such job"};
    if (traced_s == 0) return Error{ErrorCode::kUnavailable, "there is no trace"};
    return trace_view;
  }

  Status begin_snapshot(const std::string& job, double timeout_s) override {
    if (job != "bert") return Error{ErrorCode::kNotFound, "no such job"};
    if (snapshot_view) return Error{ErrorCode::kUnavailable, "a snapshot is being taken"};
    snapshot_view = {.job = job, .state = "cutting", .chunks = 8, .error = {}};
    snapshot_timeout_s = timeout_s;
    return ok_status();
  }
  std::optional<control::SnapshotView> snapshot(const std::string& job) const override {
    return job == "bert" ? snapshot_view : std::nullopt;
  }

  Status set_duty(const std::string& box, cluster::Duty duty) override {
    if (box != "box<2>") return Error{ErrorCode::kNotFound, "no such box"};
    if (alone) return Error{ErrorCode::kUnavailable, "this box is alone"};
    cluster_view.duties[box] = {.parts = 3, .duty = duty};
    return ok_status();
  }

  Result<std::string> flight() const override {
    if (flight_image.empty()) return Error{ErrorCode::kSystem, "cannot read the flight recorder"};
    return flight_image;
  }

  std::optional<control::SnapshotView> snapshot_view;
  double snapshot_timeout_s = 0;
  std::string flight_image = std::string("\x00\xffPBOX", 6);
  bool alone = false;
  double traced_s = 0;
  control::TraceView trace_view{
      .job = "bert",
      .world_size = 3,
      .begun_ns = 1'000,
      .ended_ns = 2'000'001'000,
      .lost_events = 4,
      .chunks = {{.part = 1, .chunk = 9, .pipeline = 2, .tensor = "<head>", .priority = -3}},
      .events = {}};
  BoxView box_view;
  cluster::BalancingView balancing_view;
  ClusterView cluster_view{
      .name = "rack",
      .store = "etcd",
      .store_up = true,
      .store_errors = {{"get", 0}, {"commit", 3}},
      .is_leader = true,
      .leader = cluster::Leader{"box<1>", 1'700'000'000},
      .boxes = {{.name = "box<1>", .control = "10.0.0.9:9541", .data = {"10.0.0.9:9542"}},
                {.name = "box<2>", .capacity_bytes_per_s = 125'000'000}}};
  HistoryView history_view{
      .points = {{.received_per_s = 1e9, .sent_per_s = 2e9, .busiest = 0.5}, {}},
      .jobs = {{.job = "bert",
                .points = {{.chunk_rounds_per_s = 12, .late_rank = 1, .late_s = 0.25}, {}},
                .events = {{.age_s = 4, .name = "worker_lost", .warns = true, .text = "<gone>"}}}}};
  std::vector<control::JobView> job_views;
  std::vector<control::StragglerView> straggler_views{
      {.job = "bert",
       .state = "running",
       .world_size = 3,
       .chunk_rounds = 1234,
       .awaited = {{.rank = 1,
                    .peer = "10.0.0.2:5",
                    .state = "lost",
                    .waited_s = 3.5,
                    .place = {"embedding", 17}}},
       .ranks = {{.rank = 1,
                  .peer = "10.0.0.2:5",
                  .state = "lost",
                  .last_arrivals = 1000,
                  .last_share = 0.75,
                  .late_s = 8.5,
                  .worst_late_s = 3.25,
                  .worst_age_s = 60,
                  .worst = {"head", 12}},
                 {.rank = 0, .peer = "10.0.0.1:5", .state = "joined"}},
       .tensors = {{.tensor = "head",
                    .late_s = 8.5,
                    .worst_late_s = 3.25,
                    .worst_rank = 1,
                    .worst_round = 12}},
       .rounds = {{.round = 16,
                   .chunks = 4,
                   .age_s = 3.5,
                   .seconds = 0.125,
                   .late_s = 0.0625,
                   .rank = 2,
                   .tensor = "head"}}},
      {.job = kOddName, .state = "running", .world_size = 1}};
  std::array<pipeline::Counters, 2> counters;
  nic::PortCounters port_counters;
};

}  // namespace pbox::admin
