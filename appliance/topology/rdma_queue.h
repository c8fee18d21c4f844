// The size of a pipeline's RDMA queue. The topology counts the queue's memory, and the pipeline's
// port opens the queue. Pure; any thread.
#pragma once

#include <cstdint>

#include "config/config.h"
#ifdef PBOX_HAS_RDMA
#include "nic/rdma/queue.h"
#endif

namespace pbox::topology {

#ifdef PBOX_HAS_RDMA
// Options of one pipeline's queue that follow from the configuration; the device and the NUMA node
// are left for the caller to fill in.
nic::RdmaQueueOptions rdma_queue_options(const config::Config& config);
#endif

// Bytes of memory that one pipeline's RDMA queue locks, besides the memory of jobs; 0 where this
// pboxd was built without libibverbs.
uint64_t rdma_packet_bytes(const config::Config& config);

}  // namespace pbox::topology
