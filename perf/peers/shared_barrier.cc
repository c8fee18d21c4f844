#include "perf/peers/shared_barrier.h"

#include <sys/mman.h>

#include <stdexcept>

namespace pbox::perf {

pthread_barrier_t* make_shared_barrier(uint32_t count) {
  void* shared = mmap(nullptr, sizeof(pthread_barrier_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error("cannot map shared memory");
  auto* barrier = static_cast<pthread_barrier_t*>(shared);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(barrier, &attributes, count);
  return barrier;
}

}  // namespace pbox::perf
