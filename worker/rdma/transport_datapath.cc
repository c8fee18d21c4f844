#include "base/check.h"
#include "worker/rdma/transport.h"

namespace pbox::worker {

size_t RdmaTransport::rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) {
  PBOX_DCHECK(lane < lanes_.size());
  const size_t count = lanes_[lane].queue->rx_burst(packets);
  PBOX_DCHECK(count <= packets.size());
  if (count > 0) lanes_[lane].breaks = 0;
  return count;
}

size_t RdmaTransport::tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) {
  PBOX_DCHECK(lane < lanes_.size());
  PBOX_DCHECK(lanes_[lane].queue != nullptr);
  return lanes_[lane].queue->tx_burst(packets, &lanes_[lane].prepared.endpoint);
}

}  // namespace pbox::worker
