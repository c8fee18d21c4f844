// Kernel UDP sockets: one connected socket per pipeline of the box.
#pragma once

#include <vector>

#include "base/check.h"
#include "nic/socket/port.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

class SocketTransport : public Transport {
 public:
  ~SocketTransport() override;

  Result<uint32_t> path_mtu(const nic::Endpoint& box) override;
  Status open(const SessionSpec& session, const Opening& opening) override;
  uint32_t receivable_bytes(uint32_t lane) const override;
  uint64_t rto_floor_ns() const override;
  std::optional<Error> path_failure() override;
  std::vector<nic::Endpoint> local_endpoints() const override;
  int event_fd(uint32_t lane) const override { return lanes_[lane].port.event_fd(); }
  size_t rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) override {
    PBOX_DCHECK(lane < lanes_.size());
    return lanes_[lane].port.rx_burst(packets);
  }
  size_t tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) override {
    PBOX_DCHECK(lane < lanes_.size());
    return lanes_[lane].port.tx_burst(packets);
  }

 private:
  struct Lane {
    nic::SocketPort port;
  };

  Status probe_lanes(const SessionSpec& session, const Opening& opening);

  std::vector<Lane> lanes_;
  uint32_t fragment_bytes_ = limits::kFragmentBytesMax;
};

}  // namespace pbox::worker
