// pboxctl trace of a running job: the output is what Perfetto reads, and it is true.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <climits>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

constexpr uint32_t kRanks = 3;
constexpr size_t kElements = 20'000;  // three chunks
constexpr int kChunks = 6;

// Runs rounds of two tensors until the file `stop` exists. Rank 0 tells the other ranks of it
// through its sum.
WorkerProcess start_rank(const Daemon& daemon, uint32_t rank, const std::filesystem::path& stop) {
  return WorkerProcess([&daemon, rank, stop](Line& line) {
    AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = kRanks});
    worker.tensor("first layer", kElements, PBOX_F32, 9);
    worker.tensor("last layer", kElements, PBOX_F32, -4);
    worker.join();
    std::vector<float> first(kElements), last(kElements);
    bool runs = true;
    for (int iteration = 0; runs; ++iteration) {
      const bool asked = rank == 0 && std::filesystem::exists(stop);
      first.assign(kElements, asked ? 1.0f : 0.0f);
      last.assign(kElements, 1.0f);
      worker.push_pull(1, last.data(), last.data());
      worker.push_pull(0, first.data(), first.data());
      worker.wait_all();
      require(last.back() == kRanks, "a wrong sum");
      runs = first.front() == 0.0f;
      if (iteration == 0) line.say("running");
    }
    line.say("done");
    worker.leave();
  });
}

Output run(const Daemon& daemon, const Arguments& words) {
  return ask(daemon, PBOX_CTL_PATH, words);
}

struct Span {
  double from = 0, to = -1;
  Json args;
};

// Spans by category, id and name. Each has a beginning and an end.
std::map<std::tuple<std::string, std::string, std::string>, Span> spans_of(const Json& page) {
  std::map<std::tuple<std::string, std::string, std::string>, Span> spans;
  for (const Json& event : page.at("traceEvents")) {
    if (event.at("ph") == "M") continue;
    const std::tuple key(event.at("cat").get<std::string>(), event.at("id").dump(),
                         event.at("name").get<std::string>());
    if (event.at("ph") == "b") {
      CHECK(spans.count(key) == 0);
      spans[key] = {.from = event.at("ts"), .args = event.at("args")};
    } else {
      REQUIRE(event.at("ph") == "e");
      spans.at(key).to = event.at("ts");
    }
  }
  return spans;
}

void check_trace(const Json& page) {
  CHECK(page["otherData"]["job"] == "job");
  CHECK(page["otherData"]["world_size"] == kRanks);
  const auto spans = spans_of(page);
  std::map<std::pair<int, int>, std::set<std::string>> ranks;  // by chunk and round
  std::map<std::string, std::set<int>> priorities;
  std::set<int> chunks;
  size_t rounds = 0;
  for (const auto& [key, span] : spans) {
    const auto& [category, id, name] = key;
    REQUIRE(span.to >= span.from);
    const std::pair<int, int> round(span.args["chunk"], span.args["round"]);
    if (category == "arrive") {
      ranks[round].insert(name);
      const auto& aggregate = spans.at({"chunk", id.substr(1, id.find('.') - 1), "aggregate"});
      REQUIRE(span.from >= aggregate.from);
      REQUIRE(span.to <= aggregate.to);  // arrived before the sum was complete
    } else if (name == "aggregate") {
      const Span& send = spans.at({"chunk", id, "send"});
      REQUIRE(span.to == send.from);
      const std::string tensor = span.args["tensor"];
      const Span& whole = spans.at({"chunk", id, tensor});
      REQUIRE(whole.from == span.from);
      REQUIRE(whole.to == send.to);
      priorities[tensor].insert(span.args["priority"].get<int>());
      chunks.insert(round.first);
      ++rounds;
    }
  }
  CHECK(rounds == page["otherData"]["rounds"]);
  CHECK(chunks == std::set<int>{0, 1, 2, 3, 4, 5});
  CHECK(priorities ==
        std::map<std::string, std::set<int>>{{"first layer", {9}}, {"last layer", {-4}}});
  CHECK(ranks.size() == rounds);
  for (const auto& [round, names] : ranks) {
    REQUIRE(names == std::set<std::string>{"rank 0", "rank 1", "rank 2"});
  }
}

// Traces for longer and longer times, because on a busy machine a short trace may have too few
// rounds. Returns the output of the first trace that has enough.
Output trace_until_whole(const Daemon& daemon, const Arguments& more, const std::string& file) {
  for (double seconds = 0.2;; seconds *= 2) {
    Arguments words = {"trace", "job", "--seconds", std::to_string(seconds)};
    words.insert(words.end(), more.begin(), more.end());
    const Output traced = run(daemon, words);
    INFO(traced.errors);
    REQUIRE(traced.status == 0);
    const Json page = file.empty() ? Json::parse(traced.text) : Json::parse(std::ifstream(file));
    if (page["otherData"]["rounds"] < 3 * kChunks && seconds < 20) continue;
    check_trace(page);
    return traced;
  }
}

// Two ranks of a job with staleness 1, of which rank 1 is slow. Rank 0 runs rounds until the test
// says go, and rank 1 as many.
WorkerProcess start_relaxed_rank(const Daemon& daemon, uint32_t rank,
                                 const std::filesystem::path& folder) {
  return WorkerProcess([&daemon, rank, folder](Line& line) {
    AbiWorker worker({.box = daemon.control(),
                      .job = "relaxed",
                      .rank = rank,
                      .world_size = 2,
                      .adjust = [](auto& options) {
                        options.mode = PBOX_MODE_OPTIMIZE;
                        options.recovery = PBOX_RECOVERY_NONE;
                        options.sync = PBOX_SYNC_SSP;
                        options.staleness = 1;
                      }});
    std::vector<float> weights(kElements);
    worker.tensor("weights", kElements);
    worker.join_with_sgd(1, 0, weights);
    const auto count_file = folder / "rounds";
    for (int round = 1;; ++round) {
      if (rank == 1) usleep(3'000);
      worker.push_pull(0, weights.data(), weights.data());
      worker.wait(0);
      if (round == 1) line.say("running");
      if (rank == 0 && std::filesystem::exists(folder / "stop")) {
        std::ofstream(folder / "new") << round;
        std::filesystem::rename(folder / "new", count_file);
        break;
      }
      int last = INT_MAX;
      if (rank == 1 && std::filesystem::exists(count_file)) std::ifstream(count_file) >> last;
      if (round >= last) break;
    }
    line.say("done");
    worker.leave();
  });
}

}  // namespace

TEST_CASE("pboxctl trace shows each rank's pushes, waits and replies if ranks have own rounds") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("pbox-trace-relaxed-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.push_back(start_relaxed_rank(daemon, rank, folder));
  }
  for (auto& worker : workers) REQUIRE(worker.heard() == "running");
  const std::string file = folder / "trace.json";
  const Output traced = run(daemon, {"trace", "relaxed", "--seconds", "2", "--output", file});
  INFO(traced.errors);
  REQUIRE(traced.status == 0);
  CHECK_THAT(traced.text, Contains("WAITED"));
  std::ofstream(folder / "stop") << "\n";
  for (auto& worker : workers) CHECK(worker.heard() == "done");
  for (auto& worker : workers) CHECK(worker.finish() == "");

  const Json page = Json::parse(std::ifstream(file));
  CHECK(page["otherData"]["rounds"] > kChunks);
  const auto spans = spans_of(page);
  std::map<std::string, std::set<std::string>> ids;  // chunk rounds of ranks, by span
  for (const auto& [key, span] : spans) {
    const auto& [category, id, name] = key;
    REQUIRE(span.to >= span.from);
    if (category == "rank") ids[name].insert(id);
  }
  CHECK(ids["rank 0"].size() > kChunks);
  CHECK(ids["rank 1"].size() > kChunks);
  CHECK(ids["wait"].size() > kChunks);
  for (const std::string& id : ids["wait"]) {
    REQUIRE(ids["rank 0"].count(id) == 1);  // rank 1 is never ahead
    if (ids["push"].count(id) == 0 || ids["reply"].count(id) == 0) continue;
    const Span& wait = spans.at({"rank", id, "wait"});
    REQUIRE(wait.from >= spans.at({"rank", id, "push"}).to);
    REQUIRE(wait.to <= spans.at({"rank", id, "reply"}).from);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("pboxctl trace shows every round of a job's chunks in order, by rank and priority") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("pbox-trace-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = folder / "trace.json";
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    workers.push_back(start_rank(daemon, rank, folder / "stop"));
  }
  for (auto& worker : workers) REQUIRE(worker.heard() == "running");
  CHECK_THAT(daemon.get("/api/v1/jobs/job/trace"), Contains("there is no trace"));

  const Output traced = trace_until_whole(daemon, {"-o", file}, file);
  CHECK_THAT(traced.text, Contains("\n9 ") && Contains("\n-4 "));
  // The trace can also go to standard output, and the box still has it.
  trace_until_whole(daemon, {}, "");
  CHECK(Json::parse(daemon.get("/api/v1/jobs/job/trace"))["lost_events"] == 0);

  CHECK(daemon.post("/api/v1/jobs/job/trace", R"({"seconds": 600})") == "{}\n");
  const Output second = run(daemon, {"trace", "job"});
  CHECK(second.status == 1);
  CHECK_THAT(second.errors, Contains("a trace of job 'job' is recorded for another "));
  const Output unknown = run(daemon, {"trace", "jib"});
  CHECK(unknown.status == 1);
  CHECK_THAT(unknown.errors, Contains("no job 'jib' here"));

  std::ofstream(folder / "stop") << "\n";
  for (auto& worker : workers) CHECK(worker.heard() == "done");
  for (auto& worker : workers) CHECK(worker.finish() == "");
  CHECK(daemon.await_no_jobs(kDeadlineMs));
  std::filesystem::remove_all(folder);
}

}  // namespace pbox::test
