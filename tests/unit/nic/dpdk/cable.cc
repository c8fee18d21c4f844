#include "tests/unit/nic/dpdk/cable.h"

#include <rte_eth_ring.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "nic/dpdk/eal.h"

namespace pbox::test {

void start_dpdk() {
  const Status status = nic::start_eal({.no_huge = true, .memory_mib = {512}});
  if (!status) FAIL(status.error().message);
}

Cable::Cable(uint32_t queue_count, uint32_t slots) {
  start_dpdk();
  static int next = 0;
  name_ = std::to_string(next++);
  for (uint32_t queue = 0; queue < queue_count; ++queue) {
    const std::string suffix = name_ + "_" + std::to_string(queue);
    to_right_.push_back(rte_ring_create(("to_right" + suffix).c_str(), slots, SOCKET_ID_ANY,
                                        RING_F_SP_ENQ | RING_F_SC_DEQ));
    to_left_.push_back(rte_ring_create(("to_left" + suffix).c_str(), slots, SOCKET_ID_ANY,
                                       RING_F_SP_ENQ | RING_F_SC_DEQ));
    REQUIRE(to_right_.back() != nullptr);
    REQUIRE(to_left_.back() != nullptr);
  }
  REQUIRE(rte_eth_from_rings((name_ + "l").c_str(), to_left_.data(), queue_count, to_right_.data(),
                             queue_count, 0) >= 0);
  REQUIRE(rte_eth_from_rings((name_ + "r").c_str(), to_right_.data(), queue_count, to_left_.data(),
                             queue_count, 0) >= 0);
}

Cable::~Cable() {
  for (rte_ring* ring : to_right_) rte_ring_free(ring);
  for (rte_ring* ring : to_left_) rte_ring_free(ring);
}

nic::DpdkInterfaceOptions options_for(const std::string& device, const std::string& addresses,
                                      uint32_t pipelines) {
  nic::DpdkInterfaceOptions options;
  options.devices = {device};
  std::istringstream words(addresses);
  for (std::string word; words >> word;) {
    options.interface.addresses.push_back(*nic::parse_interface_address(word));
  }
  options.interface.mtu = 9000;
  options.queue_nodes.assign(pipelines, SOCKET_ID_ANY);
  for (uint32_t index = 0; index < pipelines; ++index) {
    options.udp_ports.push_back(static_cast<uint16_t>(limits::kDataPortFirst + index));
  }
  return options;
}

std::unique_ptr<nic::DpdkInterface> open_interface(const nic::DpdkInterfaceOptions& options) {
  auto interface = nic::DpdkInterface::open(options);
  if (!interface) FAIL(interface.error().message);
  return std::move(*interface);
}

}  // namespace pbox::test
