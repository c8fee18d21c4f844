// What a group of devices and pipelines share: the addresses of one network, who is where on it,
// and, where no device steers, the rings over which packets are handed to their pipeline.
//
// A group is usually one NIC. Several devices that have the same addresses are served together:
// memif has a device per worker.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nic/dpdk/device.h"
#include "nic/ethernet/interface.h"
#include "nic/ethernet/neighbours.h"

struct rte_ring;

namespace pbox::nic {

struct DpdkInterfaceOptions {
  std::vector<std::string> devices;  // at least one
  Interface interface;               // validate()d; mtu is the one asked for
  std::vector<int> queue_nodes;      // one per pipeline: its NUMA node, or SOCKET_ID_ANY
  std::vector<uint16_t> udp_ports;   // one per pipeline, its own; best without gaps between them
  // Whether whoever sends here goes by affinity(), so that packets come in at their pipeline's
  // queue. If not, as on a worker, software hands over what a hash puts elsewhere.
  bool senders_steer = true;
};

// Made and destroyed by the control thread, before and after all ports on it.
class DpdkInterface {
 public:
  static Result<std::unique_ptr<DpdkInterface>> open(const DpdkInterfaceOptions& options);
  ~DpdkInterface();
  DpdkInterface(const DpdkInterface&) = delete;
  DpdkInterface& operator=(const DpdkInterface&) = delete;

  const std::vector<std::unique_ptr<DpdkDevice>>& devices() const { return devices_; }
  // Of all devices together: what serves the worst of them.
  QueueAffinity affinity() const { return affinity_; }
  std::shared_ptr<const RssTable> rss() const { return rss_; }
  // A pipeline's share of the smallest RX queue: devices may have fewer queues than pipelines.
  uint32_t receive_slots() const;
  uint32_t mtu() const { return interface_.mtu; }
  uint32_t pipeline_count() const { return pipeline_count_; }
  uint16_t udp_port(uint32_t pipeline) const { return udp_port_of_[pipeline]; }
  // From the lowest to the highest of them.
  UdpPorts udp_ports() const { return udp_ports_; }
  bool reads_in_place() const;

  // For ports: the rest is theirs.
  const Interface& interface() const { return interface_; }
  NeighbourTable& neighbours() { return neighbours_; }
  // Whose UDP port it is; pipeline_count() if nobody's.
  uint32_t pipeline_of(uint16_t udp_port) const;
  // Packets handed over to a pipeline; nullptr unless affinity() is kDispatch.
  rte_ring* handed_over(uint32_t pipeline) const {
    return handed_over_.empty() ? nullptr : handed_over_[pipeline].get();
  }
  // Ready-made packets for the pipeline that owns a device's only queues; as above.
  rte_ring* to_send(uint32_t pipeline) const {
    return to_send_.empty() ? nullptr : to_send_[pipeline].get();
  }

  // For every device; see DpdkDevice. Control thread.
  Status map_memory(const std::byte* memory, size_t bytes);
  void unmap_memory(const std::byte* memory, size_t bytes);

 private:
  struct RingDeleter {
    void operator()(rte_ring* ring) const;
  };
  using Ring = std::unique_ptr<rte_ring, RingDeleter>;

  DpdkInterface() = default;
  Status open_devices(const DpdkInterfaceOptions& options);
  Status make_rings(const DpdkInterfaceOptions& options);

  Interface interface_;
  std::vector<uint16_t> udp_port_of_;  // by pipeline
  UdpPorts udp_ports_;
  uint32_t pipeline_count_ = 0;
  QueueAffinity affinity_ = QueueAffinity::kUdpPort;
  std::shared_ptr<const RssTable> rss_;
  NeighbourTable neighbours_;
  std::vector<Ring> handed_over_;
  std::vector<Ring> to_send_;
  std::vector<std::unique_ptr<DpdkDevice>> devices_;  // first to go: their mbufs lie in the rings
};

}  // namespace pbox::nic
