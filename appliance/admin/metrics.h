// The page /metrics: the metrics that metric_table.h declares, with the values of this box.
#pragma once

#include <cstdint>
#include <string>

#include "appliance/admin/source.h"

namespace pbox::admin {

// Resources that the daemon's process uses.
struct ProcessUsage {
  uint64_t resident_bytes = 0;
  double cpu_s = 0;  // user and system, over all threads
};

// Returns the usage of the calling process. A value that cannot be read is 0. Any thread.
ProcessUsage read_process_usage();

// Returns the whole page /metrics in text format 0.0.4. A family without series keeps its HELP and
// TYPE. A job that `source` no longer lists has no series. Control thread.
std::string metrics_text(const AdminSource& source, const ProcessUsage& usage);

}  // namespace pbox::admin
