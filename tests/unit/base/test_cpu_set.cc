#include <sched.h>

#include <catch2/catch.hpp>
#include <optional>
#include <thread>

#include "base/cpu_set.h"

namespace pbox {

TEST_CASE("a pinned thread runs on its cpu and nowhere else") {
  const auto allowed = current_affinity();
  REQUIRE(allowed);
  REQUIRE_FALSE(allowed->cpus.empty());
  for (const int cpu : allowed->cpus) {
    CAPTURE(cpu);
    std::optional<Status> pinned;
    std::optional<Result<CpuSet>> after;
    int ran_on = -1;
    std::thread([&] {
      pinned = pin_current_thread({{cpu}});
      ran_on = sched_getcpu();
      after = current_affinity();
    }).join();
    REQUIRE(pinned->ok());
    CHECK(ran_on == cpu);
    REQUIRE(after->ok());
    CHECK((*after)->cpus == std::vector<int>{cpu});
  }
}

TEST_CASE("the main thread's cpus are known to every thread") {
  const auto allowed = current_affinity();  // this is the main thread
  REQUIRE(allowed);
  std::optional<Result<CpuSet>> seen;
  std::thread([&] {
    REQUIRE(pin_current_thread({{allowed->cpus.front()}}));
    seen = main_thread_affinity();
  }).join();
  REQUIRE(seen->ok());
  CHECK((*seen)->cpus == allowed->cpus);
}

TEST_CASE("a thread can be pinned to several cpus") {
  const auto allowed = current_affinity();
  REQUIRE(allowed);
  std::optional<Status> pinned;
  std::optional<Result<CpuSet>> after;
  std::thread([&] {
    pinned = pin_current_thread(*allowed);
    after = current_affinity();
  }).join();
  REQUIRE(pinned->ok());
  REQUIRE(after->ok());
  CHECK((*after)->cpus == allowed->cpus);
}

TEST_CASE("pinning one thread does not affect the others") {
  const auto before = current_affinity();
  REQUIRE(before);
  std::thread([&] { CHECK(pin_current_thread({{before->cpus[0]}}).ok()); }).join();
  const auto after = current_affinity();
  REQUIRE(after);
  CHECK(after->cpus == before->cpus);
}

TEST_CASE("pinning to a missing cpu fails with an error that says what to check") {
  const auto status = pin_current_thread({{1023}});
  REQUIRE_FALSE(status);
  CHECK_THAT(status.error().message,
             Catch::Contains("cpu 1023") && Catch::Contains("[pipeline] cores"));
}

}  // namespace pbox
