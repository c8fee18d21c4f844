// A set of logical CPUs by operating-system index, and pinning of the calling thread to it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace pbox {

struct CpuSet {
  std::vector<int> cpus;  // operating-system indices, ascending
};

// CPUs the calling thread may run on (sched_getaffinity).
Result<CpuSet> current_affinity();

// Keeps the calling thread on these CPUs, at least one, and checks that the kernel agreed.
Status pin_current_thread(const CpuSet& cpus);

// Names the calling thread (at most 15 characters are kept), as ps and perf show it.
void name_current_thread(const std::string& name);

}  // namespace pbox
