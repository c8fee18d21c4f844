// Boxes of given speed under a rebalancer: an iteration lasts until the slowest box has finished.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "appliance/placement/rebalancer.h"
#include "base/rng.h"

namespace pbox::placement {

struct World {
  World(size_t box_count, size_t chunk_count, RebalancerOptions options, double noise_part = 0.03)
      : chunk_bytes(chunk_count, 1000),
        speeds(box_count, 1e6),
        noise(noise_part),
        rebalancer(chunk_bytes, dealt(box_count, chunk_count), boxes(box_count), options) {}

  static std::vector<BoxIndex> dealt(size_t box_count, size_t chunk_count) {
    std::vector<BoxIndex> map(chunk_count);
    for (size_t chunk = 0; chunk < chunk_count; ++chunk) {
      map[chunk] = static_cast<BoxIndex>(chunk % box_count);
    }
    return map;
  }

  static Box box(size_t index) {
    return {.name = std::string("b").append(std::to_string(index)), .bytes_per_second = 1e6};
  }

  static std::vector<Box> boxes(size_t count) {
    std::vector<Box> made;
    for (size_t index = 0; index < count; ++index) made.push_back(box(index));
    return made;
  }

  std::vector<double> bytes() const {
    return bytes_by_box(chunk_bytes, rebalancer.box_of_chunk(), speeds.size());
  }

  Observation observation() {
    Observation seen;
    const std::vector<double> loads = bytes();
    for (size_t box = 0; box < speeds.size(); ++box) {
      const double busy = loads[box] / speeds[box] * (1 + noise * (2 * rng.unit() - 1));
      seen.boxes.push_back({loads[box], busy});
      seen.iteration_seconds = std::max(seen.iteration_seconds, busy);
    }
    return seen;
  }

  // Carries out each proposal at once, at its expected cost, and returns all proposals.
  std::vector<Proposal> run(int iterations) {
    std::vector<Proposal> proposals;
    for (int i = 0; i < iterations; ++i) {
      if (const auto proposal = rebalancer.observe(observation())) {
        proposals.push_back(*proposal);
        rebalancer.carried_out(proposal->stall_seconds);
      }
    }
    return proposals;
  }

  std::vector<uint32_t> chunk_bytes;
  std::vector<double> speeds;  // bytes per second
  double noise;                // largest relative deviation of a box's time, in both directions
  Rng rng{99};
  Rebalancer rebalancer;
};

}  // namespace pbox::placement
