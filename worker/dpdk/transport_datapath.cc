#include "base/check.h"
#include "worker/dpdk/transport.h"

namespace pbox::worker {
namespace {

// Gives the polling thread DPDK's per-thread buffers, from its first burst to its end. If DPDK has
// no room for another thread, packets move all the same, but slower.
void join_dpdk() {
  thread_local const nic::DpdkThread thread;
}

}  // namespace

size_t DpdkTransport::rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) {
  PBOX_DCHECK(lane < lanes_.size());
  join_dpdk();
  return lanes_[lane].port.rx_burst(packets);
}

size_t DpdkTransport::tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) {
  PBOX_DCHECK(lane < lanes_.size());
  return lanes_[lane].port.tx_burst(packets);
}

}  // namespace pbox::worker
