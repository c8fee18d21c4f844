// Compressed tensors over a real box: ranks agree bit for bit, sums are near the exact ones, boxes
// may be lost, and tensors that cannot be compressed are refused with the reason.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/support/box_cluster.h"
#include "tests/support/mortal_box.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr uint64_t kElements = 100'003;  // 13 chunks; the last one ends within a block

struct Plan {
  std::string box;
  uint32_t workers = 3;
  uint32_t rounds = 40;
  pbox_compression compression = PBOX_COMPRESSION_Q8;
  bool is_in_place = false;
};

// Later elements are smaller, so that blocks of one tensor have different scales.
double magnitude_at(uint64_t element) {
  const uint64_t halvings = element / 8000;
  return std::exp2(-static_cast<double>(halvings));
}

float gradient_of(uint32_t rank, uint32_t round, uint64_t element) {
  const auto phase = static_cast<double>(element * (rank + 1) % 997 + round * 31);
  return static_cast<float>(std::sin(phase) * magnitude_at(element));
}

double digest_of(double digest, const std::vector<float>& values) {
  for (const float value : values) {
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    digest = std::fmod(digest * 31 + bits, 1e9 + 7);
  }
  return digest;
}

// Returns the largest distance of the sum of all results from that of all gradients, in units of
// the gradients' magnitude there.
double run_rounds(const AbiWorker& worker, const Plan& plan, uint32_t rank, uint32_t tensor,
                  double& digest) {
  std::vector<float> input(kElements), output(kElements);
  std::vector<double> missing(kElements);
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    for (uint64_t at = 0; at < kElements; ++at) input[at] = gradient_of(rank, round, at);
    float* result = plan.is_in_place ? input.data() : output.data();
    worker.push_pull(tensor, input.data(), result);
    worker.wait(tensor);
    if (plan.is_in_place) output = input;
    digest = digest_of(digest, output);
    for (uint64_t at = 0; at < kElements; ++at) {
      for (uint32_t one = 0; one < plan.workers; ++one) {
        missing[at] += double{gradient_of(one, round, at)};
      }
      missing[at] -= double{output[at]};
    }
  }
  double worst = 0;
  for (uint64_t at = 0; at < kElements; ++at) {
    worst = std::max(worst, std::fabs(missing[at]) / magnitude_at(at));
  }
  return worst;
}

void run_rank(const Plan& plan, uint32_t rank, Line& line) {
  const AbiWorker worker(
      {.box = plan.box,
       .rank = rank,
       .world_size = plan.workers,
       .adjust = [&](pbox_options& options) { options.compression = plan.compression; }});
  const uint32_t tensor = worker.tensor("dense", kElements);
  worker.join();
  line.say("joined");
  line.await_go();
  double digest = 0;
  const double worst = run_rounds(worker, plan, rank, tensor, digest);
  line.say(std::to_string(digest) + " " + std::to_string(worst) + " " +
           std::to_string(worker.statistics().bytes_pushed));
  worker.leave();
}

std::vector<WorkerProcess> start(const Plan& plan) {
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < plan.workers; ++rank) {
    ranks.emplace_back([&plan, rank](Line& line) { run_rank(plan, rank, line); });
  }
  for (WorkerProcess& rank : ranks) REQUIRE(rank.heard().value_or("nothing") == "joined");
  for (const WorkerProcess& rank : ranks) rank.go();
  return ranks;
}

struct Outcome {
  double worst = 0;
  double bytes_pushed = 0;
};

Outcome collect(std::vector<WorkerProcess>& ranks) {
  Outcome outcome;
  std::string first;
  for (WorkerProcess& rank : ranks) {
    const std::string said = rank.heard().value_or("nothing");
    const std::string digest = said.substr(0, said.find(' '));
    if (first.empty()) first = digest;
    INFO(said);
    CHECK(digest == first);
    REQUIRE(sscanf(said.c_str(), "%*s %lf %lf", &outcome.worst, &outcome.bytes_pushed) == 2);
    CHECK(rank.finish() == "");
  }
  return outcome;
}

// Each rank's residue may hold one step of its gradient, and the box's residue one step of the sum.
double bound_of(const Plan& plan) {
  return plan.workers * (plan.compression == PBOX_COMPRESSION_Q4 ? 4.0 / 3.5 : 4.0 / 127);
}

}  // namespace

TEST_CASE("compressed sums are the same on all ranks, and over rounds nothing is lost") {
  const Daemon daemon;
  for (const auto compression : {PBOX_COMPRESSION_Q8, PBOX_COMPRESSION_Q4}) {
    for (const bool is_in_place : {false, true}) {
      const Plan plan{
          .box = daemon.control(), .compression = compression, .is_in_place = is_in_place};
      auto ranks = start(plan);
      const Outcome outcome = collect(ranks);
      CHECK(outcome.worst < bound_of(plan));
      const double bits = compression == PBOX_COMPRESSION_Q8 ? 8.25 : 4.25;
      CHECK(outcome.bytes_pushed > plan.rounds * kElements * bits / 8);
      CHECK(outcome.bytes_pushed < plan.rounds * kElements * bits / 8 * 1.01);
    }
  }
}

TEST_CASE("compressed sums stay the same on all ranks while their box is killed again and again") {
  for (const auto compression : {PBOX_COMPRESSION_Q8, PBOX_COMPRESSION_Q4, PBOX_COMPRESSION_AUTO}) {
    MortalBox box;
    const Plan plan{.box = box.daemon().control(),
                    .rounds = 150,
                    .compression = compression,
                    .is_in_place = true};
    auto ranks = start(plan);
    constexpr uint64_t kPackets = 300;
    constexpr int kCrashes = 3;
    for (int crash = 0; crash < kCrashes; ++crash) {
      REQUIRE(await([&] { return box.daemon().metric("pbox_rx_packets_total") > kPackets; }));
      box.kill();
      box.start_again();
    }
    const Outcome outcome = collect(ranks);
    CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
    // Each box that is lost loses its residue.
    CHECK(outcome.worst < (1 + kCrashes) * bound_of(plan));
  }
}

// The process of a rank: checks the sums, and what the library says about its choice. Stands still
// before round `stops_at`.
void run_choosing(const std::string& box, uint32_t rank, uint32_t rounds, uint32_t stops_at,
                  bool rejoins, Line& line) {
  const AbiWorker worker({.box = box, .rank = rank, .world_size = 2, .adjust = [&](auto& options) {
                            options.compression = PBOX_COMPRESSION_AUTO;
                            options.rejoin = rejoins ? 1 : 0;
                          }});
  const uint32_t tensor = worker.tensor("dense", kElements);
  const uint32_t small = worker.tensor("small", 65'535);
  worker.join();
  uint32_t round = 0;
  worker.must(pbox_tensor_round(worker.context(), tensor, &round));
  line.say("round " + std::to_string(round));
  std::vector<float> values(kElements);
  for (; round < rounds; ++round) {
    if (round == stops_at) {
      line.say("stopped");
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
    std::fill(values.begin(), values.end(), static_cast<float>(rank + 1));
    worker.push_pull(tensor, values.data(), values.data());
    worker.wait(tensor);
    for (const float value : values) require(std::fabs(value - 3) < 0.2f, "the sum is wrong");
    pbox_compression now = -1;
    worker.must(pbox_tensor_compression(worker.context(), tensor, &now, nullptr, nullptr));
    if (round < 16) require(now == PBOX_COMPRESSION_NONE, "the first window is compressed");
    if (round >= 16 && round < 32) require(now == PBOX_COMPRESSION_Q8, "the second one is not");
  }
  double plain = 0, compressed = 0;
  worker.must(pbox_tensor_compression(worker.context(), tensor, nullptr, &plain, &compressed));
  require(plain > 0 && compressed > 0, "the times of an exchange are not known");
  const pbox_statistics statistics = worker.statistics();
  require(statistics.chosen_tensors == 1, "another tensor is chosen, too");
  require(rejoins || statistics.compression_changes >= 1, "nothing has changed");
  pbox_compression now = -1;
  worker.must(pbox_tensor_compression(worker.context(), small, &now, nullptr, nullptr));
  require(now == PBOX_COMPRESSION_NONE, "a small tensor is compressed");
  line.say("done");
  worker.leave();
}

TEST_CASE("ranks choose compression alike, a new process in a lost rank's place, too") {
  // Within a window, in a window's last round, and at the beginning of one.
  const uint32_t stops_at = GENERATE(20, 31, 32, 47, 48);
  constexpr uint32_t kRounds = 60;
  const Daemon daemon;
  const std::string& box = daemon.control();
  WorkerProcess first([&](Line& line) { run_choosing(box, 0, kRounds, kRounds, false, line); });
  auto second = std::make_unique<WorkerProcess>(
      [&](Line& line) { run_choosing(box, 1, kRounds, stops_at, false, line); });
  REQUIRE(first.heard() == "round 0");
  REQUIRE(second->heard() == "round 0");
  REQUIRE(second->heard() == "stopped");
  second.reset();
  WorkerProcess third([&](Line& line) { run_choosing(box, 1, kRounds, kRounds, true, line); });
  INFO("stopped before round " << stops_at);
  REQUIRE(third.heard() == "round " + std::to_string(stops_at));
  CHECK(first.heard() == "done");
  CHECK(third.heard() == "done");
  CHECK(first.finish() == "");
  CHECK(third.finish() == "");
}

TEST_CASE("a tensor whose compression is chosen needs a name with room for those of its forms") {
  const AbiWorker worker({.box = {}, .adjust = [](pbox_options& options) {
                            options.compression = PBOX_COMPRESSION_AUTO;
                          }});
  const std::string longest(250, 'n');
  uint32_t tensor = 0;
  CHECK_THAT(
      worker.must_be(PBOX_INVALID_ARGUMENT, pbox_register_tensor(worker.context(), longest.c_str(),
                                                                 kElements, PBOX_F32, 0, &tensor)),
      Catch::Contains("must have at most 249 bytes"));
}

TEST_CASE("tensors that are small or not f32 stay as they are, unless a small one is named") {
  const Daemon daemon;
  const AbiWorker worker({.box = daemon.control(), .adjust = [](pbox_options& options) {
                            options.compression = PBOX_COMPRESSION_Q4;
                          }});
  const uint32_t small = worker.tensor("small", 4095), large = worker.tensor("large", 4096),
                 half = worker.tensor("half", 8192, PBOX_BF16), named = worker.tensor("named", 64),
                 plain = worker.tensor("plain", 4096);
  worker.must(pbox_set_tensor_compression(worker.context(), named, PBOX_COMPRESSION_Q8));
  worker.must(pbox_set_tensor_compression(worker.context(), plain, PBOX_COMPRESSION_NONE));
  CHECK_THAT(
      worker.must_be(PBOX_INVALID_ARGUMENT,
                     pbox_set_tensor_compression(worker.context(), half, PBOX_COMPRESSION_Q8)),
      Catch::Contains("tensor 'half' is bf16, and compression needs f32"));
  CHECK_THAT(worker.must_be(PBOX_INVALID_ARGUMENT,
                            pbox_set_tensor_compression(worker.context(), named, 4)),
             Catch::Contains("compression 4 is unknown"));
  worker.join();
  const std::vector<uint64_t> bytes = {4095 * 4, 4096 / 32 * 17, 8192 * 2, 66, 4096 * 4};
  uint64_t sum = 0;
  for (const uint32_t tensor : {small, large, half, named, plain}) {
    std::vector<float> buffer(8192, 1.0f);
    worker.push_pull(tensor, buffer.data(), buffer.data());
    worker.wait(tensor);
    sum += bytes[tensor];
    CHECK(worker.statistics().bytes_pushed == sum);
    CHECK(worker.statistics().bytes_pulled == sum);
  }
}

TEST_CASE("a job or tensor that cannot be compressed is refused in words") {
  const Daemon daemon;
  pbox_options options;
  pbox_options_init(&options);
  const std::string& box = daemon.control();
  options.box = box.c_str();
  options.compression = PBOX_COMPRESSION_AUTO;
  options.mode = PBOX_MODE_OPTIMIZE;
  pbox_context* context = nullptr;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("COMPRESSION_AUTO needs PBOX_MODE_AGGR"));
  options.compression = PBOX_COMPRESSION_Q8;
  options.mode = PBOX_MODE_COLLECTIVE;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("compression needs PBOX_MODE_AGGREGATE or"));

  const auto refusal = [&](pbox_compression compression, bool is_table, pbox_sync sync) {
    const AbiWorker worker({.box = box, .adjust = [sync](pbox_options& optimizing) {
                              optimizing.mode = PBOX_MODE_OPTIMIZE;
                              optimizing.sync = sync;
                              if (sync != PBOX_SYNC_BSP) optimizing.recovery = PBOX_RECOVERY_NONE;
                            }});
    const uint32_t tensor = worker.tensor("dense", 8192);
    pbox_optimizer_options sgd;
    pbox_optimizer_options_init(&sgd, PBOX_SGD);
    worker.must(pbox_set_optimizer(worker.context(), &sgd));
    if (is_table) worker.must(pbox_set_tensor_rows(worker.context(), tensor, 64));
    worker.must(pbox_set_tensor_compression(worker.context(), tensor, compression));
    return worker.must_be(PBOX_INVALID_ARGUMENT, pbox_join(worker.context()));
  };
  CHECK_THAT(refusal(PBOX_COMPRESSION_AUTO, false, PBOX_SYNC_BSP),
             Catch::Contains("compression auto needs mode aggregate"));
  CHECK_THAT(refusal(PBOX_COMPRESSION_Q4, true, PBOX_SYNC_BSP),
             Catch::Contains("tensor 'dense': compression q4 cannot be used for a table"));
  CHECK_THAT(refusal(PBOX_COMPRESSION_Q8, false, PBOX_SYNC_ASP),
             Catch::Contains("tensor 'dense': compression q8 needs model bsp or drop for all "
                             "tensors"));
}

}  // namespace pbox::test
