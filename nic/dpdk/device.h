// One Ethernet device under DPDK: found, asked what it can do, configured, started. Set-up only;
// packets move in port_datapath.cc. Sources of the decisions: DPDK programmer's guide, "Poll Mode
// Driver" and "Generic flow API".
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
  std::vector<int>
      queue_nodes;      // one per queue wanted: NUMA node of its pipeline, or SOCKET_ID_ANY
  uint32_t mtu = 1500;  // of an IP packet
  std::vector<uint16_t> udp_ports = {};  // packets to udp_ports[i] belong to queue i
  bool ipv6 = false;                     // steer IPv6 too
};

// What a device turned out to be able to do. A value.
struct DeviceCapabilities {
  std::string name;    // "net_memif0", "0000:3b:00.0"
  std::string driver;  // "net_memif", "net_ixgbe"
  MacAddress mac{};
  int node = SOCKET_ID_ANY;
  uint32_t link_mbps = 0;  // 0: unknown
  bool link_is_up = false;
  uint32_t mtu = 0;            // granted; at most what was asked for
  uint32_t queue_count = 0;    // RX and TX queues that run; at most what was asked for
  uint32_t receive_slots = 0;  // packets that an RX queue holds before it drops
  QueueAffinity affinity = QueueAffinity::kUdpPort;
  std::shared_ptr<const RssTable> rss;  // kRssHash only
  bool reads_in_place = false;          // results are sent from the memory where they lie
  bool fills_checksums = false;         // the device computes UDP checksums
  bool needs_no_checksum = false;       // packets never leave the memory of this host
  bool checks_checksums = false;        // the device verifies what it receives
  std::vector<std::string> reasons;     // a sentence for each choice and each fallback
};

// Owns the device: stops and releases it when destroyed, after every port on it.
class DpdkDevice {
 public:
  // Finds, configures and starts the device; DPDK must run. Errors say which device, what is wrong
  // and what to do. Control thread.
  static Result<std::unique_ptr<DpdkDevice>> open(const DpdkDeviceOptions& options);
  ~DpdkDevice();
  DpdkDevice(const DpdkDevice&) = delete;
  DpdkDevice& operator=(const DpdkDevice&) = delete;

  const DeviceCapabilities& capabilities() const { return capabilities_; }
  uint16_t port_id() const { return port_id_; }
  // Buffers for what is sent from a queue, in [0, queue_count). Its pipeline's thread.
  rte_mempool* frame_pool(uint32_t queue) const { return frame_pools_[queue].get(); }
  rte_mempool* segment_pool(uint32_t queue) const { return segment_pools_[queue].get(); }

  // Lets the device read payloads there, and ends that. Any control thread; a no-op for devices
  // that copy.
  Status map_memory(const std::byte* memory, size_t bytes);
  void unmap_memory(const std::byte* memory, size_t bytes);

  bool link_is_up() const;  // now; control thread

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
