#include <catch2/catch.hpp>

#include "perf/placement/stragglers.h"

namespace pbox::perf {

TEST_CASE("rebalancing is faster than a static map wherever a box is slow, and costs little else") {
  for (const StragglerSetting& setting : straggler_settings()) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      INFO(setting.name << ", seed " << seed);
      const double fixed = train(setting, MapStrategy::kStatic, seed).seconds;
      const TrainingTime moving = train(setting, MapStrategy::kRebalanced, seed);
      if (setting.name == "no straggler") {
        CHECK(fixed / moving.seconds >= 0.98);
      } else {
        CHECK(moving.proposals >= 1);
        CHECK(fixed / moving.seconds > 1);
      }
    }
  }
}

TEST_CASE("boxes that others slow down are slow under every map that never changes") {
  for (const StragglerSetting& setting : straggler_settings()) {
    if (setting.name == "no straggler" || setting.whole_tensors) continue;
    INFO(setting.name);
    const double moving = train(setting, MapStrategy::kRebalanced, 1).seconds;
    CHECK(train(setting, MapStrategy::kRoundRobin, 1).seconds > moving);
    CHECK(train(setting, MapStrategy::kByteBalanced, 1).seconds > moving);
  }
}

TEST_CASE("equal seeds train equally long") {
  const StragglerSetting setting = straggler_settings().back();
  const TrainingTime once = train(setting, MapStrategy::kRebalanced, 4);
  const TrainingTime again = train(setting, MapStrategy::kRebalanced, 4);
  CHECK(once.seconds == again.seconds);
  CHECK(once.proposals == again.proposals);
}

}  // namespace pbox::perf
