// Training on boxes of which some are slow, simulated: an iteration lasts until the slowest box has
// served its bytes. For comparing maps of chunks to boxes; time is counted, not measured, so equal
// seeds give equal figures.
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
  bool whole_tensors;  // the static map deals tensors out whole, however large they are
};

// Without any; tensors dealt out whole; a link that others share; a CPU that others share; a
// straggler that is another box every 250 iterations.
std::vector<StragglerSetting> straggler_settings();

enum class MapStrategy {
  kStatic,        // as the setting says, else by bytes; never changed
  kRoundRobin,    // chunk by chunk
  kByteBalanced,  // by bytes, largest first
  kRebalanced,    // static at first, then as the rebalancer proposes
};

struct TrainingTime {
  double seconds = 0;        // time of all iterations, migrations included
  double stall_seconds = 0;  // time of migrations
  size_t proposals = 0;
};

// VGG-19 with 8 workers, boxes of 5 GB/s, each box's time in each iteration off by about 3 %.
TrainingTime train(const StragglerSetting& setting, MapStrategy strategy, uint64_t seed);

}  // namespace pbox::perf
