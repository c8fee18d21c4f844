// The flight recorder of a real box: copied while a job runs, dumped when a round is late, left
// behind by a crash; and pboxctl's reading of it.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Json = nlohmann::json;

constexpr uint32_t kRanks = 3;
constexpr uint32_t kStopped = 2;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("pbox-recorder-" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }
  std::vector<fs::path> files(const std::string& prefix) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
    }
    return found;
  }

 private:
  fs::path path_;
};

Output pboxctl(const Arguments& words) {
  Program program(PBOX_CTL_PATH, words);
  Output output;
  while (const auto line = program.read_line(kDeadlineMs)) output.text += *line + "\n";
  output.status = program.wait_exit(kDeadlineMs).value_or(-1);
  output.errors = program.errors();
  return output;
}

Json replay_of(const fs::path& file) {
  const Output output = pboxctl({"replay", file, "-o", "json"});
  INFO(output.text << output.errors);
  CHECK(output.status == 0);
  return Json::parse(output.text);
}

uint64_t sum_of(const Json& list, const char* key) {
  uint64_t sum = 0;
  for (const Json& item : list) sum += item.at(key).get<uint64_t>();
  return sum;
}

// Starts ranks that run five rounds of one tensor, and one more on command.
std::vector<WorkerProcess> start_ranks(const Daemon& daemon) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    workers.emplace_back([&daemon, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = kRanks});
      worker.tensor("embedding", 50'000);
      worker.join();
      std::vector<float> values(50'000);
      for (int round = 0; round < 6; ++round) {
        if (round == 5) {
          line.say("running");
          line.await_go();
        }
        values.assign(values.size(), 1.0f);
        worker.push_pull(0, values.data(), values.data());
        worker.wait(0);
      }
      line.say("done");
      line.await_go();
      worker.leave();
    });
  }
  for (auto& worker : workers) REQUIRE(worker.heard() == "running");
  return workers;
}

// Stops one rank; the others begin a round that they cannot finish.
void stop_one(std::vector<WorkerProcess>& workers) {
  workers[kStopped].signal(SIGSTOP);
  for (uint32_t rank = 0; rank < kStopped; ++rank) workers[rank].go();
}

void check_waits_for_stopped(const Json& replay) {
  INFO(replay.dump(2));
  CHECK(replay["difference_count"] == 0);
  REQUIRE(replay["jobs"].size() == 1);
  const Json& job = replay["jobs"][0];
  CHECK(job["job"] == "job");
  CHECK(job["rounds"] == 5);
  REQUIRE(job["open_rounds"].size() == 7);  // chunks of 32 KiB, on two pipelines
  for (const Json& open : job["open_rounds"]) {
    CHECK(open["round"] == 5);
    CHECK(open["missing_ranks"] == Json::array({kStopped}));
  }
}

bool await_rank_awaited(const Daemon& daemon) {
  for (int tries = 0; tries < kDeadlineMs / 20; ++tries) {
    const Json jobs = Json::parse(daemon.get("/api/v1/stragglers"))["jobs"];
    if (!jobs.empty() && !jobs[0]["awaited"].empty()) return true;
    usleep(20'000);
  }
  return false;
}

Arguments recorder_arguments(const Folder& folder, const std::string& late_after_ms) {
  return {"--recorder.directory=" + folder.path().string(),
          "--recorder.late_after_ms=" + late_after_ms};
}

}  // namespace

TEST_CASE("a copy of the flight recorder of a running job replays without a difference") {
  const Folder folder;
  Daemon daemon(Arguments{"--recorder.directory=none"});
  auto workers = start_ranks(daemon);
  const std::string file = folder.path() / "copy.flight";
  const Output copied = ask(daemon, PBOX_CTL_PATH, {"recorder", "-o", file});
  INFO(copied.errors);
  REQUIRE(copied.status == 0);

  const Json replay = replay_of(file);
  INFO(replay.dump(2));
  CHECK(replay["difference_count"] == 0);
  REQUIRE(replay["pipelines"].size() == 2);
  for (const Json& pipeline : replay["pipelines"]) {
    CHECK(pipeline["judged"].get<uint64_t>() > 0);
    CHECK(pipeline["damaged_records"] == 0);
    CHECK(pipeline["interrupted"] == "");
  }
  const Json& job = replay["jobs"].at(0);
  CHECK(job["model"] == "bsp");
  CHECK(job["rounds"] == 5);
  CHECK(job["chunk_rounds"] == 5 * 7);
  CHECK(job["open_rounds"].empty());
  CHECK(sum_of(job["ranks"], "last") == 5 * 7);
  CHECK(sum_of(job["ranks"], "fragments") ==
        daemon.metric("pbox_fragments_total", "reason=\"aggregated\""));
  const Output text = pboxctl({"replay", file});
  CHECK(text.status == 0);
  CHECK_THAT(text.text, Contains("job 'job' (bsp): 35 chunk rounds finished, the newest is "
                                 "round 4"));
  const Output compared = pboxctl({"replay", file, "--against", file});
  CHECK(compared.status == 0);
  CHECK_THAT(compared.text,
             Contains("job 'job': 35 results are in both files, and 0 of them differ"));

  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.heard() == "done");
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("a late round leaves a file, and its replay names the awaited rank") {
  const Folder folder;
  Daemon daemon(recorder_arguments(folder, "300"));
  auto workers = start_ranks(daemon);
  CHECK(folder.files("late-").empty());
  stop_one(workers);
  REQUIRE(daemon.program().await_errors("job 'job' has waited for rank 2 for ", kDeadlineMs));
  const auto late = folder.files("late-");
  REQUIRE(late.size() == 1);
  CHECK_THAT(daemon.program().errors(), Contains("recorded in " + late[0].string()));
  check_waits_for_stopped(replay_of(late[0]));

  workers[kStopped].signal(SIGCONT);
  workers[kStopped].go();
  for (auto& worker : workers) CHECK(worker.heard() == "done");
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
  CHECK(folder.files("late-").size() == 1);  // at most one per minute
  CHECK(folder.files("pipeline-").size() == 2);
  daemon.program().signal(SIGTERM);
  REQUIRE(daemon.program().wait_exit(kDeadlineMs) == 0);
  CHECK(folder.files("pipeline-").empty());
  const Daemon next(recorder_arguments(folder, "300"));
  CHECK(folder.files("crash-").empty());
}

TEST_CASE("the last packets of a killed pboxd are available after the next one has started") {
  const Folder folder;
  auto daemon = std::make_unique<Daemon>(recorder_arguments(folder, "60000"));
  auto workers = start_ranks(*daemon);
  stop_one(workers);
  REQUIRE(await_rank_awaited(*daemon));
  daemon->program().signal(SIGKILL);
  REQUIRE(daemon->program().wait_exit(kDeadlineMs) == 128 + SIGKILL);
  REQUIRE(folder.files("pipeline-").size() == 2);
  // A ring file may also be read as the crash left it.
  CHECK(pboxctl({"replay", folder.path() / "pipeline-0.ring"}).status == 0);

  const Daemon next(recorder_arguments(folder, "60000"));
  const auto crash = folder.files("crash-");
  REQUIRE(crash.size() == 1);
  CHECK_THAT(next.program().errors(), Contains("crash_recorded") && Contains(crash[0].string()));
  check_waits_for_stopped(replay_of(crash[0]));

  // The folder belongs to one box only.
  const Daemon second(recorder_arguments(folder, "60000"));
  CHECK_THAT(second.program().errors(), Contains("another pboxd uses " + folder.path().string()));
  CHECK(folder.files("crash-").size() == 1);
}

TEST_CASE("pboxctl replay reports what is wrong with a file") {
  const Folder folder;
  const Daemon daemon(Arguments{"--recorder.directory=none"});
  const std::string file = folder.path() / "copy.flight";
  REQUIRE(ask(daemon, PBOX_CTL_PATH, {"recorder", "-o", file}).status == 0);
  CHECK(pboxctl({"replay", file}).status == 0);
  fs::resize_file(file, fs::file_size(file) - 1);
  const Output cut = pboxctl({"replay", file});
  CHECK(cut.status == 1);
  CHECK_THAT(cut.errors, Contains(file) && Contains("ends within the"));
  std::ofstream(file) << std::string(5000, 'x');
  CHECK_THAT(pboxctl({"replay", file}).errors, Contains("not a flight recording"));
  CHECK(pboxctl({"replay", folder.path() / "nothing"}).status == 1);
  CHECK(pboxctl({"replay"}).status == 2);
  CHECK(pboxctl({"recorder"}).status == 2);
}

}  // namespace pbox::test
