#include "nic/dpdk/mempool.h"

#include <rte_errno.h>

#include <algorithm>

#include "base/check.h"

namespace pbox::nic {
namespace {

// The private area of a segment. It holds the callback by which DPDK reports that external memory
// is no longer read. Each segment has its own, so its reference count stays in the core's cache.
struct SegmentPrivate {
  rte_mbuf_ext_shared_info shared;
};
constexpr uint16_t kSegmentPrivateBytes = RTE_ALIGN(sizeof(SegmentPrivate), RTE_MBUF_PRIV_ALIGN);
constexpr uint32_t kCacheSize = 256;

SegmentPrivate& private_of(rte_mbuf* segment) {
  return *static_cast<SegmentPrivate*>(rte_mbuf_to_priv(segment));
}

void count_down(void* /*payload*/, void* in_flight) {
  static_cast<std::atomic<uint64_t>*>(in_flight)->fetch_sub(1, std::memory_order_release);
}

void set_up_segment(rte_mempool* /*pool*/, void* /*unused*/, void* object, unsigned /*index*/) {
  SegmentPrivate& area = private_of(static_cast<rte_mbuf*>(object));
  area.shared.free_cb = count_down;
}

Result<Mempool> make_pool(const MempoolOptions& options, uint16_t private_bytes) {
  const uint32_t room = RTE_PKTMBUF_HEADROOM + options.data_bytes;
  PBOX_CHECK(room <= UINT16_MAX);
  const uint32_t cache = std::min(kCacheSize, options.count / 2);
  Mempool pool(rte_pktmbuf_pool_create(options.name.c_str(), options.count, cache, private_bytes,
                                       static_cast<uint16_t>(room), options.node));
  if (pool) return pool;
  const std::string node =
      options.node < 0 ? "any node" : "NUMA node " + std::to_string(options.node);
  return Error{ErrorCode::kResourceExhausted,
               "no memory for " + std::to_string(options.count) + " packet buffers of " +
                   std::to_string(room) + " bytes on " + node + " (" + rte_strerror(rte_errno) +
                   "); reserve more hugepages there, raise dpdk.memory_mib, or lower "
                   "pipeline.count or data.mtu"};
}

}  // namespace

Result<Mempool> make_frame_pool(const MempoolOptions& options) {
  return make_pool(options, 0);
}

Result<Mempool> make_segment_pool(const MempoolOptions& options) {
  auto pool = make_pool(options, kSegmentPrivateBytes);
  if (pool) rte_mempool_obj_iter(pool->get(), set_up_segment, nullptr);
  return pool;
}

void attach_payload(rte_mbuf* segment, const std::byte* payload, uint16_t bytes,
                    std::atomic<uint64_t>& in_flight) {
  PBOX_DCHECK(payload != nullptr && bytes > 0);
  PBOX_DCHECK(segment->nb_segs == 1 && segment->next == nullptr);
  rte_mbuf_ext_shared_info& shared = private_of(segment).shared;
  PBOX_DCHECK(shared.free_cb == count_down);  // the segment comes from a segment pool
  shared.fcb_opaque = &in_flight;
  rte_mbuf_ext_refcnt_set(&shared, 1);
  void* memory = const_cast<std::byte*>(payload);  // devices only read it
  rte_pktmbuf_attach_extbuf(segment, memory, reinterpret_cast<rte_iova_t>(memory), bytes, &shared);
  segment->data_len = bytes;
}

}  // namespace pbox::nic
