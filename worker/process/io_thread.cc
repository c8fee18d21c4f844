#include "worker/process/io_thread.h"

#include <pthread.h>

#include "base/cpu_set.h"

namespace pbox::worker {

sigset_t foreign_signals() {
  sigset_t set;
  sigfillset(&set);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
    sigdelset(&set, own);
  }
  return set;
}

void become_library_thread(const char* name) {
  name_current_thread(name);
  const sigset_t foreign = foreign_signals();
  pthread_sigmask(SIG_BLOCK, &foreign, nullptr);
  // If the kernel refuses, the thread keeps its current CPUs.
  if (const auto cpus = main_thread_affinity()) static_cast<void>(pin_current_thread(*cpus));
}

}  // namespace pbox::worker
