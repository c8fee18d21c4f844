// How packets find the queue of their pipeline on a device: the best way that it offers.
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
  std::vector<std::string> reasons = {};
};

struct SteeringOptions {
  std::string driver;                    // "net_memif"
  uint32_t wanted_queues = 1;            // pipelines to feed
  uint32_t queue_count = 1;              // that the device runs
  std::vector<uint16_t> udp_ports = {};  // packets to udp_ports[i] belong to queue i
  bool ipv6 = false;
};

// The hash types to ask a device for: UDP by addresses and ports, of what it can do; 0: it cannot.
uint64_t rss_types(const rte_eth_dev_info& info, bool ipv6);

// Decides and sets up, in this order: one queue needs nothing; rte_flow rules on the UDP port; the
// NIC's RSS hash; a sender that chooses the queue; source ports by trial; software. On a started
// device. Control thread.
Steering steer(uint16_t port_id, const rte_eth_dev_info& info, const SteeringOptions& options);

}  // namespace pbox::nic
