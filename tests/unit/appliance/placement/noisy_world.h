// A job on boxes whose times are noisy, driven by a real Rebalancer. Time is computed, so equal
// seeds give equal figures. It models what a cluster does to a decision: a move takes effect some
// rounds after it was proposed, costs a stall, and is not observed at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "appliance/placement/rebalancer.h"
#include "base/rng.h"

namespace pbox::placement {

enum class Noise {
  kNone,
  kWhite,       // each box, each round: 10 %
  kCorrelated,  // 10 %, and a box stays slow or fast for about ten rounds
  kBursty,      // now and then a box is three times as slow for one to six rounds
  kPeriodic,    // each box is slower and faster by 20 % in turn, over 24 rounds
  kHeavyTails,  // 5 %, and one round in thirty takes several times as long at some box
};
inline constexpr Noise kNoises[] = {Noise::kNone,   Noise::kWhite,    Noise::kCorrelated,
                                    Noise::kBursty, Noise::kPeriodic, Noise::kHeavyTails};

// The factors by which the boxes' times deviate, round by round.
class NoiseSource {
 public:
  NoiseSource(Noise kind, size_t boxes, uint64_t seed)
      : kind_(kind), rng_(seed), drift_(boxes), burst_left_(boxes) {
    for (double& drift : drift_) drift = deviate();
  }

  std::vector<double> next() {
    std::vector<double> factors(drift_.size(), 1);
    for (size_t box = 0; box < factors.size(); ++box) factors[box] = next(box);
    if (kind_ == Noise::kHeavyTails && rng_.below(30) == 0) {
      factors[rng_.below(factors.size())] *= 1 + 1 / std::sqrt(1 - rng_.unit());
    }
    ++round_;
    return factors;
  }

 private:
  double next(size_t box) {
    switch (kind_) {
      case Noise::kNone: return 1;
      case Noise::kWhite: return std::exp(0.1 * deviate());
      case Noise::kCorrelated:
        drift_[box] = 0.9 * drift_[box] + std::sqrt(1 - 0.81) * deviate();
        return std::exp(0.1 * drift_[box]);
      case Noise::kBursty:
        if (burst_left_[box] == 0 && rng_.below(100) == 0) burst_left_[box] = 1 + rng_.below(6);
        if (burst_left_[box] > 0) --burst_left_[box];
        return (burst_left_[box] > 0 ? 3 : 1) * std::exp(0.03 * deviate());
      case Noise::kPeriodic: {
        const double turns = static_cast<double>(round_) / 24 +
                             static_cast<double>(box) / static_cast<double>(drift_.size());
        return 1 + 0.2 * std::sin(2 * std::numbers::pi * turns) + 0.03 * deviate();
      }
      case Noise::kHeavyTails: return std::exp(0.05 * deviate());
    }
    return 1;
  }

  // Returns a nearly normal number with mean 0 and standard deviation 1: the sum of twelve uniform
  // numbers has variance 1.
  double deviate() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += rng_.unit();
    return sum;
  }

  Noise kind_;
  Rng rng_;
  std::vector<double> drift_;
  std::vector<uint64_t> burst_left_;  // by box: rounds
  uint64_t round_ = 0;
};

// Returns by which factor a box is slowed down in a round that begins at this time.
using Slowdown = double (*)(size_t box, double seconds);

struct NoisyJob {
  size_t boxes = 3;
  size_t parts = 24;
  double part_seconds = 0.010;     // time that a box needs per part
  double latency_seconds = 0.015;  // time that a box needs at least
  double compute_seconds = 0.020;  // time of an iteration that nothing overlaps
  double stall_rounds = 0.4;       // cost of a move
  size_t rounds_to_move = 2;       // from a proposal to its effect
  size_t rounds_unseen = 2;        // rounds after a move that are not observed
};

struct Played {
  std::vector<double> iteration_seconds;
  size_t exploits = 0, explorations = 0;

  double seconds(size_t from = 0) const {
    double sum = 0;
    for (size_t i = from; i < iteration_seconds.size(); ++i) sum += iteration_seconds[i];
    return sum;
  }
};

// Plays rounds of a job. parts[i] is the number of parts that box i has at first. Without a
// rebalancer they stay.
class NoisyWorld {
 public:
  NoisyWorld(NoisyJob job, Noise noise, Slowdown slowdown, uint64_t seed)
      : job_(job), noise_(noise), slowdown_(slowdown), seed_(seed) {}

  Played play_fixed(const std::vector<size_t>& parts, size_t rounds) const {
    NoiseSource noise(noise_, job_.boxes, seed_);
    Played played;
    double now = 0;
    for (size_t round = 0; round < rounds; ++round) {
      const auto busy = busy_seconds(parts, noise.next(), now);
      played.iteration_seconds.push_back(iteration(busy));
      now += iteration(busy);
    }
    return played;
  }

  Played play(const std::vector<size_t>& parts, size_t rounds, RebalancerOptions options) const {
    std::vector<Box> boxes;
    std::vector<BoxIndex> map;
    for (size_t box = 0; box < job_.boxes; ++box) {
      boxes.push_back(
          {.name = std::string("b").append(std::to_string(box)), .bytes_per_second = 1e6});
      map.insert(map.end(), parts[box], static_cast<BoxIndex>(box));
    }
    Rebalancer rebalancer(std::vector<uint32_t>(map.size(), 1000), map, boxes, options);
    NoiseSource noise(noise_, job_.boxes, seed_);
    Played played;
    double now = 0;
    size_t wait = 0;  // rounds until the proposal takes effect
    size_t unseen = 0;
    for (size_t round = 0; round < rounds; ++round) {
      const std::vector<size_t> owned = parts_of(rebalancer);
      const auto busy = busy_seconds(owned, noise.next(), now);
      double seconds = iteration(busy);
      if (wait > 0 && --wait == 0) {
        seconds *= 1 + job_.stall_rounds;
        rebalancer.carried_out(job_.stall_rounds * iteration(busy));
        unseen = job_.rounds_unseen;
      } else if (unseen > 0) {
        --unseen;
      } else if (wait == 0) {
        Observation seen;
        seen.iteration_seconds = seconds;
        for (size_t box = 0; box < job_.boxes; ++box) {
          seen.boxes.push_back(
              {1000.0 * static_cast<double>(owned[box]), owned[box] > 0 ? busy[box] : 0});
        }
        if (rebalancer.observe(seen)) wait = job_.rounds_to_move;
      }
      played.iteration_seconds.push_back(seconds);
      now += seconds;
    }
    played.exploits = rebalancer.decision_count(DecisionKind::kExploit);
    for (const auto kind :
         {DecisionKind::kExploreMove, DecisionKind::kScaleIn, DecisionKind::kScaleOut}) {
      played.explorations += rebalancer.decision_count(kind);
    }
    return played;
  }

 private:
  std::vector<size_t> parts_of(const Rebalancer& rebalancer) const {
    std::vector<size_t> parts(job_.boxes);
    for (const BoxIndex box : rebalancer.box_of_chunk()) ++parts[box];
    return parts;
  }

  std::vector<double> busy_seconds(const std::vector<size_t>& parts,
                                   const std::vector<double>& factors, double now) const {
    std::vector<double> busy(job_.boxes);
    for (size_t box = 0; box < job_.boxes; ++box) {
      if (parts[box] == 0) continue;
      busy[box] = (job_.latency_seconds + job_.part_seconds * static_cast<double>(parts[box])) *
                  slowdown_(box, now) * factors[box];
    }
    return busy;
  }

  double iteration(const std::vector<double>& busy) const {
    return job_.compute_seconds + *std::max_element(busy.begin(), busy.end());
  }

  NoisyJob job_;
  Noise noise_;
  Slowdown slowdown_;
  uint64_t seed_;
};

}  // namespace pbox::placement
