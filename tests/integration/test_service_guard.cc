// The numeric guard, with three ranks of which one pushes unsound values: metrics and the log name
// that rank, and every policy has the result that it promises.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/daemon.h"
#include "tests/support/sums.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

constexpr uint32_t kRanks = 3;
constexpr uint32_t kCulprit = 1;
constexpr uint32_t kRounds = 5;    // the last one, 4, is measured
constexpr uint32_t kBadRound = 2;  // the culprit's gradient of `head` has unsound values in it
constexpr size_t kElements = 50'000;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Trial {
  pbox_dtype dtype = PBOX_F32;
  pbox_guard guard = PBOX_GUARD_FLAG;
  float max_abs = 0;
  pbox_numerics numerics = PBOX_NUMERICS_FAST;
};

// Stores a NaN, or the negative infinity, at the element.
void put_bits(pbox_dtype dtype, std::vector<unsigned char>& bytes, size_t element, bool is_nan) {
  constexpr uint32_t kNans[] = {0x7fc00000, 0x7e00, 0x7fc0};
  constexpr uint32_t kInfinities[] = {0xff800000, 0xfc00, 0xff80};
  const uint32_t bits = (is_nan ? kNans : kInfinities)[dtype];
  const size_t size = bytes.size() / kElements;
  std::memcpy(bytes.data() + element * size, &bits, size);
}

// Rank R pushes R + 1 everywhere. Once, the culprit pushes different values in three places.
std::vector<unsigned char> gradient_of(pbox_dtype dtype, uint32_t rank, bool is_bad) {
  std::vector<float> values(kElements, float(rank + 1));
  if (is_bad) values[kElements - 1] = 1000;
  auto bytes = encode(dtype, values);
  if (!is_bad) return bytes;
  put_bits(dtype, bytes, 0, true);
  put_bits(dtype, bytes, kElements / 2, false);
  return bytes;
}

AbiWorker make_worker(const Daemon& daemon, uint32_t rank, const Trial& trial,
                      pbox_mode mode = PBOX_MODE_AGGREGATE) {
  return AbiWorker({.box = daemon.control(),
                    .rank = rank,
                    .world_size = kRanks,
                    .adjust = [&trial, mode](pbox_options& options) {
                      options.mode = mode;
                      options.guard = trial.guard;
                      options.guard_max_abs = trial.max_abs;
                      options.numerics = trial.numerics;
                    }});
}

// Each element of the result is 6 = 1 + 2 + 3, except for the culprit's three values in the bad
// round. Guards that do not zero NaNs are tried with f32 only.
void check_result(const Trial& trial, uint32_t round, const std::vector<unsigned char>& result) {
  std::vector<float> expected(kElements, 6);
  if (round == kBadRound) {
    const bool zeroes = trial.guard == PBOX_GUARD_ZERO;
    expected[0] = zeroes ? 4 : std::numeric_limits<float>::quiet_NaN();
    expected[kElements / 2] = zeroes ? 4 : -kInfinity;
    expected[kElements - 1] = zeroes && trial.max_abs > 0 ? 4 : 1004;
  }
  const auto bytes = encode(trial.dtype, expected);
  const size_t size = bytes.size() / kElements;
  for (size_t index = 0; index < kElements; ++index) {
    float got = 0;
    if (std::isnan(expected[index])) std::memcpy(&got, result.data() + index * size, sizeof(got));
    if (std::isnan(expected[index]) && std::isnan(got)) continue;
    if (std::memcmp(bytes.data() + index * size, result.data() + index * size, size) == 0) continue;
    throw std::runtime_error("round " + std::to_string(round) + ", element " +
                             std::to_string(index) + " is wrong");
  }
}

WorkerProcess start_rank(const Daemon& daemon, uint32_t rank, const Trial& trial) {
  return WorkerProcess([&daemon, rank, trial](Line& line) {
    const AbiWorker worker = make_worker(daemon, rank, trial);
    for (const char* name : {"embedding", "head"}) worker.tensor(name, kElements, trial.dtype);
    worker.join();
    for (uint32_t round = 0; round < kRounds; ++round) {
      const bool is_bad = rank == kCulprit && round == kBadRound;
      const auto first = gradient_of(trial.dtype, rank, false);
      const auto second = gradient_of(trial.dtype, rank, is_bad);
      auto first_result = first, second_result = second;
      worker.push_pull(0, first.data(), first_result.data());
      worker.push_pull(1, second.data(), second_result.data());
      worker.wait_all();
      check_result(trial, UINT32_MAX, first_result);
      check_result(trial, round, second_result);
    }
    line.say("done");
    line.await_go();
    worker.leave();
  });
}

// Checks that the box blames the culprit alone, and knows the norm of each rank.
void check_metrics(const Daemon& daemon, uint64_t fragments) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const std::string label = "rank=\"" + std::to_string(rank) + "\"";
    INFO(label);
    CHECK(daemon.metric("pbox_worker_nonfinite_fragments_total", label) ==
          (rank == kCulprit ? fragments : 0));
    CHECK(daemon.metric("pbox_worker_gradient_squares", label) ==
          2 * kElements * (rank + 1) * (rank + 1));
  }
  const Json job = Json::parse(daemon.get("/api/v1/jobs/job"));
  for (const Json& worker : job["workers"]) {
    const double rank = worker["rank"];
    CHECK(worker["gradient_norm"].get<double>() ==
          Approx(std::sqrt(2.0 * kElements) * (rank + 1)).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("guards flag and zero: exact results, and the culprit is named") {
  const Trial trials[] = {{.dtype = PBOX_F32, .guard = PBOX_GUARD_FLAG, .max_abs = 100},
                          {.dtype = PBOX_F32, .guard = PBOX_GUARD_ZERO, .max_abs = 0},
                          {.dtype = PBOX_F32, .guard = PBOX_GUARD_ZERO, .max_abs = 100},
                          {.dtype = PBOX_F16, .guard = PBOX_GUARD_ZERO, .max_abs = 100},
                          {.dtype = PBOX_BF16, .guard = PBOX_GUARD_ZERO, .max_abs = 100},
                          {.dtype = PBOX_F32,
                           .guard = PBOX_GUARD_ZERO,
                           .max_abs = 100,
                           .numerics = PBOX_NUMERICS_ORDERED}};
  for (const Trial& trial : trials) {
    Daemon daemon;
    std::vector<WorkerProcess> ranks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) ranks.push_back(start_rank(daemon, rank, trial));
    INFO("dtype " << trial.dtype << " guard " << trial.guard << " max_abs " << trial.max_abs);
    for (auto& rank : ranks) REQUIRE(rank.heard() == "done");
    check_metrics(daemon, trial.max_abs > 0 ? 3 : 2);
    CHECK(daemon.program().await_errors("job 'job': rank 1 pushed an infinity", kDeadlineMs));
    CHECK_THAT(daemon.program().errors(), Contains("tensor 'head', round 2"));
    CHECK_THAT(daemon.program().errors(), !Contains("rank 0 pushed") && !Contains("rank 2 pushed"));
    for (auto& rank : ranks) rank.go();
    for (auto& rank : ranks) CHECK(rank.finish() == "");
  }
}

TEST_CASE("guard reject, mode aggregate: every rank is told who pushed what, and no result comes") {
  for (const auto numerics : {PBOX_NUMERICS_FAST, PBOX_NUMERICS_ORDERED}) {
    Daemon daemon;
    std::vector<WorkerProcess> ranks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&daemon, rank, numerics](Line& line) {
        const Trial trial{.guard = PBOX_GUARD_REJECT, .max_abs = 100, .numerics = numerics};
        const AbiWorker worker = make_worker(daemon, rank, trial);
        const uint32_t head = worker.tensor("head", kElements);
        worker.join();
        for (uint32_t round = 0; round <= kBadRound; ++round) {
          const bool is_bad = rank == kCulprit && round == kBadRound;
          std::vector<float> values(kElements, float(rank + 1));
          if (is_bad) values[7] = -100.5f;
          std::vector<float> result(kElements);
          const pbox_status status = worker.push_pull_and_wait(head, values.data(), result.data());
          if (round < kBadRound) {
            worker.must(status);
          } else {
            line.say(worker.must_be(PBOX_INVALID_ARGUMENT, status));
          }
        }
      });
    }
    for (auto& rank : ranks) {
      CHECK_THAT(rank.heard().value_or("nothing"),
                 Contains("job 'job': rank 1 pushed an infinity, a NaN or a value beyond "
                          "guard_max_abs 100 in tensor 'head', round 2"));
    }
    for (auto& rank : ranks) CHECK(rank.finish() == "");
    CHECK(daemon.metric("pbox_jobs_failed_total") == 1);
  }
}

TEST_CASE("guard reject, mode optimize: all ranks skip the round and go on") {
  Daemon daemon;
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&daemon, rank](Line& line) {
      const Trial trial{.guard = PBOX_GUARD_REJECT, .max_abs = 100};
      const AbiWorker worker = make_worker(daemon, rank, trial, PBOX_MODE_OPTIMIZE);
      const uint32_t head = worker.tensor("head", kElements);
      std::vector<float> weights(kElements, 200);  // the bound applies to gradients only
      worker.join_with_sgd(1, head, weights);
      float expected = 200;
      for (uint32_t round = 1; round <= kRounds; ++round) {
        std::vector<float> values(kElements, float(rank + 1));
        if (rank == kCulprit && round == kBadRound) values[7] = 100.5f;
        worker.push_pull(head, values.data(), weights.data());
        worker.wait(head);
        if (round != kBadRound) expected -= 6;
        if (weights != std::vector<float>(kElements, expected)) {
          throw std::runtime_error("the weights are wrong in round " + std::to_string(round));
        }
        pbox_step step{};
        step.struct_size = sizeof(step);
        worker.must(pbox_last_step(worker.context(), &step));
        if (step.round != round || step.skipped != (round == kBadRound ? 1u : 0u)) {
          throw std::runtime_error("the verdict is wrong in round " + std::to_string(round));
        }
      }
      line.say("done");
      line.await_go();
      worker.leave();
    });
  }
  for (auto& rank : ranks) CHECK(rank.heard() == "done");
  CHECK(daemon.metric("pbox_worker_nonfinite_fragments_total", "rank=\"1\"") == 1);
  CHECK(daemon.metric("pbox_worker_nonfinite_fragments_total") == 1);
  CHECK(daemon.program().await_errors("step_skipped", kDeadlineMs));
  for (auto& rank : ranks) rank.go();
  for (auto& rank : ranks) CHECK(rank.finish() == "");
}

TEST_CASE("guard reject needs sync model bsp") {
  Daemon daemon;
  const AbiWorker worker({.box = daemon.control(), .adjust = [](pbox_options& options) {
                            options.mode = PBOX_MODE_OPTIMIZE;
                            options.recovery = PBOX_RECOVERY_NONE;
                            options.sync = PBOX_SYNC_ASP;
                            options.guard = PBOX_GUARD_REJECT;
                          }});
  worker.tensor("head", kElements);
  pbox_optimizer_options sgd;
  pbox_optimizer_options_init(&sgd, PBOX_SGD);
  worker.must(pbox_set_optimizer(worker.context(), &sgd));
  CHECK_THAT(worker.must_be(PBOX_INVALID_ARGUMENT, pbox_join(worker.context())),
             Contains("guard reject needs sync model bsp") && Contains("set guard zero"));
}

}  // namespace pbox::test
