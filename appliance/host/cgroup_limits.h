// What the control groups of this process leave it: a container's share of the machine. Reads
// version 2 and the version 1 hierarchies beside it. Pure but for the files under `root`.
#pragma once

#include <cstdint>
#include <string>

namespace pbox::appliance {

struct CgroupLimits {
  uint64_t memory_bytes = 0;  // 0: none
  double cpus = 0;            // 0: none
};

// `self` is the text of /proc/self/cgroup. A group is bound by its ancestors too, so the least
// limit on the way up counts; a path that is not visible from inside a container falls back to what
// is mounted at `root`.
CgroupLimits read_cgroup_limits(const std::string& self, const std::string& root);

}  // namespace pbox::appliance
