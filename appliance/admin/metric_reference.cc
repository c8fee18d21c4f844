#include <locale>
#include <sstream>

#include "appliance/admin/metric_table.h"
#include "base/limits.h"
#include "pipeline/observe/duration_histogram.h"

namespace pbox::admin {
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
  const char* labels;  // labels that every metric of the section has
};

constexpr Section kSections[] = {
    {MetricScope::kBox, "The box", "One series each, unless a label is named.", ""},
    {MetricScope::kPipeline, "Pipelines",
     "One series for each pipeline, or for each pipeline and value of the label.", "pipeline"},
    {MetricScope::kJob, "Jobs",
     "One series for each job; it vanishes with the job. Its label is not `job`, a name "
     "that\nPrometheus "
     "reserves.",
     "training_job"},
    {MetricScope::kRank, "Ranks", "One series for each rank of each job; it vanishes with the job.",
     "training_job,rank"},
};

// Turns "a,b" into "`a`, `b`".
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
       << "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
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
  page << "# Metrics of a box\n\n"
          "This page is for whoever reads `/metrics`, dashboards or alerts. It says what each "
          "metric "
          "means.\n"
          "[troubleshooting.md](troubleshooting.md) says what to do when one of them grows.\n\n"
          "The page is generated. A test compares it with the tables in `metric_table.cc`,\n"
          "`pipeline/observe/counters.h` and `nic/port_counters.h`. To generate it again, from the "
          "root of the\ntree:\n\n"
          "    build/release/tests/print_metric_reference > docs/metrics.md\n\n"
          "* Times are in seconds and sizes in bytes.\n"
          "* Counters begin at 0 with the daemon, or with the job.\n"
          "* Durations are counted in buckets that double, from "
       << static_cast<double>(DurationHistogram::bound_ns(0)) * 1e-6 << " ms to "
       << static_cast<double>(DurationHistogram::bound_ns(DurationHistogram::kBucketCount - 2)) *
              1e-9
       << " s.\n\n"
          "**How many series.** A box has at most "
       << limits::kPipelinesMax << " pipelines and " << limits::kJobsMax
       << " jobs. It shows each rank by itself,\nup to " << limits::kMetricRanksMax
       << " ranks. In the order of their names, a job that would exceed that has no series by "
          "rank;\n"
          "`pbox_metrics_ranks_left_out` says how many ranks are left out. Only the name of a job "
          "comes from\noutside; no other label has values that packets or workers choose.\n";
  for (const Section& section : kSections) add_section(page, section);
  return page.str();
}

}  // namespace pbox::admin
