// Packet buffers of one queue, on the NUMA node of its pipeline.
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
  uint32_t count = 0;       // buffers
  uint32_t data_bytes = 0;  // each holds, behind RTE_PKTMBUF_HEADROOM; at most 65535 with it
  int node = SOCKET_ID_ANY;
};

// Whole frames: what a device fills, and what is sent in one piece. Control thread.
Result<Mempool> make_frame_pool(const MempoolOptions& options);

// Pieces of packets that are sent from where they lie: each may hold data of its own, or stand for
// memory outside (attach_payload). Control thread.
Result<Mempool> make_segment_pool(const MempoolOptions& options);

// Turns a segment without data into one whose data are `bytes` bytes at `payload`. `in_flight` is
// counted down when the device is done with the segment, by whoever frees it; the caller counts it
// up before the device gets it. The polling thread; no allocation.
void attach_payload(rte_mbuf* segment, const std::byte* payload, uint16_t bytes,
                    std::atomic<uint64_t>& in_flight);

}  // namespace pbox::nic
