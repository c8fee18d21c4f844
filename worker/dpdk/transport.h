// Carries a worker's packets through its own poll-mode device: a lane with a queue and a UDP port
// for each pipeline of the box. The one I/O thread polls all of them.
//
// Payloads are copied into the device's buffers, because a device may read a packet after its
// operation is done, when the caller's memory may have been freed.
#pragma once

#include <memory>
#include <vector>

#include "nic/dpdk/interface.h"
#include "nic/dpdk/port.h"
#include "worker/dpdk/port_settings.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// Starts DPDK once per process. Later calls change nothing: the first call's settings stay. May
// block.
Status start_dpdk(const DpdkPortSettings& settings);

// Threads may use it as Transport says. DPDK must have been started. A device has one transport at
// a time.
class DpdkTransport : public Transport {
 public:
  explicit DpdkTransport(DpdkPortSettings settings) : settings_(std::move(settings)) {}
  ~DpdkTransport() override;

  // Returns the MTU that the worker's port states (mtu=BYTES). open() fails if the device's MTU is
  // smaller.
  Result<uint32_t> path_mtu(const nic::Endpoint& box) override;
  // Opens the device and sends probes to every pipeline that owns a chunk until each has answered.
  // The probes also make the box's MAC address known. An error names the first pipeline that cannot
  // be reached.
  Status open(const SessionSpec& session, const Opening& opening) override;
  uint32_t receivable_bytes(uint32_t lane) const override;
  uint64_t rto_floor_ns() const override;
  int event_fd(uint32_t /*lane*/) const override { return -1; }
  size_t rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) override;
  size_t tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) override;

 private:
  struct Lane {
    nic::DpdkPort port;
    bool answered = false;
  };

  Status open_device(const SessionSpec& session, const std::vector<uint16_t>& udp_ports);
  void send_probes(const SessionSpec& session);
  bool listen(const SessionSpec& session, uint64_t until_ns);
  bool lost_connection() const;
  Error unanswered(const SessionSpec& session, uint64_t waited_ns) const;

  DpdkPortSettings settings_;
  std::unique_ptr<nic::DpdkInterface> interface_;
  std::vector<Lane> lanes_;  // they refer to the interface, so they are destroyed first
  uint32_t receivable_bytes_ = 0;
};

}  // namespace pbox::worker
