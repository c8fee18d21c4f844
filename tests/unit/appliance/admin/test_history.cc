#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "appliance/admin/history.h"
#include "appliance/admin/routes.h"
#include "tests/unit/appliance/admin/fake_source.h"

namespace pbox::admin {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

control::JobView job_of(const std::string& name, uint64_t chunk_rounds,
                        const std::vector<double>& late_s = {}) {
  control::JobView job;
  job.name = name;
  job.chunk_rounds = chunk_rounds;
  for (const double late : late_s) job.workers.emplace_back().late_s = late;
  return job;
}

const JobHistory& job_in(const HistoryView& view, const std::string& name) {
  for (const JobHistory& job : view.jobs) {
    if (job.job == name) return job;
  }
  FAIL("the page has no history of job " << name);
  return view.jobs.front();
}

}  // namespace

TEST_CASE("a second of the box is what all pipelines counted in it, for ten minutes") {
  History history;
  pipeline::Counters counters[2];
  std::vector<PipelineView> pipelines(2);
  pipelines[0].counters = &counters[0];
  pipelines[1].counters = &counters[1];
  counters[0].add(pipeline::Counter::kRxBytes, 77);  // before the history began
  history.add_second(pipelines, kSecond);
  CHECK(history.view(kSecond).points.empty());
  counters[0].add(pipeline::Counter::kRxBytes, 100);
  counters[1].add(pipeline::Counter::kRxBytes, 200);
  counters[1].add(pipeline::Counter::kTxBytes, 50);
  counters[0].add(pipeline::Counter::kBusyNs, kSecond / 2);
  counters[1].add(pipeline::Counter::kBusyNs, kSecond);
  history.add_second(pipelines, 3 * kSecond);
  const auto points = history.view(3 * kSecond).points;
  REQUIRE(points.size() == 1);
  CHECK(points[0].received_per_s == 150);
  CHECK(points[0].sent_per_s == 25);
  CHECK(points[0].busiest == 0.5);
  for (uint64_t second = 4; second < 2000; ++second)
    history.add_second(pipelines, second * kSecond);
  CHECK(history.view(0).points.size() == History::kSeconds);
}

TEST_CASE("an interval of a job has its rounds and the rank that held them up longest") {
  History history;
  history.add_interval({job_of("bert", 100, {1, 1, 1})}, 5 * kSecond);
  history.add_interval({job_of("bert", 150, {1.5, 3, 1})}, 10 * kSecond);
  history.add_interval({job_of("bert", 150, {1.5, 3, 1})}, 15 * kSecond);
  const auto job = job_in(history.view(15 * kSecond), "bert");
  REQUIRE(job.points.size() == 3);
  CHECK(job.points[1].chunk_rounds_per_s == 10);
  CHECK(job.points[1].late_rank == 1);
  CHECK(job.points[1].late_s == 2);
  CHECK(job.points[2].chunk_rounds_per_s == 0);
  CHECK(job.points[2].late_rank == -1);
  CHECK_FALSE(job.is_over);
}

TEST_CASE("events of a job are told with their age, also after its end") {
  History history;
  history.add_event("bert", {.name = "job_started", .text = "a job"}, kSecond);
  history.add_interval({job_of("bert", 1)}, 5 * kSecond);
  history.add_event("bert", {.name = "worker_lost", .warns = true, .text = "a rank"}, 8 * kSecond);
  history.add_interval({}, 10 * kSecond);
  const auto job = job_in(history.view(11 * kSecond), "bert");
  CHECK(job.is_over);
  REQUIRE(job.events.size() == 2);
  CHECK(job.events[0].name == "job_started");
  CHECK(job.events[0].age_s == 10);
  CHECK(job.events[1].warns);
  CHECK(job.events[1].age_s == 3);
  history.add_interval({}, 5 * kSecond + kSecond * History::kSeconds);
  CHECK(job_in(history.view(0), "bert").events.size() == 1);
  history.add_interval({}, 9 * kSecond + kSecond * History::kSeconds);
  CHECK(history.view(0).jobs.empty());
}

TEST_CASE("jobs that are over make room; backup copies have no history") {
  History history;
  std::vector<control::JobView> jobs;
  for (size_t index = 0; index < History::kJobsMax; ++index) {
    jobs.push_back(job_of("job " + std::to_string(index), 0));
  }
  history.add_interval(jobs, kSecond);
  history.add_event("one more", {.name = "job_started", .text = ""}, 2 * kSecond);
  CHECK(history.view(0).jobs.size() == History::kJobsMax);
  jobs.erase(jobs.begin() + 7);
  history.add_interval(jobs, 6 * kSecond);
  history.add_event("one more", {.name = "job_started", .text = ""}, 7 * kSecond);
  CHECK(history.view(0).jobs.size() == History::kJobsMax);
  CHECK(job_in(history.view(0), "one more").events.size() == 1);
  auto copy = job_of("one more", 0);
  copy.is_backup = true;
  history.add_interval({copy}, 8 * kSecond);
  for (const JobHistory& job : history.view(0).jobs) CHECK(job.job != "one more");
}

TEST_CASE("another job does not drop the history of one that runs") {
  History history;
  std::vector<control::JobView> jobs;
  for (size_t index = 0; index < History::kJobsMax; ++index) {
    jobs.push_back(job_of("job " + std::to_string(100 + index), 0));
  }
  history.add_interval(jobs, kSecond);
  history.add_interval(jobs, 6 * kSecond);
  jobs.insert(jobs.begin(), job_of("first", 0));
  history.add_interval(jobs, 11 * kSecond);
  for (size_t index = 1; index < jobs.size(); ++index) {
    CHECK(job_in(history.view(0), jobs[index].name).points.size() == 3);
  }
}

TEST_CASE("the history is served as JSON") {
  FakeSource source;
  const AdminResponse page = answer(source, {.name = "the test", .role = tls::Role::kOperator},
                                    {.method = "GET", .target = "/api/v1/history"});
  REQUIRE(page.status == 200);
  const auto json = nlohmann::json::parse(page.body);
  CHECK(json["interval_seconds"] == 1);
  CHECK(json["received_bytes_per_second"] == nlohmann::json({1'000'000'000, 0}));
  CHECK(json["busiest_ratio"][0] == 0.5);
  const auto& job = json["jobs"][0];
  CHECK(job["job"] == "bert");
  CHECK(job["interval_seconds"] == 5);
  CHECK(job["chunk_rounds_per_second"] == nlohmann::json({12, 0}));
  CHECK(job["late_rank"] == nlohmann::json({1, nullptr}));
  CHECK(job["late_seconds"][0] == 0.25);
  CHECK(job["events"][0]["severity"] == "warning");
  CHECK(job["events"][0]["text"] == "<gone>");
}

}  // namespace pbox::admin
