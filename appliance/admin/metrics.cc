#include "appliance/admin/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <locale>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

namespace pbox::appliance {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// One family: how its value is read from a view; nothing: this view has no series in it.
template <typename View>
struct MetricRow {
  const char* metric;
  MetricType type;
  const char* help;
  std::optional<double> (*value)(const View&);
};

struct BoxSample {
  BoxView box;
  ClusterView cluster;
  ProcessUsage usage;
};

constexpr MetricRow<BoxSample> kBoxRows[] = {
    {"pbox_uptime_seconds", MetricType::Gauge, "Time since the daemon started",
     [](const BoxSample& sample) { return std::optional(sample.box.uptime_s); }},
    {"pbox_ready", MetricType::Gauge, "1 if pipelines run and joins are accepted",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.ready); }},
    {"pbox_draining", MetricType::Gauge, "1 if the box lets its jobs end and takes no new ones",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.draining); }},
    {"pbox_insecure", MetricType::Gauge, "1 if packets carry no keyed tag",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.insecure); }},
    {"pbox_box_job_memory_bytes", MetricType::Gauge, "Memory taken by all jobs",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.job_memory_bytes); }},
    {"pbox_box_job_memory_limit_bytes", MetricType::Gauge, "Memory that jobs may take",
     [](const BoxSample& sample) {
       return std::optional<double>(sample.box.job_memory_limit_bytes);
     }},
    {"pbox_joins_refused_total", MetricType::Counter, "Joins answered with an error",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.joins_refused); }},
    {"pbox_workers_lost_total", MetricType::Counter, "Workers that went without leaving",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.workers_lost); }},
    {"pbox_workers_back_total", MetricType::Counter,
     "Lost workers that came back, as themselves or replaced",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.workers_back); }},
    {"pbox_workers_excluded_total", MetricType::Counter, "Lost workers that a job went on without",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.workers_excluded); }},
    {"pbox_jobs_recovered_total", MetricType::Counter,
     "Jobs that went on here after a box was lost",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.jobs_recovered); }},
    {"pbox_jobs_failed_total", MetricType::Counter, "Jobs ended by a failure",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.jobs_failed); }},
    {"pbox_jobs_finished_total", MetricType::Counter, "Jobs whose workers all left",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.jobs_finished); }},
    {"pbox_port_links_down", MetricType::Gauge, "DPDK devices whose link is down now",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.links_down.size()); }},
    {"pbox_cluster_store_up", MetricType::Gauge, "1 while the store of the cluster answers",
     [](const BoxSample& sample) { return std::optional<double>(sample.cluster.store_up); }},
    {"pbox_cluster_is_leader", MetricType::Gauge, "1 if this box leads the cluster",
     [](const BoxSample& sample) { return std::optional<double>(sample.cluster.is_leader); }},
    {"pbox_cluster_boxes", MetricType::Gauge, "Boxes of the cluster, as last heard",
     [](const BoxSample& sample) { return std::optional<double>(sample.cluster.boxes.size()); }},
    {"pbox_control_connections", MetricType::Gauge, "Open control connections of workers",
     [](const BoxSample& sample) { return std::optional<double>(sample.box.control_connections); }},
    {"pbox_resident_memory_bytes", MetricType::Gauge, "Resident memory of the daemon",
     [](const BoxSample& sample) { return std::optional<double>(sample.usage.resident_bytes); }},
    {"pbox_cpu_seconds_total", MetricType::Counter, "CPU time of the daemon, all threads",
     [](const BoxSample& sample) { return std::optional(sample.usage.cpu_s); }},
};

template <typename T>
std::optional<double> of_pulls(const JobView& job, T PullView::*field) {
  return job.pulls ? std::optional(static_cast<double>((*job.pulls).*field)) : std::nullopt;
}

constexpr MetricRow<JobView> kJobRows[] = {
    {"pbox_job_chunk_rounds_total", MetricType::Counter, "Chunk rounds finished, over all chunks",
     [](const JobView& job) { return std::optional<double>(job.chunk_rounds); }},
    {"pbox_job_memory_bytes", MetricType::Gauge, "Memory taken by the job",
     [](const JobView& job) { return std::optional<double>(job.memory_bytes); }},
    {"pbox_job_pulls_total", MetricType::Counter,
     "Reads of chunks; absent where rounds wait for all workers anyway",
     [](const JobView& job) { return of_pulls(job, &PullView::pulls); }},
    {"pbox_job_pulls_delayed_total", MetricType::Counter,
     "Reads of chunks that waited, as the job's consistency model has it",
     [](const JobView& job) { return of_pulls(job, &PullView::delayed); }},
    {"pbox_job_parked_seconds_total", MetricType::Counter,
     "Time that reads of chunks have waited, over all of them",
     [](const JobView& job) { return of_pulls(job, &PullView::parked_s); }},
    {"pbox_job_lead_rounds", MetricType::Gauge,
     "The most rounds that a rank has been ahead of the slowest",
     [](const JobView& job) { return of_pulls(job, &PullView::lead_rounds); }},
};

constexpr MetricRow<WorkerView> kWorkerRows[] = {
    {"pbox_worker_bytes_received_total", MetricType::Counter, "Bytes received from the rank",
     [](const WorkerView& worker) { return std::optional<double>(worker.bytes_received); }},
    {"pbox_worker_fragments_total", MetricType::Counter, "Fragments received from the rank",
     [](const WorkerView& worker) { return std::optional<double>(worker.fragments_received); }},
    {"pbox_worker_duplicate_fragments_total", MetricType::Counter,
     "Fragments of the rank that had arrived before",
     [](const WorkerView& worker) { return std::optional<double>(worker.duplicates); }},
    {"pbox_worker_last_arrivals_total", MetricType::Counter,
     "Chunk rounds this rank finished last: who is late",
     [](const WorkerView& worker) { return std::optional<double>(worker.last_arrivals); }},
    {"pbox_worker_late_seconds_total", MetricType::Counter,
     "Time between the last arrival but one and this rank's, over the chunk rounds it finished",
     [](const WorkerView& worker) { return std::optional(worker.late_s); }},
    {"pbox_worker_awaited_seconds", MetricType::Gauge,
     "How long the other ranks have waited for this one's push; 0 while they do not",
     [](const WorkerView& worker) { return std::optional(worker.awaited_s); }},
    {"pbox_job_dropped_fragments_total", MetricType::Counter,
     "Fragments of the rank that came after their round had closed; with model drop",
     [](const WorkerView& worker) {
       const auto& dropped = worker.dropped_fragments;
       return dropped ? std::optional(static_cast<double>(*dropped)) : std::nullopt;
     }},
    {"pbox_worker_last_packet_age_seconds", MetricType::Gauge,
     "Time since the rank's last packet; absent before its first",
     [](const WorkerView& worker) {
       return worker.last_packet_age_s < 0 ? std::nullopt : std::optional(worker.last_packet_age_s);
     }},
    {"pbox_worker_up", MetricType::Gauge, "1 if the rank has joined and is neither lost nor gone",
     [](const WorkerView& worker) { return std::optional<double>(worker.state == "joined"); }},
};

constexpr const char* kWorkerStates[] = {"absent", "joined", "lost", "left"};

MetricFamily make_family(const char* metric, MetricType type, const char* help) {
  MetricFamily family;
  family.name = metric;
  family.type = type;
  family.help = help;
  return family;
}

void add_series(MetricFamily& family, Labels labels, double value) {
  ClientMetric series;
  series.label = std::move(labels);
  if (family.type == MetricType::Counter) {
    series.counter.value = value;
  } else {
    series.gauge.value = value;
  }
  family.metric.push_back(std::move(series));
}

MetricFamily build_info(const BoxView& box) {
  MetricFamily family =
      make_family("pbox_build_info", MetricType::Gauge, "1, labelled with what is running");
  add_series(family, {{"version", box.version}}, 1);
  return family;
}

MetricFamily store_errors(const ClusterView& cluster) {
  MetricFamily family = make_family("pbox_cluster_store_errors_total", MetricType::Counter,
                                    "Calls to the store of the cluster that failed");
  for (const auto& [operation, count] : cluster.store_errors) {
    add_series(family, {{"op", operation}}, static_cast<double>(count));
  }
  return family;
}

MetricFamily pipeline_info(const std::vector<PipelineView>& pipelines) {
  MetricFamily family = make_family("pbox_pipeline_info", MetricType::Gauge,
                                    "1, labelled with how packets reach the pipeline");
  for (const PipelineView& view : pipelines) {
    add_series(family,
               {{"pipeline", std::to_string(view.index)},
                {"port", view.port},
                {"nic", view.nic},
                {"affinity", view.affinity}},
               1);
  }
  return family;
}

// Rows of one metric differ in their label and make one family; the first of them has the help.
template <typename Counter>
void add_pipeline_families(std::vector<MetricFamily>& families, std::span<const CounterRow> table,
                           const std::vector<PipelineView>& pipelines,
                           const CounterSet<Counter>* PipelineView::*counters) {
  const size_t first_family = families.size();
  for (size_t row_index = 0; row_index < table.size(); ++row_index) {
    const CounterRow& row = table[row_index];
    auto family = std::find_if(
        families.begin() + static_cast<ptrdiff_t>(first_family), families.end(),
        [&row](const MetricFamily& candidate) { return candidate.name == row.metric; });
    if (family == families.end()) {
      families.push_back(make_family(row.metric, MetricType::Counter, row.help));
      family = families.end() - 1;
    }
    for (const PipelineView& view : pipelines) {
      if (view.*counters == nullptr) continue;
      Labels labels{{"pipeline", std::to_string(view.index)}};
      if (row.label[0] != '\0') labels.push_back({row.label, row.value});
      const uint64_t value = (view.*counters)->get(static_cast<Counter>(row_index));
      add_series(*family, std::move(labels), shown(row, value));
    }
  }
}

// The label is training_job: Prometheus keeps `job` for itself and would rename ours on scraping.
void add_job_families(std::vector<MetricFamily>& families, const std::vector<JobView>& jobs) {
  for (const MetricRow<JobView>& row : kJobRows) {
    MetricFamily family = make_family(row.metric, row.type, row.help);
    for (const JobView& job : jobs) {
      if (const auto value = row.value(job)) {
        add_series(family, {{"training_job", job.name}}, *value);
      }
    }
    families.push_back(std::move(family));
  }
  MetricFamily workers =
      make_family("pbox_job_workers", MetricType::Gauge, "Ranks of the job by state");
  for (const JobView& job : jobs) {
    for (const char* state : kWorkerStates) {
      const auto count =
          std::count_if(job.workers.begin(), job.workers.end(),
                        [state](const WorkerView& worker) { return worker.state == state; });
      add_series(workers, {{"training_job", job.name}, {"state", state}},
                 static_cast<double>(count));
    }
  }
  families.push_back(std::move(workers));
}

// Of all ranks together; absent until a worker has said what it read.
MetricFamily read_histogram(const std::vector<JobView>& jobs) {
  MetricFamily family = make_family("pbox_job_read_rounds_behind", MetricType::Histogram,
                                    "Rounds that the data lacked when a tensor was read");
  for (const JobView& job : jobs) {
    const std::vector<uint64_t>& reads = job.reads_by_rounds_behind;
    if (reads.empty()) continue;
    ClientMetric series;
    series.label = {{"training_job", job.name}};
    auto& histogram = series.histogram;
    for (size_t behind = 0; behind < reads.size(); ++behind) {
      histogram.sample_count += reads[behind];
      histogram.sample_sum += static_cast<double>(reads[behind]) * static_cast<double>(behind);
      if (behind + 1 == reads.size()) break;  // lacked that much or more
      histogram.bucket.push_back(
          {.cumulative_count = histogram.sample_count, .upper_bound = static_cast<double>(behind)});
    }
    family.metric.push_back(std::move(series));
  }
  return family;
}

void add_worker_families(std::vector<MetricFamily>& families, const std::vector<JobView>& jobs) {
  for (const MetricRow<WorkerView>& row : kWorkerRows) {
    MetricFamily family = make_family(row.metric, row.type, row.help);
    for (const JobView& job : jobs) {
      for (const WorkerView& worker : job.workers) {
        if (const auto value = row.value(worker)) {
          add_series(family, {{"training_job", job.name}, {"rank", std::to_string(worker.rank)}},
                     *value);
        }
      }
    }
    families.push_back(std::move(family));
  }
}

}  // namespace

ProcessUsage read_process_usage() {
  ProcessUsage usage;
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  std::ifstream statm("/proc/self/statm");
  if (statm >> total_pages >> resident_pages) {
    usage.resident_bytes = resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  timespec cpu{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
    usage.cpu_s = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
  }
  return usage;
}

std::string metrics_text(const AdminSource& source, const ProcessUsage& usage) {
  const BoxSample sample{source.box(), source.cluster(), usage};
  const std::vector<JobView> jobs = source.jobs();
  std::vector<MetricFamily> families;
  families.push_back(build_info(sample.box));
  for (const MetricRow<BoxSample>& row : kBoxRows) {
    families.push_back(make_family(row.metric, row.type, row.help));
    if (const auto value = row.value(sample)) add_series(families.back(), {}, *value);
  }
  families.push_back(store_errors(sample.cluster));
  const std::vector<PipelineView> pipelines = source.pipelines();
  families.push_back(pipeline_info(pipelines));
  add_pipeline_families(families, pipeline::kCounterTable, pipelines, &PipelineView::counters);
  add_pipeline_families(families, nic::kPortCounterTable, pipelines, &PipelineView::port_counters);
  add_job_families(families, jobs);
  families.push_back(read_histogram(jobs));
  add_worker_families(families, jobs);

  std::ostringstream text;
  text.imbue(std::locale::classic());  // whatever the host's locale writes between digits
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace pbox::appliance
