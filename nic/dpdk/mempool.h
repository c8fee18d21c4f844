// Pools of packet buffers for one queue, on the NUMA node of its pipeline.
#pragma once

#include <rte_mbuf.h>
#include <rte_mempool.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/result.h"

namespace pbox::nic {

struct MempoolDeleter {
  void operator()(rte_mempool* pool) const { rte_mempool_free(pool); }
};
using Mempool = std::unique_ptr<rte_mempool, MempoolDeleter>;

struct MempoolOptions {
  std::string name;         // unique in the process
  uint32_t count = 0;       // number of buffers
  uint32_t data_bytes = 0;  // bytes per buffer; with RTE_PKTMBUF_HEADROOM at most 65535
  int node = SOCKET_ID_ANY;
};

// Creates a pool for whole frames: received ones, and ones sent from a single buffer. Control
// thread.
Result<Mempool> make_frame_pool(const MempoolOptions& options);

// Creates a pool for segments of packets whose payload is sent in place. A segment holds its own
// data, or refers to external memory (attach_payload). Control thread.
Result<Mempool> make_segment_pool(const MempoolOptions& options);

// Makes an empty segment refer to `bytes` > 0 bytes at `payload`, which must stay valid until
// `in_flight` is decremented. The caller increments `in_flight` before it passes the segment to the
// device; the thread that frees the segment decrements it. Polling thread; no allocation.
void attach_payload(rte_mbuf* segment, const std::byte* payload, uint16_t bytes,
                    std::atomic<uint64_t>& in_flight);

}  // namespace pbox::nic
