#include "appliance/admin/metric_table.h"

#include <algorithm>
#include <array>
#include <functional>

#include "pipeline/observe/duration_histogram.h"

namespace pbox::admin {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Value = std::optional<double>;

// Functions rather than a template: a lambda without captures converts to a function pointer in a
// call, but not when a template parameter is deduced.
constexpr MetricRow of_box(const char* name, MetricType type, const char* help,
                           Value (*value)(const MetricSample&)) {
  return {name, type, MetricScope::kBox, "", help, value};
}
constexpr MetricRow of_job(const char* name, MetricType type, const char* help,
                           Value (*value)(const control::JobView&)) {
  return {name, type, MetricScope::kJob, "", help, nullptr, value};
}
constexpr MetricRow of_rank(const char* name, MetricType type, const char* help,
                            Value (*value)(const control::WorkerView&)) {
  return {name, type, MetricScope::kRank, "", help, nullptr, nullptr, value};
}
constexpr MetricRow whole(const char* name, MetricType type, MetricScope scope, const char* labels,
                          const char* help, void (*fill)(MetricFamily&, const MetricSample&)) {
  return {name, type, scope, labels, help, nullptr, nullptr, nullptr, fill};
}

void add_gauge(MetricFamily& family, std::vector<ClientMetric::Label> labels, double value) {
  ClientMetric& series = family.metric.emplace_back();
  series.label = std::move(labels);
  series.gauge.value = value;
}

void fill_build_info(MetricFamily& family, const MetricSample& sample) {
  add_gauge(family, {{"version", sample.box.version}}, 1);
}

// One series for each tenant that has anything here. Jobs without a tenant have the label "".
template <typename Value>
void fill_tenants(MetricFamily& family, const MetricSample& sample, Value control::TenantUse::*of) {
  for (const auto& [tenant, use] : sample.box.tenants) {
    add_gauge(family, {{"tenant", tenant}}, static_cast<double>(use.*of));
  }
}

void fill_cluster_info(MetricFamily& family, const MetricSample& sample) {
  add_gauge(family, {{"cluster", sample.cluster.name}, {"store", sample.cluster.store}}, 1);
}

void fill_store_errors(MetricFamily& family, const MetricSample& sample) {
  for (const auto& [operation, count] : sample.cluster.store_errors) {
    ClientMetric& series = family.metric.emplace_back();
    series.label = {{"op", operation}};
    series.counter.value = static_cast<double>(count);
  }
}

void fill_rebalance_decisions(MetricFamily& family, const MetricSample& sample) {
  const auto& counts = sample.balancing.decisions;
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    ClientMetric& series = family.metric.emplace_back();
    series.label = {{"kind", placement::to_string(static_cast<placement::DecisionKind>(kind))}};
    series.counter.value = static_cast<double>(counts[kind]);
  }
}

// Absent on boxes that do not lead, and until the first proposal has been executed.
void fill_rebalance_gain(MetricFamily& family, const MetricSample& sample) {
  for (const cluster::BalanceView& job : sample.balancing.jobs) {
    if (job.last_gain) add_gauge(family, {{"training_job", job.job}}, *job.last_gain);
  }
}

size_t standbys(const ClusterView& cluster) {
  return static_cast<size_t>(std::count_if(
      cluster.duties.begin(), cluster.duties.end(),
      [](const auto& entry) { return entry.second.duty == cluster::Duty::kStandby; }));
}

void fill_scale_decisions(MetricFamily& family, const MetricSample& sample) {
  const auto& counts = sample.balancing.scaling.counts;
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    ClientMetric& series = family.metric.emplace_back();
    series.label = {
        {"kind", placement::to_string(static_cast<placement::ScaleDecision::Kind>(kind))}};
    series.counter.value = static_cast<double>(counts[kind]);
  }
}

void fill_pipeline_info(MetricFamily& family, const MetricSample& sample) {
  for (const PipelineView& view : sample.pipelines) {
    add_gauge(family,
              {{"pipeline", std::to_string(view.index)},
               {"port", view.port},
               {"nic", view.nic},
               {"affinity", view.affinity}},
              1);
  }
}

void fill_job_workers(MetricFamily& family, const MetricSample& sample) {
  for (const control::JobView& job : sample.jobs) {
    for (const char* state : {"absent", "joined", "lost", "left", "excluded"}) {
      const auto count = std::count_if(
          job.workers.begin(), job.workers.end(),
          [state](const control::WorkerView& worker) { return worker.state == state; });
      add_gauge(family, {{"training_job", job.name}, {"state", state}}, static_cast<double>(count));
    }
  }
}

// One series per job, over all its ranks; absent until a worker has reported its reads.
void fill_reads(MetricFamily& family, const MetricSample& sample) {
  for (const control::JobView& job : sample.jobs) {
    const std::vector<uint64_t>& reads = job.reads_by_rounds_behind;
    if (reads.empty()) continue;
    ClientMetric& series = family.metric.emplace_back();
    series.label = {{"training_job", job.name}};
    auto& histogram = series.histogram;
    for (size_t behind = 0; behind < reads.size(); ++behind) {
      histogram.sample_count += reads[behind];
      histogram.sample_sum += static_cast<double>(reads[behind]) * static_cast<double>(behind);
      if (behind + 1 == reads.size()) break;  // the last entry counts this many rounds or more
      histogram.bucket.push_back(
          {.cumulative_count = histogram.sample_count, .upper_bound = static_cast<double>(behind)});
    }
  }
}

// Absent for jobs whose consistency model has no round that waits for all ranks.
template <control::HistogramView control::JobView::*kHistogram>
void fill_durations(MetricFamily& family, const MetricSample& sample) {
  for (const control::JobView& job : sample.jobs) {
    const control::HistogramView& view = job.*kHistogram;
    if (view.counts.empty()) continue;
    ClientMetric& series = family.metric.emplace_back();
    series.label = {{"training_job", job.name}};
    auto& histogram = series.histogram;
    histogram.sample_sum = view.sum_s;
    for (size_t bucket = 0; bucket < view.counts.size(); ++bucket) {
      histogram.sample_count += view.counts[bucket];
      if (bucket + 1 == view.counts.size()) break;  // the last bucket has no upper bound
      const uint64_t bound_ns = pipeline::DurationHistogram::bound_ns(bucket);
      histogram.bucket.push_back({.cumulative_count = histogram.sample_count,
                                  .upper_bound = static_cast<double>(bound_ns) / 1e9});
    }
  }
}

template <typename T>
Value of_pulls(const control::JobView& job, T control::PullView::*field) {
  return job.pulls ? Value(static_cast<double>((*job.pulls).*field)) : std::nullopt;
}

// Merges the values of all parts of the job. Returns nullopt if no tensor is adaptive.
template <typename T, typename Merge>
Value of_control(const control::JobView& job, T control::SyncControlView::*field, Merge merge) {
  Value merged;
  for (const control::SyncControlView& part : job.sync.control) {
    const auto value = static_cast<double>(part.*field);
    merged = merged ? merge(*merged, value) : value;
  }
  return merged;
}

template <typename T>
Value of_upstream(const control::JobView& job, T control::RelayView::*field) {
  return job.upstream ? Value(static_cast<double>((*job.upstream).*field)) : std::nullopt;
}

template <typename T>
Value of_backup(const control::JobView& job, T control::BackupView::*field) {
  return job.backup ? Value(static_cast<double>((*job.backup).*field)) : std::nullopt;
}

constexpr auto kGauge = MetricType::Gauge;
constexpr auto kCounter = MetricType::Counter;
constexpr auto kHistogram = MetricType::Histogram;
using Sample = MetricSample;

constexpr MetricRow kRows[] = {
    whole("pbox_build_info", kGauge, MetricScope::kBox, "version",
          "Always 1; the label holds the version of the daemon", fill_build_info),
    of_box("pbox_uptime_seconds", kGauge, "Time since the daemon started",
           [](const Sample& sample) { return Value(sample.box.uptime_s); }),
    of_box("pbox_ready", kGauge, "1 while the pipelines run and JOINs are accepted",
           [](const Sample& sample) { return Value(sample.box.ready); }),
    of_box("pbox_draining", kGauge, "1 while the box stops: it takes no new jobs",
           [](const Sample& sample) { return Value(sample.box.draining); }),
    of_box("pbox_insecure", kGauge, "1 if packets carry a checksum instead of a keyed tag",
           [](const Sample& sample) { return Value(sample.box.insecure); }),
    of_box("pbox_box_job_memory_bytes", kGauge, "Memory that all jobs together hold",
           [](const Sample& sample) { return Value(sample.box.job_memory_bytes); }),
    of_box("pbox_box_job_memory_limit_bytes", kGauge, "Memory that all jobs together may hold",
           [](const Sample& sample) { return Value(sample.box.job_memory_limit_bytes); }),
    of_box("pbox_joins_refused_total", kCounter, "JOINs that the box refused",
           [](const Sample& sample) { return Value(sample.box.joins_refused); }),
    of_box("pbox_workers_lost_total", kCounter, "Workers that disconnected without LEAVE",
           [](const Sample& sample) { return Value(sample.box.workers_lost); }),
    of_box("pbox_workers_back_total", kCounter,
           "Lost workers that returned: the same process, or one in its place",
           [](const Sample& sample) { return Value(sample.box.workers_back); }),
    of_box("pbox_workers_excluded_total", kCounter, "Lost workers that a job continues without",
           [](const Sample& sample) { return Value(sample.box.workers_excluded); }),
    of_box("pbox_jobs_recovered_total", kCounter,
           "Parts of jobs that opened again and went on: after the loss of a box, a move, or a new "
           "copy",
           [](const Sample& sample) { return Value(sample.box.jobs_recovered); }),
    of_box("pbox_optimizer_restarts_total", kCounter,
           "Jobs in mode optimize that continued on this box without their newest optimizer state",
           [](const Sample& sample) { return Value(sample.box.optimizer_restarts); }),
    of_box("pbox_backups_lost_total", kCounter,
           "Backup boxes of parts on this box that were lost or drained",
           [](const Sample& sample) { return Value(sample.box.backups_lost); }),
    of_box("pbox_worker_ports_given_up_total", kCounter,
           "Times a worker gave up a port of its PBOX_PORT and used the next one; the log says why",
           [](const Sample& sample) { return Value(sample.box.ports_given_up); }),
    of_box("pbox_jobs_failed_total", kCounter, "Jobs that failed",
           [](const Sample& sample) { return Value(sample.box.jobs_failed); }),
    of_box("pbox_jobs_finished_total", kCounter, "Jobs that ended because all their workers left",
           [](const Sample& sample) { return Value(sample.box.jobs_finished); }),
    of_box("pbox_port_links_down", kGauge, "DPDK devices whose link is down",
           [](const Sample& sample) { return Value(sample.box.links_down.size()); }),
    whole("pbox_cluster_info", kGauge, MetricScope::kBox, "cluster,store",
          "Always 1; the labels hold the box's cluster and the kind of its store, local for a box "
          "that is alone",
          fill_cluster_info),
    of_box("pbox_cluster_store_up", kGauge,
           "1 while the store of the cluster answers this box and accepts its changes",
           [](const Sample& sample) { return Value(sample.cluster.store_up); }),
    of_box("pbox_cluster_is_leader", kGauge, "1 if this box leads the cluster",
           [](const Sample& sample) { return Value(sample.cluster.is_leader); }),
    of_box("pbox_snapshots_total", kCounter,
           "Snapshots of jobs that this box was asked for and that were taken",
           [](const Sample& sample) { return Value(sample.box.snapshots_taken); }),
    of_box("pbox_snapshots_failed_total", kCounter,
           "Snapshots of jobs that this box was asked for and that failed; the log says why",
           [](const Sample& sample) { return Value(sample.box.snapshots_failed); }),
    of_box("pbox_parts_moved_total", kCounter,
           "Parts of jobs that moved from this box to another one",
           [](const Sample& sample) { return Value(sample.box.parts_moved); }),
    of_box("pbox_rebalance_parts_moved_total", kCounter,
           "Parts of jobs that this box moved as the leader, to balance the boxes",
           [](const Sample& sample) { return Value(sample.balancing.parts_moved); }),
    of_box("pbox_rebalance_groups_moved_total", kCounter,
           "Groups of chunks that this box moved between its pipelines, to balance them",
           [](const Sample& sample) { return Value(sample.balancing.inside.groups_moved); }),
    whole("pbox_rebalance_decisions_total", kCounter, MetricScope::kBox, "kind",
          "Decisions about parts of jobs that this box made as the leader; hold means no change",
          fill_rebalance_decisions),
    whole("pbox_rebalance_last_gain_ratio", kGauge, MetricScope::kJob, "",
          "Share of the iteration time that the last move of parts saved, on the leader; negative "
          "if iterations became longer",
          fill_rebalance_gain),
    of_box("pbox_cluster_boxes", kGauge, "Boxes of the cluster that this box knows",
           [](const Sample& sample) { return Value(sample.cluster.boxes.size()); }),
    of_box("pbox_cluster_standbys", kGauge,
           "Boxes of the cluster that take no parts until the cluster needs them",
           [](const Sample& sample) { return Value(standbys(sample.cluster)); }),
    of_box("pbox_cluster_pressure_ratio", kGauge,
           "Share of the memory or links in use, whichever is larger, of the boxes that take "
           "parts; absent unless this box leads and cluster.scale is on",
           [](const Sample& sample) { return sample.balancing.scaling.pressure; }),
    whole("pbox_scale_decisions_total", kCounter, MetricScope::kBox, "kind",
          "Decisions that this box made as the leader about how many boxes take parts",
          fill_scale_decisions),
    of_box("pbox_scale_hook_failures_total", kCounter, "Calls of cluster.scale_hook that failed",
           [](const Sample& sample) { return Value(sample.balancing.scaling.hook_failures); }),
    of_box("pbox_control_connections", kGauge, "Open control connections of workers",
           [](const Sample& sample) { return Value(sample.box.control_connections); }),
    of_box("pbox_handshakes_refused_total", kCounter,
           "Peers whose TLS handshake failed, took too long, or was displaced by newer ones; the "
           "log says why",
           [](const Sample& sample) { return Value(sample.box.handshakes_refused); }),
    of_box("pbox_keys_expiry_timestamp_seconds", kGauge,
           "When the box's keys expire, in seconds since 1970; absent without keys",
           [](const Sample& sample) {
             const auto expiry = sample.box.keys_expire_unix_s;
             return expiry ? Value(static_cast<double>(*expiry)) : Value();
           }),
    of_box("pbox_audit_lost_total", kCounter,
           "Lines that the audit log could not write; the log says why",
           [](const Sample& sample) { return Value(sample.box.audit_lost); }),
    of_box("pbox_resident_memory_bytes", kGauge, "Resident memory of the daemon",
           [](const Sample& sample) { return Value(sample.usage.resident_bytes); }),
    of_box("pbox_cpu_seconds_total", kCounter, "CPU time of the daemon, over all threads",
           [](const Sample& sample) { return Value(sample.usage.cpu_s); }),
    of_box("pbox_metrics_ranks_left_out", kGauge,
           "Ranks that have no series of their own, because the box has too many ranks",
           [](const Sample& sample) { return Value(sample.ranks_left_out); }),
    whole("pbox_tenant_jobs", kGauge, MetricScope::kBox, "tenant",
          "Jobs of the tenant; see [jobs] tenants for its bounds",
          [](MetricFamily& family, const Sample& sample) {
            fill_tenants(family, sample, &control::TenantUse::jobs);
          }),
    whole("pbox_tenant_memory_bytes", kGauge, MetricScope::kBox, "tenant",
          "Memory that the tenant's jobs hold, with the states that they left and their snapshots",
          [](MetricFamily& family, const Sample& sample) {
            fill_tenants(family, sample, &control::TenantUse::memory_bytes);
          }),
    whole("pbox_tenant_sessions", kGauge, MetricScope::kBox, "tenant",
          "Sessions of the tenant: one for each rank, part and pipeline",
          [](MetricFamily& family, const Sample& sample) {
            fill_tenants(family, sample, &control::TenantUse::sessions);
          }),
    whole("pbox_tenant_connections", kGauge, MetricScope::kBox, "tenant",
          "Control connections of the tenant",
          [](MetricFamily& family, const Sample& sample) {
            fill_tenants(family, sample, &control::TenantUse::connections);
          }),
    whole("pbox_cluster_store_errors_total", kCounter, MetricScope::kBox, "op",
          "Failed calls to the store of the cluster", fill_store_errors),
    whole("pbox_pipeline_info", kGauge, MetricScope::kPipeline, "port,nic,affinity",
          "Always 1; the labels say how packets reach the pipeline", fill_pipeline_info),
    of_job("pbox_job_chunk_rounds_total", kCounter, "Rounds finished, summed over all chunks",
           [](const control::JobView& job) { return Value(job.chunk_rounds); }),
    of_job("pbox_job_memory_bytes", kGauge, "Memory that the job holds",
           [](const control::JobView& job) { return Value(job.memory_bytes); }),
    of_job("pbox_job_pulls_total", kCounter,
           "Reads of chunks; absent if every round waits for all workers",
           [](const control::JobView& job) { return of_pulls(job, &control::PullView::pulls); }),
    of_job("pbox_job_pulls_delayed_total", kCounter,
           "Reads of chunks that had to wait under the job's consistency model",
           [](const control::JobView& job) { return of_pulls(job, &control::PullView::delayed); }),
    of_job("pbox_job_parked_seconds_total", kCounter, "Total time that reads of chunks were parked",
           [](const control::JobView& job) { return of_pulls(job, &control::PullView::parked_s); }),
    of_job(
        "pbox_job_lead_rounds", kGauge,
        "Largest number of rounds by which a rank has been ahead of the slowest",
        [](const control::JobView& job) { return of_pulls(job, &control::PullView::lead_rounds); }),
    of_job("pbox_job_grace_seconds", kGauge,
           "How long a round of model drop waits for more ranks after its quorum, the most of its "
           "shards; absent in other models, and while grace auto still waits for all ranks",
           [](const control::JobView& job) {
             return job.grace && !job.grace->is_unbounded ? Value(job.grace->grace_s) : Value();
           }),
    of_job("pbox_job_rounds_cut_total", kCounter,
           "Rounds of chunks that ended with their grace, before all ranks were in",
           [](const control::JobView& job) {
             return job.grace ? Value(job.grace->rounds_cut) : Value();
           }),
    of_job(
        "pbox_job_sync_staleness", kGauge,
        "Largest staleness that the controllers of the job's parts have chosen; absent unless some "
        "tensor's model is adaptive",
        [](const control::JobView& job) {
          return of_control(job, &control::SyncControlView::staleness,
                            [](double one, double other) { return std::max(one, other); });
        }),
    of_job(
        "pbox_job_sync_probability", kGauge,
        "Smallest probability that the fastest rank waits which the controllers of the job's parts "
        "have chosen",
        [](const control::JobView& job) {
          return of_control(job, &control::SyncControlView::probability,
                            [](double one, double other) { return std::min(one, other); });
        }),
    of_job("pbox_job_sync_decisions_total", kCounter,
           "Decisions of the controllers of the job's parts",
           [](const control::JobView& job) {
             return of_control(job, &control::SyncControlView::decisions, std::plus<>());
           }),
    of_job("pbox_job_upstream_chunks_total", kCounter,
           "Sums of chunks that came back from the upper box; absent without [upstream]",
           [](const control::JobView& job) {
             return of_upstream(job, &control::RelayView::chunks_relayed);
           }),
    of_job("pbox_job_upstream_chunks_in_flight", kGauge,
           "Sums of chunks that wait for other racks or for the upper box",
           [](const control::JobView& job) {
             return of_upstream(job, &control::RelayView::chunks_in_flight);
           }),
    of_job("pbox_job_parts_without_copy", kGauge,
           "Parts on this box that lack the backup copy that the job asks for; absent if it asks "
           "for none",
           [](const control::JobView& job) {
             return of_backup(job, &control::BackupView::parts_without);
           }),
    of_job("pbox_job_copied_chunks_total", kCounter,
           "Chunk states that the backup box acknowledged before their results were published",
           [](const control::JobView& job) {
             return of_backup(job, &control::BackupView::chunks_copied);
           }),
    of_job("pbox_job_copied_chunks_in_flight", kGauge,
           "Chunk states that the backup box has not acknowledged yet",
           [](const control::JobView& job) {
             return of_backup(job, &control::BackupView::chunks_in_flight);
           }),
    whole("pbox_job_workers", kGauge, MetricScope::kJob, "state", "Ranks of the job by state",
          fill_job_workers),
    whole("pbox_job_arrival_skew_seconds", kHistogram, MetricScope::kJob, "",
          "Rounds of chunks by the time from the first rank's push to the last rank's push",
          fill_durations<&control::JobView::arrival_skew>),
    whole("pbox_job_round_seconds", kHistogram, MetricScope::kJob, "",
          "Rounds of each pipeline by the time from the first rank's push to the last rank's push, "
          "over "
          "all its chunks of the job",
          fill_durations<&control::JobView::round_times>),
    whole("pbox_job_read_rounds_behind", kHistogram, MetricScope::kJob, "",
          "Reads of tensors by the number of rounds by which the data was behind", fill_reads),
    of_rank("pbox_worker_bytes_received_total", kCounter, "Bytes received from the rank",
            [](const control::WorkerView& worker) { return Value(worker.bytes_received); }),
    of_rank("pbox_worker_fragments_total", kCounter, "Fragments received from the rank",
            [](const control::WorkerView& worker) { return Value(worker.fragments_received); }),
    of_rank("pbox_worker_duplicate_fragments_total", kCounter,
            "Fragments of the rank that had arrived already",
            [](const control::WorkerView& worker) { return Value(worker.duplicates); }),
    of_rank("pbox_worker_last_arrivals_total", kCounter,
            "Rounds of chunks in which this rank was the last to push",
            [](const control::WorkerView& worker) { return Value(worker.last_arrivals); }),
    of_rank("pbox_worker_late_seconds_total", kCounter,
            "Total time that this rank held rounds up: from the second-to-last rank's arrival to "
            "its own",
            [](const control::WorkerView& worker) { return Value(worker.late_s); }),
    of_rank("pbox_worker_awaited_seconds", kGauge,
            "Time since some rank pushed a round that this rank has not pushed; 0 if there is none",
            [](const control::WorkerView& worker) { return Value(worker.awaited_s); }),
    of_rank("pbox_worker_nonfinite_fragments_total", kCounter,
            "Fragments from the rank that hold an infinity, a NaN, or a value beyond the job's "
            "guard_max_abs",
            [](const control::WorkerView& worker) { return Value(worker.nonfinite_fragments); }),
    of_rank("pbox_worker_gradient_squares", kGauge,
            "Sum of the squares of the rank's newest measured gradient, over the chunks on this "
            "box; every 16th round of a job is measured, and rounds 1, 2, 4 and 8",
            [](const control::WorkerView& worker) { return worker.gradient_squares; }),
    of_rank("pbox_job_dropped_fragments_total", kCounter,
            "Fragments of the rank that came after their round had closed; model drop only",
            [](const control::WorkerView& worker) {
              const auto& dropped = worker.dropped_fragments;
              return dropped ? Value(static_cast<double>(*dropped)) : std::nullopt;
            }),
    of_rank("pbox_job_missed_rounds_total", kCounter,
            "Rounds of chunks that closed before the rank's push was complete; model drop only",
            [](const control::WorkerView& worker) {
              const auto& missed = worker.missed_rounds;
              return missed ? Value(static_cast<double>(*missed)) : std::nullopt;
            }),
    of_rank("pbox_worker_last_packet_age_seconds", kGauge,
            "Time since the rank's newest packet; absent before its first",
            [](const control::WorkerView& worker) {
              return worker.last_packet_age_s < 0 ? std::nullopt : Value(worker.last_packet_age_s);
            }),
    of_rank("pbox_worker_up", kGauge, "1 while the rank is joined: neither lost nor gone",
            [](const control::WorkerView& worker) { return Value(worker.state == "joined"); }),
};

}  // namespace

std::span<const MetricRow> metric_rows() {
  return kRows;
}

std::vector<MetricInfo> all_metrics() {
  std::vector<MetricInfo> metrics;
  for (const MetricRow& row : kRows) {
    metrics.push_back({row.name, row.type, row.scope, row.labels, row.help});
  }
  const auto add = [&metrics](std::span<const CounterRow> table) {
    for (const CounterRow& row : table) {
      if (metrics.back().name != std::string_view(row.metric)) {
        metrics.push_back({row.metric, type_of(row), MetricScope::kPipeline, row.label, row.help});
      }
      std::string& values = metrics.back().label_values;
      if (row.value[0] != '\0') values += (values.empty() ? "" : ", ") + std::string(row.value);
    }
  };
  add(pipeline::kCounterTable);
  add(nic::kPortCounterTable);
  return metrics;
}

prometheus::MetricType type_of(const CounterRow& row) {
  return std::string_view(row.metric).ends_with("_total") ? kCounter : kGauge;
}

std::string_view unit_of(std::string_view name) {
  constexpr std::string_view kTotal = "_total";
  if (name.ends_with(kTotal)) name.remove_suffix(kTotal.size());
  const std::string_view last = name.substr(name.rfind('_') + 1);
  for (const std::string_view unit : {"seconds", "bytes", "packets", "fragments", "cycles"}) {
    if (last == unit) return unit;
  }
  return "";
}

}  // namespace pbox::admin
