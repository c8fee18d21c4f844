// The CPU and memory limits that this process's control groups set: a container's share of the
// machine. Reads cgroup version 2 and any version 1 hierarchies beside it. Reads nothing but the
// files under `root`. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace pbox::host {

struct CgroupLimits {
  uint64_t memory_bytes = 0;  // memory limit; 0: none
  double cpus = 0;            // CPU time limit, in CPUs; 0: none
};

// Returns the limits that apply to the groups named in `self`, the text of /proc/self/cgroup.
// Ancestors bind a group too, so the smallest limit on the way up counts. A path that cannot be
// seen from inside a container is replaced by the group mounted at `root`.
CgroupLimits read_cgroup_limits(const std::string& self, const std::string& root);

}  // namespace pbox::host
