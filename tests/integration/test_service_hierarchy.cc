// Two levels of boxes: each rack's box sums its own ranks, one upper box sums the racks, and every
// rank gets the sum over all ranks of all racks. Real processes, with boxes and racks that are
// missing or die.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/box_cluster.h"
#include "tests/support/momentum.h"
#include "tests/support/mortal_box.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Catch::Contains;

Arguments rack_flags(const std::string& top, uint32_t rank, uint32_t racks = 2) {
  return {"--upstream.box=" + top, "--upstream.rank=" + std::to_string(rank),
          "--upstream.world_size=" + std::to_string(racks), "--cluster.state_directory=none"};
}

// Racks of 1 and of 3 ranks.
constexpr uint32_t kAllWorkers = 4;
SumsOptions of_rack(const Daemon& box, uint32_t rack, SumsOptions options = {}) {
  options.box = box.control();
  options.workers = rack == 0 ? 1 : 3;
  options.first_rank = rack;
  options.all_workers = kAllWorkers;
  return options;
}

// Runs both racks at once; the digest must be the same everywhere.
void require_sums(const Daemon& first, const Daemon& second, const SumsOptions& options) {
  auto ranks = start_sums(of_rack(first, 0, options));
  for (auto& rank : start_sums(of_rack(second, 1, options))) ranks.push_back(std::move(rank));
  const SumsOutcome outcome = collect(ranks);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
}

// Returns the error that a rank gets when it cannot join.
std::string refusal(const Daemon& box, pbox_status expected,
                    const std::function<void(pbox_options&)>& adjust, uint64_t elements = 1'000) {
  WorkerProcess rank([&](Line& line) {
    const AbiWorker worker({.box = box.control(), .world_size = 1, .adjust = adjust});
    worker.tensor("tensor", elements);
    line.say(worker.must_be(expected, pbox_join(worker.context())));
  });
  const std::string heard = rank.heard().value_or("nothing");
  CHECK(rank.finish() == "");
  return heard;
}

// Starts a rank that says "runs" after its first exchange, goes on until one fails, which must be
// with this status, and says the error.
WorkerProcess push_until_failure(const Daemon& box, pbox_status expected, uint32_t rank,
                                 uint32_t world_size,
                                 const std::function<void(pbox_options&)>& adjust) {
  return WorkerProcess([&](Line& line) {
    const AbiWorker worker(
        {.box = box.control(), .rank = rank, .world_size = world_size, .adjust = adjust});
    worker.tensor("tensor", 20'000);
    worker.join();
    std::vector<float> values(20'000, 1.0f);
    worker.must(worker.push_pull_and_wait(0, values.data(), values.data()));
    line.say("runs");
    for (;;) {
      const pbox_status status = worker.push_pull_and_wait(0, values.data(), values.data());
      if (status != PBOX_OK) return line.say(worker.must_be(expected, status));
    }
  });
}

nlohmann::json upstream_of(const Daemon& box) {
  const auto jobs = nlohmann::json::parse(box.get("/api/v1/jobs")).at("jobs");
  return jobs.empty() ? nlohmann::json() : jobs.at(0).at("upstream");
}

}  // namespace

TEST_CASE(
    "ranks of two racks of unequal size get the sums and means of all ranks, in every dtype") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0)), second(rack_flags(top.control(), 1));
  for (const pbox_dtype dtype : {PBOX_F32, PBOX_F16, PBOX_BF16}) {
    for (const pbox_reduction reduction : {PBOX_SUM, PBOX_MEAN}) {
      CAPTURE(dtype, reduction);
      require_sums(first, second, {.dtype = dtype, .reduction = reduction});
    }
  }
  require_sums(first, second,
               {.chunk_bytes = 4'096, .priority_policy = PBOX_PRIORITY_FORWARD_ORDER});
  require_sums(first, second, {.rounds = 5, .delivery = PBOX_DELIVERY_PULL});
  for (Daemon* box : {&first, &second, &top}) CHECK(box->await_no_jobs(kDeadlineMs));
}

TEST_CASE("racks whose ranks push in opposite orders do not wait for each other for ever") {
  constexpr uint32_t kTensors = 8;
  constexpr uint64_t kElements = 50'000;  // more than the window holds
  Daemon top;
  Daemon first(rack_flags(top.control(), 0)), second(rack_flags(top.control(), 1));
  const auto start = [&](const Daemon& box, bool is_reversed) {
    return WorkerProcess([&box, is_reversed](Line& line) {
      const AbiWorker worker({.box = box.control(), .adjust = [](pbox_options& options) {
                                options.window_bytes = 65'536;
                                options.wait_timeout_ms = kDeadlineMs;
                              }});
      for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        worker.tensor("tensor " + std::to_string(tensor), kElements);
      }
      worker.join();
      std::vector<std::vector<float>> values(kTensors, std::vector<float>(kElements, 1.0f));
      for (uint32_t turn = 0; turn < kTensors; ++turn) {
        const uint32_t tensor = is_reversed ? kTensors - 1 - turn : turn;
        worker.push_pull(tensor, values[tensor].data(), values[tensor].data());
      }
      worker.wait_all();
      const std::vector<float> sums(kElements, 2.0f);
      line.say(std::all_of(values.begin(), values.end(), [&](auto& each) { return each == sums; })
                   ? "right"
                   : "wrong");
    });
  };
  WorkerProcess forwards = start(first, false), backwards = start(second, true);
  for (WorkerProcess* rank : {&forwards, &backwards}) {
    CHECK(rank->heard() == "right");
    CHECK(rank->finish() == "");
  }
}

TEST_CASE("three levels work, because a box of racks may be a rack itself") {
  Daemon top;
  Daemon middle(rack_flags(top.control(), 0, 1));
  Daemon first(rack_flags(middle.control(), 0)), second(rack_flags(middle.control(), 1));
  require_sums(first, second, {.reduction = PBOX_MEAN});
}

TEST_CASE(
    "sums go up by a lane for each pipeline of the upper box, however many a rack's box has") {
  const auto pipelines = [](Arguments flags, uint32_t count) {
    flags.push_back("--pipeline.count=" + std::to_string(count));
    flags.insert(flags.end(), {"--pipeline.poll=adaptive", "--pipeline.pin=off"});
    return flags;
  };
  for (const uint32_t of_top : {1u, 3u}) {
    CAPTURE(of_top);
    Daemon top(pipelines({}, of_top));
    Daemon first(pipelines(rack_flags(top.control(), 0), 3));
    Daemon second(pipelines(rack_flags(top.control(), 1), 2));
    const SumsOptions options{.dtype = PBOX_BF16, .reduction = PBOX_MEAN, .waits = true};
    auto ranks = start_sums(of_rack(first, 0, options));
    for (auto& rank : start_sums(of_rack(second, 1, options))) ranks.push_back(std::move(rank));
    await_joined(ranks);
    const auto jobs = nlohmann::json::parse(top.get("/api/v1/jobs")).at("jobs");
    REQUIRE(jobs.size() == 1);
    CHECK(jobs.at(0).at("part_count") == of_top);
    CHECK(jobs.at(0).at("parts").size() == of_top);
    for (auto& rank : ranks) rank.go();
    CHECK(collect(ranks).failure == "");
    for (Daemon* box : {&first, &second, &top}) CHECK(box->await_no_jobs(kDeadlineMs));
  }
}

TEST_CASE(
    "the upper box's optimizer steps equal a local oracle's, through one rack and through two") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0)), second(rack_flags(top.control(), 1));
  CHECK(run_momentum({first.control(), second.control()}) == "");
  for (Daemon* box : {&first, &second}) CHECK(box->await_no_jobs(kDeadlineMs));
  Daemon other;
  Daemon alone(rack_flags(other.control(), 0, 1));
  CHECK(run_momentum(alone.control()) == "");
}

TEST_CASE("a job shows its upstream box, and its racks show as ranks of the upper box") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0)), second(rack_flags(top.control(), 1));
  auto ranks = start_sums(of_rack(first, 0, {.waits = true}));
  for (auto& rank : start_sums(of_rack(second, 1, {.waits = true}))) {
    ranks.push_back(std::move(rank));
  }
  await_joined(ranks);
  const nlohmann::json upstream = upstream_of(second);
  CHECK(upstream["box"] == top.control());
  CHECK(upstream["rank"] == 1);
  CHECK(upstream["world_size"] == 2);
  CHECK(upstream["joined"] == true);
  CHECK(upstream["workers"] == kAllWorkers);
  CHECK(upstream_of(top).is_null());
  CHECK_THAT(top.get("/api/v1/jobs"), Contains("\"world_size\": 2"));
  for (auto& rank : ranks) rank.go();
  CHECK(collect(ranks).failure == "");
  CHECK_THAT(second.program().errors(), Contains("sums 2 racks with 4 ranks in all"));
}

TEST_CASE("ranks of a rack are told which rack is missing, or that the upper box does not answer") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0));
  const auto impatient = [](pbox_options& options) { options.join_timeout_ms = 1'500; };
  CHECK_THAT(refusal(first, PBOX_TIMEOUT, impatient),
             Contains(top.control()) && Contains("to which this box forwards its sums") &&
                 Contains("1 of 2 ranks have not joined") && Contains("rank 1"));
  Daemon alone(rack_flags("127.0.0.1:1", 0));
  CHECK_THAT(refusal(alone, PBOX_UNAVAILABLE, impatient), Contains("127.0.0.1:1"));
  // Both boxes still serve later ranks.
  CHECK(first.await_no_jobs(kDeadlineMs));
  Daemon second(rack_flags(top.control(), 1));
  require_sums(first, second, {.rounds = 2});
}

TEST_CASE("a job that cannot be relayed is refused with the reason") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0, 1));
  CHECK_THAT(refusal(first, PBOX_INVALID_ARGUMENT,
                     [](pbox_options& options) { options.on_worker_lost = PBOX_LOST_PARTIAL; }),
             Contains("on_worker_lost partial") && Contains("[upstream]"));
  WorkerProcess rank([&](Line&) {
    const AbiWorker worker({.box = first.control(), .world_size = 1, .adjust = [](auto& options) {
                              options.mode = PBOX_MODE_OPTIMIZE;
                            }});
    worker.tensor("tensor", 1'000);
    pbox_optimizer_options sgd;
    pbox_optimizer_options_init(&sgd, PBOX_SGD);
    sgd.max_grad_norm = 1;
    worker.must(pbox_set_optimizer(worker.context(), &sgd));
    require_contains(worker.must_be(PBOX_INVALID_ARGUMENT, pbox_join(worker.context())),
                     "max_grad_norm, skip_nonfinite and guard reject cannot be used here");
  });
  CHECK(rank.finish() == "");
  CHECK_THAT(refusal(
                 first, PBOX_INVALID_ARGUMENT,
                 [](pbox_options& options) { options.chunk_bytes = 1'024; }, 17'000'000),
             Contains("makes 66407 chunks, but at most 65535 can be forwarded; raise chunk_bytes"));
}

TEST_CASE("a job works whose chunks' names do not all fit into one message") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0)), second(rack_flags(top.control(), 1));
  require_sums(first, second, {.elements = {5'400'000, 40'000}, .rounds = 2, .chunk_bytes = 1'024});
}

TEST_CASE("ranks that give up and a box that stops leave nothing waiting while a rack is missing") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0));
  {
    WorkerProcess rank([&](Line& line) {
      const AbiWorker worker({.box = first.control(), .world_size = 1});
      worker.tensor("tensor", 1'000);
      line.say("joins");
      pbox_join(worker.context());
    });
    CHECK(rank.heard() == "joins");
    CHECK(first.program().await_errors("upstream_joining", kDeadlineMs));
  }  // the ranks are killed here
  CHECK(first.await_no_jobs(kDeadlineMs));
  CHECK(top.await_no_jobs(kDeadlineMs));
  WorkerProcess rank([&](Line& line) {
    const AbiWorker worker({.box = first.control(), .job = "next", .world_size = 1});
    worker.tensor("tensor", 1'000);
    line.say("joins");
    line.say(worker.must_be(PBOX_BOX_LOST, pbox_join(worker.context())));
  });
  CHECK(rank.heard() == "joins");
  CHECK(first.program().await_errors("'next': all ranks are here", kDeadlineMs));
  first.program().signal(SIGTERM);
  CHECK_THAT(rank.heard().value_or("nothing"), Contains("is shutting down"));
  CHECK(first.program().wait_exit(kDeadlineMs) == 0);
}

TEST_CASE("if the upper box is killed and started again, every sum over all racks is right") {
  MortalBox top;
  Daemon first(rack_flags(top.daemon().control(), 0));
  Daemon second(rack_flags(top.daemon().control(), 1));
  const SumsOptions options{.elements = {1, 353, 8'193, 100'007}, .rounds = 150, .waits = true};
  auto ranks = start_sums(of_rack(first, 0, options));
  for (auto& rank : start_sums(of_rack(second, 1, options))) ranks.push_back(std::move(rank));
  await_joined(ranks);
  for (auto& rank : ranks) rank.go();
  for (int crash = 0; crash < 2; ++crash) {
    const uint64_t before = top.daemon().metric("pbox_job_chunk_rounds_total");
    while (top.daemon().metric("pbox_job_chunk_rounds_total") < before + 100) {
    }
    top.kill();
    top.start_again();
  }
  const SumsOutcome outcome = collect(ranks);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
}

TEST_CASE("racks that gather at an upper box join it again if it is killed and started again") {
  MortalBox top;
  Daemon first(rack_flags(top.daemon().control(), 0));
  Daemon second(rack_flags(top.daemon().control(), 1));
  auto ranks = start_sums(of_rack(first, 0));
  REQUIRE(await(
      [&] { return !nlohmann::json::parse(top.daemon().get("/api/v1/jobs")).at("jobs").empty(); }));
  top.kill();
  top.start_again();
  for (auto& rank : start_sums(of_rack(second, 1))) ranks.push_back(std::move(rank));
  const SumsOutcome outcome = collect(ranks);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
}

TEST_CASE("if a rank is lost for good, ranks of other racks are told which one, and why") {
  Daemon top;
  Daemon first(rack_flags(top.control(), 0)), second(rack_flags(top.control(), 1));
  const auto start = [](const Daemon& box, uint32_t rank, uint32_t world_size) {
    return push_until_failure(box, PBOX_WORKER_LOST, rank, world_size,
                              [](pbox_options& options) { options.lost_timeout_ms = 300; });
  };
  WorkerProcess lost = start(first, 1, 2);
  WorkerProcess near = start(first, 0, 2), far = start(second, 0, 1);
  for (WorkerProcess* rank : {&lost, &near, &far}) CHECK(rank->heard() == "runs");
  lost.signal(SIGKILL);
  CHECK_THAT(near.heard().value_or("nothing"), Contains("rank 1 (") && Contains(") was lost"));
  CHECK_THAT(far.heard().value_or("nothing"),
             Contains("rack 0 left") && Contains("rank 1 (") && Contains(") was lost"));
  for (WorkerProcess* rank : {&near, &far}) CHECK(rank->finish() == "");
  for (const Daemon* box : {&first, &second, &top}) CHECK(box->await_no_jobs(kDeadlineMs));
}

TEST_CASE(
    "if a rack's box is killed, its ranks and those of the other racks are told, and none hangs") {
  Daemon top({"--control.worker_lost_timeout_ms=500"});
  auto first = std::make_unique<Daemon>(rack_flags(top.control(), 0));
  Daemon second(rack_flags(top.control(), 1));
  const auto start = [](const Daemon& box, pbox_status expected) {
    return push_until_failure(box, expected, 0, 1,
                              [](pbox_options& options) { options.recover_timeout_ms = 1'000; });
  };
  WorkerProcess lost = start(*first, PBOX_BOX_LOST), other = start(second, PBOX_WORKER_LOST);
  CHECK(lost.heard() == "runs");
  CHECK(other.heard() == "runs");
  first->program().signal(SIGKILL);
  CHECK_THAT(other.heard().value_or("nothing"),
             Contains(top.control()) && Contains("rank 0") && Contains("lost"));
  CHECK_THAT(lost.heard().value_or("nothing"), Contains("box"));
  for (WorkerProcess* rank : {&lost, &other}) CHECK(rank->finish() == "");
  CHECK(second.await_no_jobs(kDeadlineMs));
  CHECK(top.await_no_jobs(kDeadlineMs));
}

}  // namespace pbox::test
