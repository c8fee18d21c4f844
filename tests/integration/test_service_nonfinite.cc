// A rank pushes a gradient that contains a NaN. The box names that rank, its tensor and its round,
// and no other rank.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

constexpr uint32_t kRanks = 3;
constexpr uint32_t kCulprit = 1;
constexpr int kRound = 2;  // the round of four that contains the NaN
constexpr size_t kElements = 50'000;

// Starts a rank with two tensors of the type; it pushes one bad value, once, in the second tensor.
WorkerProcess start_rank(const Daemon& daemon, uint32_t rank, pbox_dtype dtype) {
  return WorkerProcess([&daemon, rank, dtype](Line& line) {
    AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = kRanks});
    worker.tensor("embedding", kElements, dtype);
    worker.tensor("head", kElements, dtype);
    worker.join();
    const size_t bytes = dtype == PBOX_F32 ? 4 : 2;
    for (int round = 0; round < 4; ++round) {
      std::vector<std::byte> zeros(kElements * bytes), values = zeros;
      if (rank == kCulprit && round == kRound) {
        // This bit pattern is a NaN in every type, whatever its width.
        std::fill_n(values.end() - static_cast<ptrdiff_t>(bytes), bytes, std::byte{0x7f});
        if (dtype != PBOX_F16) values[values.size() - 2] = std::byte{0xff};
      }
      worker.push_pull(0, zeros.data(), zeros.data());
      worker.push_pull(1, values.data(), values.data());
      worker.wait_all();
    }
    line.say("done");
    line.await_go();
    worker.leave();
  });
}

}  // namespace

TEST_CASE("a rank that pushes a NaN is named with its tensor and round, the others are not") {
  for (const pbox_dtype dtype : {PBOX_F32, PBOX_F16, PBOX_BF16}) {
    Daemon daemon;
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      workers.push_back(start_rank(daemon, rank, dtype));
    }
    for (auto& worker : workers) REQUIRE(worker.heard() == "done");

    const Json job = Json::parse(daemon.get("/api/v1/jobs/job"));
    INFO(job.dump(2));
    for (const Json& worker : job["workers"]) {
      const bool is_culprit = worker["rank"] == kCulprit;
      CHECK(worker["nonfinite_fragments"] == (is_culprit ? 1 : 0));
      CHECK(worker["nonfinite_tensor"] == (is_culprit ? Json("head") : Json(nullptr)));
      CHECK(worker["nonfinite_round"] == (is_culprit ? Json(kRound) : Json(nullptr)));
    }
    CHECK(daemon.metric("pbox_worker_nonfinite_fragments_total", "rank=\"1\"") == 1);
    CHECK(daemon.metric("pbox_worker_nonfinite_fragments_total") == 1);

    Program program(PBOX_CTL_PATH, {"workers", "job", "--admin", daemon.admin()});
    std::string text;
    while (const auto line = program.read_line(kDeadlineMs)) text += *line + "\n";
    CHECK(program.wait_exit(kDeadlineMs) == 0);
    CHECK_THAT(text, Contains("job: rank 1 pushed infinities or NaNs, last "));
    CHECK_THAT(text, Contains(" ago: tensor 'head', round 2\n"));
    CHECK_THAT(text, !Contains("rank 0 pushed") && !Contains("rank 2 pushed"));

    for (auto& worker : workers) worker.go();
    for (auto& worker : workers) CHECK(worker.finish() == "");
  }
}

}  // namespace pbox::test
