// The box as Prometheus text: what metric_table.h declares, of what the box says of itself.
#pragma once

#include <cstdint>
#include <string>

#include "appliance/admin/source.h"

namespace pbox::appliance {

// What the daemon itself takes of the machine.
struct ProcessUsage {
  uint64_t resident_bytes = 0;
  double cpu_s = 0;  // user and system, over all threads
};

// Reads the process's own numbers; a number that cannot be read is 0. Any thread.
ProcessUsage read_process_usage();

// The whole of /metrics in text format 0.0.4. A family without series keeps its HELP and TYPE; the
// series of a job that is gone from `source` are gone. Control thread.
std::string metrics_text(const AdminSource& source, const ProcessUsage& usage);

}  // namespace pbox::appliance
