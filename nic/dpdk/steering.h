// Chooses how packets reach the queue of their pipeline: by the best method that the device
// supports.
#pragma once

#include <rte_ethdev.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nic/port.h"
#include "nic/rss.h"

namespace pbox::nic {

struct Steering {
  QueueAffinity affinity = QueueAffinity::kUdpPort;
  std::shared_ptr<const RssTable> rss = nullptr;  // kRssHash only
  std::vector<std::string> reasons = {};          // one sentence for the choice and each fallback
};

struct SteeringOptions {
  std::string driver;                    // "net_memif"
  uint32_t wanted_queues = 1;            // pipelines to feed
  uint32_t queue_count = 1;              // queues that the device runs
  std::vector<uint16_t> udp_ports = {};  // packets to udp_ports[i] belong to queue i
  bool ipv6 = false;
};

// Returns the RSS hash types to request, which hash UDP by addresses and ports; 0 if the device
// lacks them.
uint64_t rss_types(const rte_eth_dev_info& info, bool ipv6);

// Sets up the first of these that works: nothing, if there is one pipeline; rte_flow rules on the
// UDP port; the NIC's RSS hash; a sender that selects the queue; source ports found by trial;
// software. If the device has fewer queues than pipelines, only software works. The device must be
// started. Control thread.
Steering steer(uint16_t port_id, const rte_eth_dev_info& info, const SteeringOptions& options);

}  // namespace pbox::nic
