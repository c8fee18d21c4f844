#include "appliance/admin/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <locale>
#include <span>
#include <sstream>
#include <utility>

#include "appliance/admin/metric_table.h"
#include "base/limits.h"

namespace pbox::admin {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

MetricFamily make_family(const char* metric, MetricType type, const char* help) {
  MetricFamily family;
  family.name = metric;
  family.type = type;
  family.help = help;
  return family;
}

void add_series(MetricFamily& family, Labels labels, std::optional<double> value) {
  if (!value) return;
  ClientMetric series;
  series.label = std::move(labels);
  if (family.type == MetricType::Counter) {
    series.counter.value = *value;
  } else {
    series.gauge.value = *value;
  }
  family.metric.push_back(std::move(series));
}

// The label is training_job: Prometheus reserves `job` and would rename ours when it scrapes.
MetricFamily family_of(const MetricRow& row, const MetricSample& sample) {
  MetricFamily family = make_family(row.name, row.type, row.help);
  if (row.fill != nullptr) row.fill(family, sample);
  if (row.of_box != nullptr) add_series(family, {}, row.of_box(sample));
  for (size_t index = 0; index < sample.jobs.size(); ++index) {
    const control::JobView& job = sample.jobs[index];
    if (row.of_job != nullptr) {
      add_series(family, {{"training_job", job.name}}, row.of_job(job));
    }
    if (row.of_rank == nullptr || !sample.shows_ranks[index]) continue;
    for (const control::WorkerView& worker : job.workers) {
      add_series(family, {{"training_job", job.name}, {"rank", std::to_string(worker.rank)}},
                 row.of_rank(worker));
    }
  }
  return family;
}

// Rows of one metric differ in their label's value and make one family, with the help of the first
// row.
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
      families.push_back(make_family(row.metric, type_of(row), row.help));
      family = families.end() - 1;
    }
    for (const PipelineView& view : pipelines) {
      if (view.*counters == nullptr) continue;
      Labels labels{{"pipeline", std::to_string(view.index)}};
      if (row.label[0] != '\0') labels.push_back({row.label, row.value});
      const uint64_t value = (view.*counters)->get(static_cast<Counter>(row_index));
      add_series(*family, std::move(labels), exported_value(row, value));
    }
  }
}

// Bounds the number of series: a job whose ranks would exceed the bound has no series by rank.
void choose_ranks(MetricSample& sample) {
  size_t shown = 0;
  for (const control::JobView& job : sample.jobs) {
    const bool fits = shown + job.workers.size() <= limits::kMetricRanksMax;
    sample.shows_ranks.push_back(fits);
    if (fits) shown += job.workers.size();
    if (!fits) sample.ranks_left_out += job.workers.size();
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
  MetricSample sample{.box = source.box(),
                      .cluster = source.cluster(),
                      .balancing = source.balancing(),
                      .usage = usage,
                      .pipelines = source.pipelines(),
                      .jobs = source.jobs(),
                      .shows_ranks = {}};
  // Backup copies have random names, and other boxes have the jobs that they copy.
  std::erase_if(sample.jobs, [](const control::JobView& job) { return job.is_backup; });
  choose_ranks(sample);
  std::vector<MetricFamily> families;
  for (const MetricRow& row : metric_rows()) families.push_back(family_of(row, sample));
  add_pipeline_families(families, pipeline::kCounterTable, sample.pipelines,
                        &PipelineView::counters);
  add_pipeline_families(families, nic::kPortCounterTable, sample.pipelines,
                        &PipelineView::port_counters);

  std::ostringstream text;
  text.imbue(std::locale::classic());  // the host's locale may write separators between digits
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace pbox::admin
