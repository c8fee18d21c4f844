#include "nic/dpdk/steering.h"

#include <rte_errno.h>
#include <rte_flow.h>

#include <algorithm>
#include <array>

namespace pbox::nic {
namespace {

// Adds a rule that steers frames to one UDP port to one queue. Returns an empty text, or why the
// rule was refused.
std::string add_flow(uint16_t port_id, uint16_t udp_port, uint16_t queue, bool ipv6) {
  rte_flow_item_udp udp{};
  udp.hdr.dst_port = rte_cpu_to_be_16(udp_port);
  rte_flow_item_udp udp_mask{};
  udp_mask.hdr.dst_port = UINT16_MAX;
  std::array<rte_flow_item, 4> pattern{};
  pattern[0].type = RTE_FLOW_ITEM_TYPE_ETH;
  pattern[1].type = ipv6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4;
  pattern[2].type = RTE_FLOW_ITEM_TYPE_UDP;
  pattern[2].spec = &udp;
  pattern[2].mask = &udp_mask;
  pattern[3].type = RTE_FLOW_ITEM_TYPE_END;
  const rte_flow_action_queue target{.index = queue};
  std::array<rte_flow_action, 2> actions{};
  actions[0].type = RTE_FLOW_ACTION_TYPE_QUEUE;
  actions[0].conf = &target;
  actions[1].type = RTE_FLOW_ACTION_TYPE_END;
  rte_flow_attr attributes{};
  attributes.ingress = 1;
  rte_flow_error error{};
  if (rte_flow_validate(port_id, &attributes, pattern.data(), actions.data(), &error) == 0 &&
      rte_flow_create(port_id, &attributes, pattern.data(), actions.data(), &error) != nullptr) {
    return {};
  }
  return error.message != nullptr ? error.message : rte_strerror(rte_errno);
}

// Adds the rules of all queues, or none. Returns an empty text, or why a rule was refused.
std::string add_flows(uint16_t port_id, const SteeringOptions& options) {
  for (uint32_t queue = 0; queue < options.queue_count; ++queue) {
    const uint16_t udp_port = options.udp_ports[queue];
    std::string refusal = add_flow(port_id, udp_port, static_cast<uint16_t>(queue), false);
    if (refusal.empty() && options.ipv6) {
      refusal = add_flow(port_id, udp_port, static_cast<uint16_t>(queue), true);
    }
    if (refusal.empty()) continue;
    rte_flow_error ignored{};
    rte_flow_flush(port_id, &ignored);
    return refusal;
  }
  return {};
}

// Reads the RSS key and table that the NIC uses; nullptr if it does not report them.
std::shared_ptr<const RssTable> read_rss(uint16_t port_id, const rte_eth_dev_info& info,
                                         uint64_t wanted_types) {
  auto table = std::make_shared<RssTable>();
  table->key.resize(std::max<size_t>(info.hash_key_size, 40));
  rte_eth_rss_conf hash{};
  hash.rss_key = table->key.data();
  hash.rss_key_len = static_cast<uint8_t>(table->key.size());
  if (rte_eth_dev_rss_hash_conf_get(port_id, &hash) != 0) return nullptr;
  if ((hash.rss_hf & wanted_types) != wanted_types) return nullptr;
  if (std::all_of(table->key.begin(), table->key.end(), [](uint8_t byte) { return byte == 0; })) {
    return nullptr;
  }
  const size_t groups = (info.reta_size + RTE_ETH_RETA_GROUP_SIZE - 1) / RTE_ETH_RETA_GROUP_SIZE;
  std::vector<rte_eth_rss_reta_entry64> entries(groups);
  for (auto& entry : entries) entry.mask = UINT64_MAX;
  if (groups == 0 || rte_eth_dev_rss_reta_query(port_id, entries.data(), info.reta_size) != 0) {
    return nullptr;
  }
  for (size_t index = 0; index < info.reta_size; ++index) {
    table->queues.push_back(
        entries[index / RTE_ETH_RETA_GROUP_SIZE].reta[index % RTE_ETH_RETA_GROUP_SIZE]);
  }
  return table;
}

bool reaches_all(const RssTable& table, uint32_t queue_count) {
  for (uint32_t queue = 0; queue < queue_count; ++queue) {
    if (std::find(table.queues.begin(), table.queues.end(), queue) == table.queues.end()) {
      return false;
    }
  }
  return true;
}

}  // namespace

uint64_t rss_types(const rte_eth_dev_info& info, bool ipv6) {
  const uint64_t wanted =
      RTE_ETH_RSS_NONFRAG_IPV4_UDP | (ipv6 ? uint64_t{RTE_ETH_RSS_NONFRAG_IPV6_UDP} : 0);
  return (info.flow_type_rss_offloads & wanted) == wanted ? wanted : 0;
}

Steering steer(uint16_t port_id, const rte_eth_dev_info& info, const SteeringOptions& options) {
  if (options.wanted_queues == 1) {
    return {.affinity = QueueAffinity::kUdpPort,
            .reasons = {"there is one pipeline, so packets need no steering"}};
  }
  if (options.queue_count < options.wanted_queues) {
    return {.affinity = QueueAffinity::kDispatch,
            .reasons = {"the device runs " + std::to_string(options.queue_count) + " queues for " +
                        std::to_string(options.wanted_queues) +
                        " pipelines: software hands packets over to their pipelines, which costs "
                        "time on the receiving cores"}};
  }
  Steering steering;
  const std::string refusal = add_flows(port_id, options);
  if (refusal.empty()) {
    steering.reasons.emplace_back("rte_flow rules steer each UDP port to its queue");
    return steering;
  }
  steering.reasons.push_back("the device does not accept rte_flow rules for UDP ports: " + refusal);
  if (const uint64_t types = rss_types(info, options.ipv6); types != 0) {
    steering.rss = read_rss(port_id, info, types);
    if (steering.rss && reaches_all(*steering.rss, options.queue_count)) {
      steering.affinity = QueueAffinity::kRssHash;
      steering.reasons.emplace_back(
          "RSS: workers choose source ports that the NIC hashes to their pipeline's queue");
      return steering;
    }
    steering.rss = nullptr;
    steering.reasons.emplace_back(
        "no RSS: the device does not report its key and its table, or the table lacks a queue");
  }
  if (options.driver == "net_memif" || options.driver == "net_vhost" ||
      options.driver == "net_ring") {
    steering.affinity = QueueAffinity::kSenderQueue;
    steering.reasons.emplace_back(
        "the sender selects the queue: its TX queue is the box's RX queue");
  } else if (options.driver == "net_af_packet") {
    steering.affinity = QueueAffinity::kSourceTrial;
    steering.reasons.emplace_back(
        "the kernel selects the queue by an unpublished hash: workers find source ports by trial");
  } else {
    steering.affinity = QueueAffinity::kDispatch;
    steering.reasons.emplace_back(
        "the device cannot steer packets: software hands them over to their pipelines, which costs "
        "time on the receiving cores");
  }
  return steering;
}

}  // namespace pbox::nic
