// A simulation of training on boxes of which some are slow, for comparing maps of chunks to boxes.
// An iteration lasts until the slowest box has served its bytes. Time is computed, not measured, so
// equal seeds give equal figures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pbox::perf {

inline constexpr size_t kStragglerBoxes = 4;
inline constexpr size_t kStragglerIterations = 2000;

struct StragglerSetting {
  std::string name;
  // Returns the share of its declared rate that a box reaches in an iteration, in (0, 1].
  double (*speed)(size_t box, size_t iteration);
  bool whole_tensors;  // whether the static map places whole tensors, however large
};

// Returns five settings: no straggler; whole tensors per box; a link that other programs share; a
// CPU that other programs share; and a straggler that moves to another box every 250 iterations.
std::vector<StragglerSetting> straggler_settings();

enum class MapStrategy {
  kStatic,        // whole tensors if the setting says so, else by bytes; never changed
  kRoundRobin,    // one chunk per box in turn
  kByteBalanced,  // by bytes, largest first
  kRebalanced,    // static at first, then changed as the rebalancer proposes
};

struct TrainingTime {
  double seconds = 0;        // time of all iterations, migrations included
  double stall_seconds = 0;  // time of migrations
  size_t proposals = 0;
};

// Simulates VGG-19 with 8 workers on boxes of 5 GB/s. The time of each box in each iteration has a
// standard deviation of 3 %.
TrainingTime train(const StragglerSetting& setting, MapStrategy strategy, uint64_t seed);

}  // namespace pbox::perf
