// CPU lists as the kernel writes them: "2-5,8" <-> {2, 3, 4, 5, 8}; "" <-> {}. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace pbox::config {

inline constexpr int kCpuIndexMax = 1024;  // CPU_SETSIZE, the set that sched_setaffinity takes

// Returns the CPUs in ascending order; nullopt if the text is not a list, names a CPU twice, or
// names one that is not below kCpuIndexMax.
std::optional<std::vector<int>> read_cpu_list(const std::string& text);
std::string print_cpu_list(const std::vector<int>& cpus);  // ascending

}  // namespace pbox::config
