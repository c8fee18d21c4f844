// The one table of what the box exports: it makes /metrics and the reference page, docs/metrics.md.
// To add a metric, add a row to metric_table.cc. If a pipeline or a port counts it, add the row to
// pipeline/observe/counters.h or nic/port_counters.h, which are parts of this table.
#pragma once

#include <prometheus/metric_family.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "appliance/admin/metrics.h"
#include "appliance/admin/source.h"

namespace pbox::admin {

// The values from which one page of /metrics is made.
struct MetricSample {
  BoxView box;
  ClusterView cluster;
  cluster::BalancingView balancing;
  ProcessUsage usage;
  std::vector<PipelineView> pipelines;
  std::vector<control::JobView> jobs;
  // By index of the job: whether each of its ranks has series of its own; see
  // limits::kMetricRanksMax.
  std::vector<bool> shows_ranks;
  uint64_t ranks_left_out = 0;
};

// The kind of object for which a metric has one series each. The object gives the first labels.
enum class MetricScope : uint8_t { kBox, kPipeline, kJob, kRank };

// A metric either has a function that returns its value for one object of its scope, or `fill`,
// which adds all its series. A value of nullopt has no series.
struct MetricRow {
  const char* name;
  prometheus::MetricType type;
  MetricScope scope;
  const char* labels;  // in addition to the scope's labels, for example "reason"; mostly empty
  const char* help;
  std::optional<double> (*of_box)(const MetricSample&) = nullptr;
  std::optional<double> (*of_job)(const control::JobView&) = nullptr;
  std::optional<double> (*of_rank)(const control::WorkerView&) = nullptr;
  void (*fill)(prometheus::MetricFamily&, const MetricSample&) = nullptr;
};

// Rows whose values this folder computes, in the order of the page.
std::span<const MetricRow> metric_rows();

// A metric as /metrics and the reference page show it. Pipelines and ports have metrics, too.
struct MetricInfo {
  const char* name;
  prometheus::MetricType type;
  MetricScope scope;
  std::string labels;
  std::string help;
  std::string label_values = {};  // all values of the label, if the table knows them
};
std::vector<MetricInfo> all_metrics();
prometheus::MetricType type_of(const CounterRow& row);

// Returns the base unit in the metric's name, for example "seconds" or "bytes"; empty for a plain
// number, or a count of what the name says.
std::string_view unit_of(std::string_view name);

// Returns the whole text of docs/metrics.md.
std::string metric_reference();

}  // namespace pbox::admin
