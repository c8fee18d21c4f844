#include "perf/rack/processor.h"

#include <fstream>
#include <string>

namespace pbox::perf {

ProcessorTimes processor_times() {
  // "cpu user nice system idle iowait irq softirq steal ...", proc(5).
  constexpr int kIdle = 3;
  constexpr int kWaiting = 4;
  constexpr int kFieldCount = 8;  // later fields are part of user and nice
  std::ifstream file("/proc/stat");
  std::string label;
  file >> label;
  ProcessorTimes times;
  for (int field = 0; field < kFieldCount; ++field) {
    uint64_t ticks = 0;
    if (!(file >> ticks)) return {};
    times.all += ticks;
    if (field == kIdle || field == kWaiting) times.idle += ticks;
  }
  return times;
}

double idle_share(const ProcessorTimes& from, const ProcessorTimes& to) {
  if (to.all <= from.all) return 0;
  return static_cast<double>(to.idle - from.idle) / static_cast<double>(to.all - from.all);
}

}  // namespace pbox::perf
