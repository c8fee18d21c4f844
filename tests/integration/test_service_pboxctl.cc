// The output of pboxctl for a box that has a job, as text and as JSON.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

Output run(const Daemon& daemon, const Arguments& words) {
  return ask(daemon, PBOX_CTL_PATH, words);
}

std::string shown(const Daemon& daemon, const Arguments& words) {
  const Output output = run(daemon, words);
  INFO(output.text << output.errors);
  CHECK(output.status == 0);
  return output.text;
}

Json json(const Daemon& daemon, Arguments words) {
  words.insert(words.end(), {"-o", "json"});
  return Json::parse(shown(daemon, words));
}

// The table without its last column, the age of each rank's last packet.
std::string without_ages(const std::string& table) {
  const size_t width = table.find("LAST PACKET");
  REQUIRE(width != std::string::npos);
  std::istringstream lines(table);
  std::string kept;
  for (std::string line; std::getline(lines, line);) kept += line.substr(0, width) + "\n";
  return kept;
}

}  // namespace

TEST_CASE("pboxctl shows a box's job, its ranks and its counters, as text and as JSON") {
  Daemon daemon;
  auto workers = start_sums({.box = daemon.control(), .job = "the-job", .waits = true});
  await_joined(workers);

  CHECK_THAT(shown(daemon, {"jobs"}), Contains("the-job") && Contains("running"));
  CHECK(json(daemon, {"jobs"})["jobs"][0]["name"] == "the-job");

  const std::string ranks = shown(daemon, {"workers", "the-job"});
  CHECK_THAT(ranks, Contains("the-job") && Contains("joined") && Contains("127.0.0.1:"));
  CHECK(without_ages(shown(daemon, {"workers"})) == without_ages(ranks));
  CHECK(json(daemon, {"workers", "the-job"})["jobs"][0]["workers"].size() == 2);
  const Output unknown = run(daemon, {"workers", "another"});
  CHECK(unknown.status == 1);
  CHECK_THAT(unknown.errors,
             Contains("no job 'another' is on this box; `pboxctl jobs` lists its jobs"));

  const std::string counted = shown(daemon, {"metrics", "--match", "job_workers"});
  CHECK_THAT(counted,
             Contains("# HELP pbox_job_workers ") &&
                 Contains("pbox_job_workers{training_job=\"the-job\",state=\"joined\"} 2"));
  CHECK_THAT(counted, !Contains("pbox_uptime_seconds"));
  bool found = false;
  const Json samples = json(daemon, {"metrics"});
  for (const Json& sample : samples["samples"]) {
    if (sample["name"] != "pbox_job_workers" || sample["labels"]["state"] != "joined") continue;
    found = true;
    CHECK(sample["labels"]["training_job"] == "the-job");
    CHECK(sample["value"] == "2");
  }
  CHECK(found);

  const Json version = json(daemon, {"version"});
  CHECK(version["box"]["version"] == version["version"]);
  CHECK_THAT(shown(daemon, {"version"}), Contains("box ") && Contains("control protocol"));
  CHECK_THAT(shown(daemon, {"boxes"}), Contains("leader"));
  CHECK(json(daemon, {"boxes"})["boxes"].size() == 1);

  for (auto& worker : workers) worker.go();
  CHECK(collect(workers).failure == "");
}

TEST_CASE("pboxctl top shows a box's speed, with one picture per interval") {
  Daemon daemon;
  auto workers = start_sums({.box = daemon.control(), .rounds = 100'000, .waits = true});
  await_joined(workers);
  for (auto& worker : workers) worker.go();

  const Json picture = json(daemon, {"top", "--interval", "1", "--count", "1"});
  REQUIRE(picture["pipelines"].size() == 2);
  double received = 0;
  for (const Json& pipeline : picture["pipelines"]) {
    received += pipeline["received_bytes_per_second"].get<double>();
  }
  CHECK(received > 0);
  CHECK(picture["jobs"][0]["name"] == "sums");
  CHECK(picture["jobs"][0]["chunk_rounds_per_second"] > 0.0);
  const std::string text = shown(daemon, {"top", "--interval", "1", "--count", "2"});
  CHECK_THAT(text, Contains("PIPELINE") && Contains("sums") && Contains("MB/s"));
  CHECK(text.find("box ", text.find("JOB")) != std::string::npos);  // the second picture
  // no escape sequences, because the output is not a terminal
  CHECK(text.find('\x1b') == std::string::npos);
}

}  // namespace pbox::test
