// One Ethernet device under DPDK: finding it, querying its capabilities, configuring and starting
// it. This is set-up only; the data path is in receive_datapath.cc and transmit_datapath.cc.
// Sources: DPDK programmer's guide, "Poll Mode Driver" and "Generic flow API".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nic/dpdk/device_arguments.h"
#include "nic/dpdk/mempool.h"
#include "nic/ethernet/address.h"
#include "nic/port.h"
#include "nic/rss.h"

namespace pbox::nic {

struct DpdkDeviceOptions {
  std::string device;  // PCI address, or virtual device with its arguments
  // NUMA node of the pipeline of each wanted queue, or SOCKET_ID_ANY. At least one.
  std::vector<int> queue_nodes;
  uint32_t mtu = 1500;                   // largest IP packet in bytes
  std::vector<uint16_t> udp_ports = {};  // packets to udp_ports[i] belong to queue i
  bool ipv6 = false;                     // steer IPv6 packets too
};

// The capabilities of an open device. A value.
struct DeviceCapabilities {
  std::string name;    // "net_memif0", "0000:3b:00.0"
  std::string driver;  // "net_memif", "net_ixgbe"
  MacAddress mac{};
  int node = SOCKET_ID_ANY;
  bool link_is_up = false;
  uint32_t mtu = 0;            // bytes, at most the requested MTU
  uint32_t queue_count = 0;    // running RX queues and TX queues, at most the requested number
  uint32_t receive_slots = 0;  // packets that wait in an RX queue before it drops more
  QueueAffinity affinity = QueueAffinity::kUdpPort;
  std::shared_ptr<const RssTable> rss;  // kRssHash only
  bool reads_in_place = false;          // the device sends results without a copy
  bool fills_checksums = false;         // the device computes UDP checksums of sent packets
  bool needs_no_checksum = false;       // packets never leave the memory of this host
  bool checks_checksums = false;        // the device verifies checksums of received packets
  std::vector<std::string> reasons;     // one sentence for each choice and each fallback
};

// Owns a device. Its destructor stops and releases the device; all its ports must be destroyed
// before it.
class DpdkDevice {
 public:
  // Finds, configures and starts the device; DPDK must have been started. Errors name the device,
  // the problem and the remedy. Control thread.
  static Result<std::unique_ptr<DpdkDevice>> open(const DpdkDeviceOptions& options);
  ~DpdkDevice();
  DpdkDevice(const DpdkDevice&) = delete;
  DpdkDevice& operator=(const DpdkDevice&) = delete;

  const DeviceCapabilities& capabilities() const { return capabilities_; }
  uint16_t port_id() const { return port_id_; }
  // Return the buffer pools of queue `queue`, in [0, queue_count). Each pipeline that sends on the
  // queue takes buffers from them, on its own thread.
  rte_mempool* frame_pool(uint32_t queue) const { return frame_pools_[queue].get(); }
  rte_mempool* segment_pool(uint32_t queue) const { return segment_pools_[queue].get(); }

  // Allow the device to read payloads in this memory, and revoke that. They have no effect on a
  // device whose packets are copied. Any control thread.
  Status map_memory(const std::byte* memory, size_t bytes);
  void unmap_memory(const std::byte* memory, size_t bytes);

  // The current state. Control thread.
  bool link_is_up() const;
  uint32_t link_mbps() const;  // speed in Mbit/s; 0: unknown, perhaps because the link is down

 private:
  DpdkDevice() = default;
  Status find(const DpdkDeviceOptions& options);
  Status configure(const DpdkDeviceOptions& options);
  Status set_up_queues(const DpdkDeviceOptions& options);
  Status start(const DpdkDeviceOptions& options);
  void explain(std::string reason) { capabilities_.reasons.push_back(std::move(reason)); }

  uint16_t port_id_ = UINT16_MAX;
  bool is_started_ = false;
  bool maps_memory_ = false;
  DeviceArguments arguments_;
  DeviceCapabilities capabilities_;
  std::vector<Mempool> frame_pools_;
  std::vector<Mempool> segment_pools_;
};

}  // namespace pbox::nic
