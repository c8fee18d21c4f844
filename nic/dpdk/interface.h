// A group of devices and the pipelines that use them. They share the addresses of one network, the
// neighbour table, and, where no device steers packets, the rings that hand packets to their
// pipeline.
//
// A group usually has one device, a NIC. Several devices form a group if they have the same
// addresses: memif has one device for each worker.
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
  Interface interface;               // must pass validate(); mtu is the requested MTU
  std::vector<int> queue_nodes;      // NUMA node of each pipeline, or SOCKET_ID_ANY
  std::vector<uint16_t> udp_ports;   // UDP port of each pipeline, distinct, preferably without gaps
  // True if senders follow affinity(), so that packets arrive at the queue of their pipeline. If
  // not, as on a worker, packets that a hash puts into another queue are handed over by software.
  bool senders_steer = true;
};

// Owns the devices and rings of a group. Control thread, except where noted. It must outlive all
// its ports.
class DpdkInterface {
 public:
  static Result<std::unique_ptr<DpdkInterface>> open(const DpdkInterfaceOptions& options);
  ~DpdkInterface();
  DpdkInterface(const DpdkInterface&) = delete;
  DpdkInterface& operator=(const DpdkInterface&) = delete;

  const std::vector<std::unique_ptr<DpdkDevice>>& devices() const { return devices_; }
  // Returns the affinity of the devices; kDispatch if they differ, if several devices each have an
  // RSS table, or if a hash selects the queue and senders do not steer.
  QueueAffinity affinity() const { return affinity_; }
  std::shared_ptr<const RssTable> rss() const { return rss_; }
  // Returns how many packets of the smallest RX queue one pipeline may fill. Pipelines share queues
  // if a device has fewer queues than there are pipelines.
  uint32_t receive_slots() const;
  uint32_t mtu() const { return interface_.mtu; }
  uint32_t pipeline_count() const { return pipeline_count_; }
  uint16_t udp_port(uint32_t pipeline) const { return udp_port_of_[pipeline]; }
  // Returns the range from the lowest to the highest port of all pipelines.
  UdpPorts udp_ports() const { return udp_ports_; }
  bool reads_in_place() const;

  // The next five are for ports; any pipeline's thread.
  const Interface& interface() const { return interface_; }
  NeighbourTable& neighbours() { return neighbours_; }
  // Returns the pipeline that owns this UDP port; pipeline_count() if none does.
  uint32_t pipeline_of(uint16_t udp_port) const;
  // Returns the ring of received packets for a pipeline; nullptr unless affinity() is kDispatch.
  rte_ring* handed_over(uint32_t pipeline) const {
    return handed_over_.empty() ? nullptr : handed_over_[pipeline].get();
  }
  // Returns the ring of complete packets that a pipeline must send for pipelines without a queue;
  // nullptr unless affinity() is kDispatch.
  rte_ring* to_send(uint32_t pipeline) const {
    return to_send_.empty() ? nullptr : to_send_[pipeline].get();
  }

  // Apply DpdkDevice's functions of the same name to all devices. If one device cannot map the
  // memory, none keeps it mapped. Control thread.
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
  std::vector<std::unique_ptr<DpdkDevice>> devices_;  // last, so destroyed before the rings
};

}  // namespace pbox::nic
