// How busy the whole machine was: whether its cores, and not the cables of a rack, set the pace.
#pragma once

#include <cstdint>

namespace pbox::perf {

struct ProcessorTimes {
  uint64_t idle = 0;  // in ticks, all cores
  uint64_t all = 0;
};

ProcessorTimes processor_times();  // zeros where /proc/stat cannot be read

// In [0, 1]; 0 if no tick has passed.
double idle_share(const ProcessorTimes& from, const ProcessorTimes& to);

}  // namespace pbox::perf
