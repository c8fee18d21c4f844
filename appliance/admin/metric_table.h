// The one table of what the box exports: it makes /metrics and the reference page, METRICS.md. To
// add a metric: a row in metric_table.cc, or, if a pipeline or a port counts it, in the table of
// pipeline/observe/counters.h or nic/port_counters.h, which are parts of this one.
#pragma once

#include <prometheus/metric_family.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "appliance/admin/metrics.h"
#include "appliance/admin/source.h"

namespace pbox::appliance {

// What one page is made of.
struct MetricSample {
  BoxView box;
  ClusterView cluster;
  cluster::BalancingView balancing;
  ProcessUsage usage;
  std::vector<PipelineView> pipelines;
  std::vector<JobView> jobs;
  // Of the jobs whose ranks are shown one by one, by index; see limits::kMetricRanksMax.
  std::vector<bool> shows_ranks;
  uint64_t ranks_left_out = 0;
};

// Which series a metric has, and so its first labels.
enum class MetricScope : uint8_t { kBox, kPipeline, kJob, kRank };

// A metric has a value for each of its scope, or is filled as a whole. A value that is nothing has
// no series.
struct MetricRow {
  const char* name;
  prometheus::MetricType type;
  MetricScope scope;
  const char* labels;  // beyond those of the scope: "reason"; mostly none
  const char* help;
  std::optional<double> (*of_box)(const MetricSample&) = nullptr;
  std::optional<double> (*of_job)(const JobView&) = nullptr;
  std::optional<double> (*of_rank)(const WorkerView&) = nullptr;
  void (*fill)(prometheus::MetricFamily&, const MetricSample&) = nullptr;
};

// Rows that this folder makes the values of; in the order of the page.
std::span<const MetricRow> metric_rows();

// A metric as the page and the reference have it: also those of the pipelines' tables.
struct MetricInfo {
  const char* name;
  prometheus::MetricType type;
  MetricScope scope;
  std::string labels;
  std::string help;
  std::string label_values = {};  // of a label that the table knows all values of
};
std::vector<MetricInfo> all_metrics();
prometheus::MetricType type_of(const CounterRow& row);

// "seconds", "bytes", ...: base units stand in the names, as Prometheus has it. Empty: a plain
// number, or a count of what the name says.
std::string_view unit_of(std::string_view name);

// METRICS.md, whole.
std::string metric_reference();

}  // namespace pbox::appliance
