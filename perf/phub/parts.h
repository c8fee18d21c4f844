// The experiments of scenario `phub`. Each prints a table and returns its figures.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "perf/scenario.h"

namespace pbox::perf {

struct PhubSettings {
  std::string model;
  uint32_t scale = 1;             // each tensor keeps one in `scale` of its elements on the rack
  std::vector<uint32_t> workers;  // worker machines of each placement
  uint32_t turns = 1;
  uint32_t iterations = 5;  // exchanges in a turn; the first is not counted
  double megabits = 1000;   // rate of the central box's cable; a worker's is this over the workers
  bool whole = false;       // all points instead of those that show the effect
};

// A flag for boxes: control connections may be late on a machine that other programs keep busy.
inline constexpr char kPatience[] = "--control.worker_dead_after_ms=60000";

// Flags of a box that is alone. It has one pipeline, because the machine has few cores.
inline std::vector<std::string> phub_box_flags() {
  return {"--pipeline.count=1", "--pipeline.pin=off", "--log.level=error", kPatience};
}

// Compares three places of the boxes, for each number of workers and each optimizer: one central
// box, a box on each of W more machines, and a box on each worker's machine.
nlohmann::json measure_placements(const PhubSettings& settings, std::ostream& report);

// Compares chunk sizes on the rack.
nlohmann::json measure_chunks(const PhubSettings& settings, std::ostream& report);

// Compares chunk sizes, tall and wide division, and stores that bypass the cache, with gradients in
// memory.
nlohmann::json measure_hot_loop(const PhubSettings& settings, std::ostream& report);

// Compares the rates of one to eight jobs that run at the same time through one box.
nlohmann::json measure_neighbours(const PhubSettings& settings, std::ostream& report);

}  // namespace pbox::perf
