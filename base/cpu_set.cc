#include "base/cpu_set.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>

namespace pbox {

namespace {

// Returns the CPUs that a thread may run on. `thread` is its kernel id, or 0 for the calling
// thread.
Result<CpuSet> affinity_of(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(thread, sizeof(set), &set) != 0) {
    return system_error("cannot read the CPU affinity (sched_getaffinity)", errno);
  }
  CpuSet result;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) result.cpus.push_back(cpu);
  }
  return result;
}

}  // namespace

Result<CpuSet> current_affinity() {
  return affinity_of(0);
}

// The id of the main thread equals that of the process.
Result<CpuSet> main_thread_affinity() {
  return affinity_of(getpid());
}

Status pin_current_thread(const CpuSet& cpus) {
  PBOX_CHECK(!cpus.cpus.empty());
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string names;
  for (const int cpu : cpus.cpus) {
    CPU_SET(static_cast<size_t>(cpu), &set);
    names += (names.empty() ? "cpu " : ", ") + std::to_string(cpu);
  }
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return system_error(
        "cannot pin a thread to " + names + "; check the daemon's cpuset and [pipeline] cores",
        errno);
  }
  const auto now = current_affinity();
  if (!now) return now.error();
  if (now->cpus != cpus.cpus) {
    return Error{ErrorCode::kSystem,
                 "the kernel accepted, but did not apply, the pinning of a thread to " + names};
  }
  return ok_status();
}

void name_current_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace pbox
