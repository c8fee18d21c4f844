#include <catch2/catch.hpp>

#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {

TEST_CASE("a job of 50 million elements takes twice the model's size on the box, and releases it") {
  constexpr uint64_t kElements = 50'000'000;
  constexpr uint64_t kModelBytes = kElements * sizeof(float);
  Daemon daemon;
  const uint64_t before = daemon.resident_bytes();
  WorkerProcess worker([&](Line& line) {
    AbiWorker worker({.box = daemon.control()});
    std::vector<float> values(kElements, 1.0f);
    worker.tensor("model", kElements);
    worker.join();
    for (int round = 0; round < 2; ++round) {  // uses both slots of every chunk
      worker.push_pull(0, values.data(), values.data());
      worker.wait(0);
    }
    require(values.front() == 1.0f && values.back() == 1.0f, "a wrong sum");
    line.say("done");
    line.await_go();
    worker.leave();
  });
  REQUIRE(worker.heard(120'000) == "done");
  const uint64_t during = daemon.resident_bytes();
  CHECK(during <= 2 * kModelBytes + (64u << 20));
  CHECK(during >= 2 * kModelBytes);  // the measurement sees the job's memory
  worker.go();
  CHECK(worker.finish() == "");
  CHECK(daemon.await_no_jobs(kDeadlineMs));
  CHECK(daemon.resident_bytes() <= before + (64u << 20));
}

}  // namespace pbox::test
