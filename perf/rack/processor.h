// Measures how busy the whole machine was. A busy machine means that its cores, not the cables of
// the rack, limited the speed.
#pragma once

#include <cstdint>

namespace pbox::perf {

struct ProcessorTimes {
  uint64_t idle = 0;  // in ticks, all cores
  uint64_t all = 0;
};

ProcessorTimes processor_times();  // zeros if /proc/stat cannot be read

// Returns the idle share in [0, 1]; 0 if no tick has passed.
double idle_share(const ProcessorTimes& from, const ProcessorTimes& to);

}  // namespace pbox::perf
