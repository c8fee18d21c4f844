#include <locale>
#include <sstream>

#include "appliance/admin/metric_table.h"
#include "base/limits.h"
#include "pipeline/observe/duration_histogram.h"

namespace pbox::appliance {
namespace {

using prometheus::MetricType;

const char* name_of(MetricType type) {
  switch (type) {
    case MetricType::Counter: return "counter";
    case MetricType::Histogram: return "histogram";
    default: return "gauge";
  }
}

struct Section {
  MetricScope scope;
  const char* title;
  const char* text;
  const char* labels;  // that every metric of it has
};

constexpr Section kSections[] = {
    {MetricScope::kBox, "The box", "One series each, unless a label is named.", ""},
    {MetricScope::kPipeline, "Pipelines",
     "One series for each pipeline, or for each pipeline and value of the label.", "pipeline"},
    {MetricScope::kJob, "Jobs",
     "One series for each job; they vanish with it. The label is not `job`, which Prometheus keeps "
     "for itself.",
     "training_job"},
    {MetricScope::kRank, "Ranks", "One series for each rank of each job; they vanish with the job.",
     "training_job,rank"},
};

// "`a`, `b`" of "a,b".
std::string in_code(const std::string& list) {
  std::string text;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    text += (text.empty() ? "`" : ", `") + name + "`";
  }
  return text;
}

void add_section(std::ostringstream& page, const Section& section) {
  page << "\n## " << section.title << "\n\n"
       << section.text << "\n\n"
       << "| metric | type | unit | labels | says |\n|---|---|---|---|---|\n";
  for (const MetricInfo& metric : all_metrics()) {
    if (metric.scope != section.scope) continue;
    std::string labels = section.labels;
    if (!metric.labels.empty()) labels += (labels.empty() ? "" : ",") + metric.labels;
    page << "| `" << metric.name << "` | " << name_of(metric.type) << " | " << unit_of(metric.name)
         << " | " << in_code(labels) << " | " << metric.help;
    if (!metric.label_values.empty()) {
      page << ". `" << metric.labels << "` is one of: " << metric.label_values;
    }
    page << " |\n";
  }
}

}  // namespace

std::string metric_reference() {
  using pipeline::DurationHistogram;
  std::ostringstream page;
  page.imbue(std::locale::classic());
  page << "# The metrics of a box\n\n"
          "Made from the tables that make `/metrics` (`metric_table.cc`, "
          "`pipeline/observe/counters.h`,\n"
          "`nic/port_counters.h`); a test holds this page to them. To make it anew, from the root "
          "of "
          "the tree:\n\n"
          "    build/release/tests/print_metric_reference > appliance/admin/METRICS.md\n\n"
          "Times are in seconds and sizes in bytes. Counters begin at 0 with the daemon, or with "
          "the "
          "job.\n"
          "Durations are counted in buckets that double, from "
       << static_cast<double>(DurationHistogram::bound_ns(0)) * 1e-6 << " ms to "
       << static_cast<double>(DurationHistogram::bound_ns(DurationHistogram::kBucketCount - 2)) *
              1e-9
       << " s.\n\n"
          "**How many series.** A box has at most "
       << limits::kPipelinesMax << " pipelines and " << limits::kJobsMax
       << " jobs. Ranks are shown one by one\nup to " << limits::kMetricRanksMax
       << " on a box; a job that would go beyond that, in the order of their names, has no\nseries "
          "by rank, and `pbox_metrics_ranks_left_out` says how many ranks that concerns. No label "
          "has values\nthat packets or workers choose, but the name of a job.\n";
  for (const Section& section : kSections) add_section(page, section);
  return page.str();
}

}  // namespace pbox::appliance
