#include "base/cpu_set.h"

#include <pthread.h>
#include <sched.h>

#include <cerrno>

namespace pbox {

Result<CpuSet> current_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return system_error("sched_getaffinity", errno);
  CpuSet result;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) result.cpus.push_back(cpu);
  }
  return result;
}

Status pin_current_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return system_error("cannot pin a thread to cpu " + std::to_string(cpu) +
                            "; check the daemon's cpuset and [pipeline] cores",
                        errno);
  }
  const auto now = current_affinity();
  if (!now) return now.error();
  if (now->cpus.size() != 1 || now->cpus[0] != cpu) {
    return Error{ErrorCode::kSystem,
                 "the kernel did not pin the thread to cpu " + std::to_string(cpu)};
  }
  return ok_status();
}

void name_current_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace pbox
