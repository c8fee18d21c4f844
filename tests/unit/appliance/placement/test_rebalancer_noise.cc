// The rebalancer against noise: seeds times kinds of noise, with and without a straggler.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/placement/noisy_world.h"

namespace pbox::placement::rebalancer_noise_test {
namespace {

constexpr uint64_t kSeeds = 6;
const std::vector<size_t> kEqual = {8, 8, 8};

double calm(size_t, double) {
  return 1;
}
double quarter(size_t box, double) {
  return box == 1 ? 4 : 1;
}
double changing(size_t box, double seconds) {
  return box == (1 + static_cast<size_t>(seconds / 15)) % 3 ? 4 : 1;
}

// Returns the shortest time of a fixed assignment of 24 parts, under the same noise, and the time
// of its last third.
std::pair<double, double> best_fixed(const NoisyWorld& world, size_t rounds) {
  std::pair<double, double> best = {1e9, 0};
  for (size_t share = 0; share <= 8; ++share) {
    const size_t first = (24 - share) / 2;
    const Played played = world.play_fixed({first, share, 24 - share - first}, rounds);
    best = std::min(best, {played.seconds(), played.seconds(rounds * 2 / 3)});
  }
  return best;
}

}  // namespace

TEST_CASE("noise among equal boxes costs little, explorations less, and nothing oscillates") {
  for (const Noise noise : kNoises) {
    double fixed = 0;
    double moving = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      INFO("noise " << static_cast<int>(noise) << ", seed " << seed);
      const NoisyWorld world({}, noise, calm, seed);
      const Played played = world.play(kEqual, 1500, {.seed = seed});
      const double static_seconds = world.play_fixed(kEqual, 1500).seconds();
      CHECK(static_seconds / played.seconds() > 0.95);
      // White noise and heavy tails are never mistaken for a straggler.
      const bool is_persistent =
          noise == Noise::kCorrelated || noise == Noise::kBursty || noise == Noise::kPeriodic;
      if (!is_persistent) CHECK(played.exploits == 0);
      CHECK(played.exploits <= 1500 / 40);
      fixed += static_seconds;
      moving += played.seconds();
    }
    INFO("noise " << static_cast<int>(noise));
    CHECK(fixed / moving > 0.98);
  }
}

TEST_CASE("explorations cost less than 2 % of the time") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    INFO("seed " << seed);
    const NoisyWorld world({}, Noise::kWhite, calm, seed);
    const Played with = world.play(kEqual, 3000, {.seed = seed});
    const Played without = world.play(kEqual, 3000, {.seed = seed, .explore_share = 0});
    CHECK(with.explorations >= 1);
    CHECK(without.explorations == 0);
    CHECK(with.seconds() / without.seconds() < 1.02);
  }
}

TEST_CASE("a slow box or a bad assignment is left behind soon, under every kind of noise") {
  for (const Noise noise : kNoises) {
    for (const bool is_slow : {false, true}) {
      double whole = 0;
      double last_third = 0;
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        INFO("noise " << static_cast<int>(noise) << ", slow " << is_slow << ", seed " << seed);
        const NoisyWorld world({}, noise, is_slow ? quarter : calm, seed);
        const auto [best, best_last] = best_fixed(world, 150);
        const std::vector<size_t> first = is_slow ? kEqual : std::vector<size_t>{22, 1, 1};
        const Played played = world.play(first, 150, {.seed = seed});
        CHECK(best / played.seconds() > 0.7);
        whole += best / played.seconds() / kSeeds;
        last_third += best_last / played.seconds(100) / kSeeds;
      }
      INFO("noise " << static_cast<int>(noise) << ", slow " << is_slow);
      CHECK(whole > 0.8);
      CHECK(last_third > 0.9);
    }
  }
}

TEST_CASE("a straggler that changes every 15 s is followed") {
  for (const Noise noise : {Noise::kNone, Noise::kWhite, Noise::kHeavyTails, Noise::kBursty}) {
    double gain = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const NoisyWorld world({}, noise, changing, seed);
      const double fixed = world.play_fixed(kEqual, 600).seconds();
      gain += fixed / world.play(kEqual, 600, {.seed = seed}).seconds() / kSeeds;
    }
    INFO("noise " << static_cast<int>(noise));
    CHECK(gain > 1.5);
  }
}

}  // namespace pbox::placement::rebalancer_noise_test
