// A barrier between ranks that were forked from one process.
#pragma once

#include <pthread.h>

#include <cstdint>

namespace pbox::perf {

// Returns a barrier for `count` processes, in memory that the calling process shares with its
// future children. It is never freed. Throws std::runtime_error if the memory cannot be mapped.
pthread_barrier_t* make_shared_barrier(uint32_t count);

}  // namespace pbox::perf
