// Sets of logical CPUs, and pinning of the calling thread to such a set.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace pbox {

struct CpuSet {
  std::vector<int> cpus;  // the kernel's CPU indices, in ascending order
};

// Returns the CPUs that the calling thread may run on (sched_getaffinity).
Result<CpuSet> current_affinity();

// Returns the CPUs that the process's main thread may run on. Any thread.
Result<CpuSet> main_thread_affinity();

// Restricts the calling thread to these CPUs and verifies that the kernel did so. `cpus` must hold
// at least one CPU. An error names the CPUs.
Status pin_current_thread(const CpuSet& cpus);

// Sets the name of the calling thread that ps and perf show. Only the first 15 bytes are used.
void name_current_thread(const std::string& name);

}  // namespace pbox
