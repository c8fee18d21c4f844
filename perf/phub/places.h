// The places where the boxes of a job can be.
#pragma once

#include <cstdint>

namespace pbox::perf {

// kCentral: one box, whose cable has the rate of all workers' cables together. kSharded: a box on
// each of as many machines as there are workers, with a worker's cable each. kColocated: a box on
// each worker's machine, behind the worker's own cable.
enum class BoxPlace { kCentral, kSharded, kColocated };
inline constexpr BoxPlace kBoxPlaces[] = {BoxPlace::kCentral, BoxPlace::kSharded,
                                          BoxPlace::kColocated};

constexpr const char* to_string(BoxPlace place) {
  switch (place) {
    case BoxPlace::kCentral: return "central";
    case BoxPlace::kSharded: return "sharded";
    case BoxPlace::kColocated: return "colocated";
  }
  return "unknown";
}

// Returns the least bytes that a worker's cable carries in each direction during one exchange, over
// the bytes of the model. A colocated box gets its own worker's share without a cable; all other
// shares cross the cable of their worker and that of their box.
constexpr double cable_load(BoxPlace place, uint32_t workers) {
  return place == BoxPlace::kColocated ? 2.0 * (workers - 1) / workers : 1.0;
}

}  // namespace pbox::perf
