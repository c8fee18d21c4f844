#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <sstream>

#include "appliance/admin/metric_table.h"
#include "appliance/admin/metrics.h"
#include "base/limits.h"
#include "pipeline/observe/duration_histogram.h"
#include "tests/unit/appliance/admin/fake_source.h"

namespace pbox::admin {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Returns the lines of /metrics of the fake box, in which tests look for whole lines.
std::set<std::string> sample_lines(const AdminSource& source) {
  const auto lines = lines_of(metrics_text(source, {.resident_bytes = 8192, .cpu_s = 1.5}));
  return {lines.begin(), lines.end()};
}

TEST_CASE("box families carry the box's numbers") {
  const auto lines = sample_lines(FakeSource());
  for (const char* line : {"pbox_build_info{version=\"0.1.0\"} 1",
                           "# TYPE pbox_build_info gauge",
                           "pbox_uptime_seconds 12.5",
                           "pbox_ready 1",
                           "pbox_draining 0",
                           "pbox_insecure 0",
                           "pbox_box_job_memory_bytes 4096",
                           "pbox_box_job_memory_limit_bytes 1048576",
                           "pbox_joins_refused_total 3",
                           "pbox_workers_lost_total 2",
                           "pbox_jobs_failed_total 1",
                           "pbox_jobs_finished_total 5",
                           "pbox_control_connections 4",
                           "pbox_handshakes_refused_total 6",
                           "pbox_keys_expiry_timestamp_seconds 1800000000",
                           "pbox_audit_lost_total 7",
                           "pbox_port_links_down 2",
                           "pbox_cluster_info{cluster=\"rack\",store=\"etcd\"} 1",
                           "pbox_cluster_store_up 1",
                           "pbox_cluster_is_leader 1",
                           "pbox_cluster_boxes 2",
                           "pbox_cluster_store_errors_total{op=\"commit\"} 3",
                           "pbox_resident_memory_bytes 8192",
                           "pbox_cpu_seconds_total 1.5",
                           "# TYPE pbox_cpu_seconds_total counter"}) {
    INFO(line);
    CHECK(lines.count(line) == 1);
  }
}

TEST_CASE("a backup copy has no series of its own, because its name is random") {
  FakeSource source;
  source.job_views[0].is_backup = true;
  const std::string text = metrics_text(source, {});
  CHECK(text.find("bert") == std::string::npos);
  CHECK(text.find("pbox_job_chunk_rounds_total{") != std::string::npos);  // the other job
}

TEST_CASE("rebalancing decisions are counted by kind, and gains are shown by job") {
  FakeSource source;
  source.balancing_view = {.enabled = true, .leads = true, .parts_moved = 5};
  source.balancing_view.decisions[static_cast<size_t>(placement::DecisionKind::kRevert)] = 2;
  source.balancing_view.jobs.push_back({.job = "bert", .last_gain = -0.5});
  source.balancing_view.jobs.push_back({.job = "fresh"});
  const auto lines = sample_lines(source);
  CHECK(lines.count("pbox_rebalance_decisions_total{kind=\"revert\"} 2") == 1);
  CHECK(lines.count("pbox_rebalance_decisions_total{kind=\"hold\"} 0") == 1);
  CHECK(lines.count("pbox_rebalance_parts_moved_total 5") == 1);
  CHECK(lines.count("pbox_rebalance_last_gain_ratio{training_job=\"bert\"} -0.5") == 1);
  CHECK(lines.count("pbox_rebalance_last_gain_ratio{training_job=\"fresh\"} -0.5") == 0);
}

TEST_CASE("pipeline families have a series per pipeline and reason; whole numbers stay whole") {
  const auto lines = sample_lines(FakeSource());
  for (const char* line : {"pbox_rx_packets_total{pipeline=\"0\"} 7",
                           "pbox_rx_packets_total{pipeline=\"1\"} 1099511627777",
                           "pbox_rejected_packets_total{pipeline=\"1\",reason=\"tag\"} 9",
                           "pbox_pipeline_busy_seconds_total{pipeline=\"0\"} 1.5",
                           "pbox_port_dropped_frames_total{pipeline=\"1\",reason=\"vlan\"} 8",
                           "pbox_rejected_packets_total{pipeline=\"0\",reason=\"tag\"} 0",
                           "# HELP pbox_rejected_packets_total Packets dropped, by reason"}) {
    INFO(line);
    CHECK(lines.count(line) == 1);
  }
}

TEST_CASE("worker families say which rank is late and which is gone") {
  const auto lines = sample_lines(FakeSource());
  for (const char* line :
       {"pbox_worker_bytes_received_total{training_job=\"bert\",rank=\"0\"} 100",
        "pbox_worker_fragments_total{training_job=\"bert\",rank=\"0\"} 10",
        "pbox_worker_duplicate_fragments_total{training_job=\"bert\",rank=\"0\"} 1",
        "pbox_worker_last_arrivals_total{training_job=\"bert\",rank=\"0\"} 8",
        "pbox_worker_last_packet_age_seconds{training_job=\"bert\",rank=\"0\"} 0.25",
        "pbox_worker_nonfinite_fragments_total{training_job=\"bert\",rank=\"0\"} 0",
        "pbox_worker_nonfinite_fragments_total{training_job=\"bert\",rank=\"1\"} 21",
        "pbox_worker_gradient_squares{training_job=\"bert\",rank=\"1\"} 6.25",
        "pbox_worker_up{training_job=\"bert\",rank=\"0\"} 1",
        "pbox_worker_up{training_job=\"bert\",rank=\"1\"} 0",
        "pbox_job_chunk_rounds_total{training_job=\"bert\"} 1234",
        "pbox_job_memory_bytes{training_job=\"bert\"} 4096",
        "pbox_job_workers{training_job=\"bert\",state=\"joined\"} 1",
        "pbox_job_workers{training_job=\"bert\",state=\"left\"} 0"}) {
    INFO(line);
    CHECK(lines.count(line) == 1);
  }
}

TEST_CASE("durations are histograms in seconds, whose buckets add up") {
  FakeSource source;
  auto& counts = source.job_views[0].arrival_skew.counts;
  counts.assign(pipeline::DurationHistogram::kBucketCount, 0);
  counts[0] = 3;
  counts[7] = 2;
  counts.back() = 1;
  source.job_views[0].arrival_skew.sum_s = 61.5;
  const auto lines = sample_lines(source);
  for (const char* line :
       {"# TYPE pbox_job_arrival_skew_seconds histogram",
        "pbox_job_arrival_skew_seconds_bucket{training_job=\"bert\",le=\"0.001048576\"} 5",
        "pbox_job_arrival_skew_seconds_bucket{training_job=\"bert\",le=\"+Inf\"} 6",
        "pbox_job_arrival_skew_seconds_count{training_job=\"bert\"} 6",
        "pbox_job_arrival_skew_seconds_sum{training_job=\"bert\"} 61.5",
        "# TYPE pbox_job_round_seconds histogram", "# TYPE pbox_pipeline_queued_chunks gauge",
        "pbox_worker_late_seconds_total{training_job=\"bert\",rank=\"0\"} 0.5",
        "pbox_worker_awaited_seconds{training_job=\"bert\",rank=\"1\"} 3.5"}) {
    INFO(line);
    CHECK(lines.count(line) == 1);
  }
}

TEST_CASE("a job with too many ranks has no series by rank, and a metric counts those ranks") {
  FakeSource source;
  const auto fill = [&source](size_t job, size_t ranks) {
    source.job_views[job].workers.assign(ranks, {});
    for (size_t rank = 0; rank < ranks; ++rank) {
      source.job_views[job].workers[rank].rank = static_cast<uint32_t>(rank);
    }
  };
  fill(0, limits::kMetricRanksMax - 1);
  fill(1, 2);
  auto lines = sample_lines(source);
  CHECK(lines.count("pbox_metrics_ranks_left_out 2") == 1);
  CHECK(lines.count("pbox_worker_up{training_job=\"bert\",rank=\"1022\"} 0") == 1);
  size_t ups = 0;
  for (const auto& line : lines) ups += line.starts_with("pbox_worker_up{") ? 1 : 0;
  CHECK(ups == limits::kMetricRanksMax - 1);
  fill(1, 1);
  lines = sample_lines(source);
  CHECK(lines.count("pbox_metrics_ranks_left_out 0") == 1);
  ups = 0;
  for (const auto& line : lines) ups += line.starts_with("pbox_worker_up{") ? 1 : 0;
  CHECK(ups == limits::kMetricRanksMax);
}

TEST_CASE("every family of the page is declared once in the table, with its type and help") {
  const auto lines = lines_of(metrics_text(FakeSource(), {}));
  std::vector<std::string> shown;
  std::vector<std::string> declared;
  for (const std::string& line : lines) {
    if (line.starts_with("# ")) shown.push_back(line);
  }
  for (const MetricInfo& metric : all_metrics()) {
    const char* type = metric.type == prometheus::MetricType::Counter     ? "counter"
                       : metric.type == prometheus::MetricType::Histogram ? "histogram"
                                                                          : "gauge";
    declared.push_back("# HELP " + std::string(metric.name) + " " + metric.help);
    declared.push_back("# TYPE " + std::string(metric.name) + " " + type);
    CHECK_FALSE(metric.help.empty());
  }
  CHECK(shown == declared);
}

TEST_CASE("the reference page in the tree equals the page that the tables generate") {
  std::ifstream file(PBOX_METRIC_REFERENCE);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  INFO("to generate it again: build/release/tests/print_metric_reference > docs/metrics.md");
  CHECK(text == metric_reference());
}

TEST_CASE("reads of a job are counted, timed, and shown by the age of the data in rounds") {
  const std::string text = metrics_text(FakeSource(), {});
  const auto all = lines_of(text);
  const std::set<std::string> lines(all.begin(), all.end());
  for (const char* line :
       {"pbox_job_pulls_total{training_job=\"bert\"} 400",
        "pbox_job_pulls_delayed_total{training_job=\"bert\"} 5",
        "pbox_job_parked_seconds_total{training_job=\"bert\"} 1.25",
        "pbox_job_lead_rounds{training_job=\"bert\"} 2",
        "# TYPE pbox_job_read_rounds_behind histogram",
        "pbox_job_read_rounds_behind_bucket{training_job=\"bert\",le=\"0\"} 300",
        "pbox_job_read_rounds_behind_bucket{training_job=\"bert\",le=\"1\"} 360",
        "pbox_job_read_rounds_behind_bucket{training_job=\"bert\",le=\"2\"} 360",
        "pbox_job_read_rounds_behind_bucket{training_job=\"bert\",le=\"+Inf\"} 400",
        "pbox_job_read_rounds_behind_count{training_job=\"bert\"} 400",
        "pbox_job_read_rounds_behind_sum{training_job=\"bert\"} 180"}) {
    INFO(line);
    CHECK(lines.count(line) == 1);
  }
  CHECK(text.find("pbox_job_dropped_fragments_total{training_job=\"bert\"") == std::string::npos);
  CHECK(text.find("pbox_job_pulls_total{training_job=\"a") == std::string::npos);
  CHECK(lines.count("pbox_job_dropped_fragments_total{training_job=\"a\\\"b\\\\c<d>&/e%\\n\xc3\xa9 "
                    "f\",rank=\"0\"} 17") == 1);
}

TEST_CASE("a rank that never sent has no packet age") {
  const std::string text = metrics_text(FakeSource(), {});
  CHECK(text.find("pbox_worker_last_packet_age_seconds{training_job=\"bert\",rank=\"1\"}") ==
        std::string::npos);
}

TEST_CASE("an odd job name is escaped in its label and never breaks a line") {
  const auto lines = sample_lines(FakeSource());
  CHECK(
      lines.count("pbox_job_memory_bytes{training_job=\"a\\\"b\\\\c<d>&/e%\\n\xc3\xa9 f\"} 4096"));
}

TEST_CASE("a finished job has no series, but the families stay") {
  FakeSource source;
  source.job_views.clear();
  const std::string text = metrics_text(source, {});
  CHECK(text.find("training_job=") == std::string::npos);
  CHECK(text.find("# TYPE pbox_worker_up gauge\n") != std::string::npos);
}

TEST_CASE("every family has one HELP with a text and one TYPE, and only counters end in _total") {
  std::set<std::string> helped;
  std::set<std::string> typed;
  for (const std::string& line : lines_of(metrics_text(FakeSource(), {}))) {
    INFO(line);
    std::istringstream words(line);
    std::string hash, kind, metric, rest;
    words >> hash >> kind >> metric;
    if (hash != "#") continue;
    CHECK(metric.rfind("pbox_", 0) == 0);
    std::getline(words >> std::ws, rest);
    CHECK(!rest.empty());
    CHECK((kind == "HELP" ? helped : typed).insert(metric).second);
    if (kind != "TYPE") continue;
    const bool is_total = metric.size() > 6 && metric.compare(metric.size() - 6, 6, "_total") == 0;
    CHECK(is_total == (rest == "counter"));
  }
  CHECK(helped == typed);
  CHECK(helped.size() > 30);
}

TEST_CASE("the usage of the process is read") {
  const ProcessUsage usage = read_process_usage();
  CHECK(usage.resident_bytes > 100'000);
  CHECK(usage.cpu_s > 0);
}

}  // namespace
}  // namespace pbox::admin
