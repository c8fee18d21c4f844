#include <catch2/catch.hpp>

#include "config/parse.h"

namespace pbox::config {
namespace {

ReloadOutcome reload_text(const std::string& text) {
  return reload(*parse_text("").config, parse_text(text));
}

}  // namespace

TEST_CASE("a reload applies what may change and names what needs a restart") {
  const auto outcome =
      reload_text("[log]\nlevel = debug\n[memory]\njob_share = 0.5\n[control]\nport = 1\n");
  REQUIRE(outcome.config);
  CHECK(outcome.applied ==
        std::vector<std::string>{"memory.job_share: 0.85 -> 0.5", "log.level: info -> debug"});
  CHECK(outcome.needs_restart == std::vector<std::string>{"control.port: 9541 -> 1"});
  CHECK(outcome.config->log.level == LogLevel::kDebug);
  CHECK(outcome.config->memory.job_share == 0.5);
  CHECK(outcome.config->control.port == limits::kControlPort);
}

TEST_CASE("a reload of a broken file changes nothing") {
  const auto outcome = reload_text("[log]\nlevel = debug\n[jobs]\nmax = none\n");
  CHECK_FALSE(outcome.config);
  CHECK(outcome.applied.empty());
  CHECK(outcome.errors.size() == 1);
}

TEST_CASE("a reload whose mixture with what stays is inconsistent changes nothing") {
  // The file is valid, but the heartbeat of the running box stays at 1000 ms until a restart.
  const auto outcome =
      reload_text("[control]\nheartbeat_interval_ms = 100\nworker_dead_after_ms = 500\n");
  CHECK_FALSE(outcome.config);
  CHECK(outcome.applied.empty());
  REQUIRE(outcome.errors.size() == 1);
  CHECK_THAT(outcome.errors[0], Catch::Contains("worker_dead_after_ms = 500"));
}

TEST_CASE("a reload of an unchanged file says nothing") {
  const auto outcome = reload_text("[log]\nlevel = info\n");
  REQUIRE(outcome.config);
  CHECK(outcome.applied.empty());
  CHECK(outcome.needs_restart.empty());
}

}  // namespace pbox::config
