#include "appliance/pipelines/ports.h"

#include "appliance/pipelines/ports_rdma.h"

#ifdef PBOX_HAS_DPDK
#include <algorithm>

#include "config/dpdk_device.h"
#include "nic/dpdk/eal.h"
#endif

namespace pbox::pipelines {
namespace {

Result<nic::SocketPort> open_socket(const topology::PipelinePlan& pipeline,
                                    const config::Config& config) {
  const auto local = nic::parse_endpoint(pipeline.address, pipeline.udp_port);
  if (!local) return local.error();
  return nic::SocketPort::open(
      {.local = *local,
       .receive_buffer_bytes = config.data.receive_buffer_bytes,
       .send_buffer_bytes = config.data.send_buffer_bytes,
       .mtu = config.data.mtu,
       .segmentation_offload = config.data.gso != config::OnOffAuto::kOff});
}

}  // namespace

// Opens a socket, alone or with an RDMA device beside it.
Result<AnyPort> Ports::open_kernel_port(const topology::PipelinePlan& pipeline,
                                        const config::Config& config) {
  auto socket = open_socket(pipeline, config);
  if (!socket) return socket.error();
  if (config.data.port != config::PortKind::kRdma) return AnyPort(nic::ShmPort(std::move(*socket)));
  std::string said;
  auto port = open_rdma(std::move(*socket), pipeline, config, said);
  if (port) described_.push_back("pipeline " + std::to_string(pipeline.index) + ": " + said);
  return port;
}

#ifdef PBOX_HAS_DPDK

// The pipelines and devices that share one set of addresses.
struct Ports::Group {
  uint32_t first_pipeline = 0;
  std::unique_ptr<nic::DpdkInterface> interface;
};

namespace {

nic::EalOptions eal_options(const topology::Topology& topology, const config::Config& config) {
  nic::EalOptions options{.no_huge = config.dpdk.no_huge, .control_cpus = topology.control_cpus};
  for (const auto& device : config.dpdk.devices) {
    if (config::is_pci_device(device.device)) options.pci_addresses.push_back(device.device);
  }
  for (const topology::NodePlan& node : topology.nodes) {
    const auto planned = static_cast<uint32_t>(node.packet_memory_bytes >> 20);
    if (config.dpdk.memory_mib != 0 || config.dpdk.no_huge) {
      options.memory_mib.push_back(config.dpdk.memory_mib != 0 ? config.dpdk.memory_mib : planned);
    }
  }
  return options;
}

Result<nic::Interface> interface_of(const config::DpdkDevice& device, uint32_t mtu) {
  nic::Interface interface;
  for (const auto& text : device.addresses) {
    const auto address = nic::parse_interface_address(text);
    if (!address) return address.error();
    interface.addresses.push_back(*address);
  }
  for (const auto& text : device.gateways) {
    const auto gateway = nic::parse_endpoint(text, 0);
    if (!gateway) return gateway.error();
    (gateway->ipv6 ? interface.gateway6 : interface.gateway4) = nic::ip_address(*gateway);
  }
  interface.vlan = device.vlan;
  interface.mtu = mtu == 0 ? config::kDpdkMtuDefault : mtu;
  return interface;
}

}  // namespace

Result<std::unique_ptr<Ports>> Ports::start(const topology::Topology& topology,
                                            const config::Config& config) {
  std::unique_ptr<Ports> ports(new Ports());
  if (config.data.port != config::PortKind::kDpdk) return ports;
  if (const Status status = nic::start_eal(eal_options(topology, config)); !status) {
    return status.error();
  }
  for (size_t first = 0; first < topology.pipelines.size();) {
    const topology::PipelinePlan& leader = topology.pipelines[first];
    const auto interface = interface_of(config.dpdk.devices[leader.devices[0]], config.data.mtu);
    if (!interface) return interface.error();
    nic::DpdkInterfaceOptions options;
    options.interface = *interface;
    for (const uint32_t index : leader.devices) {
      options.devices.push_back(config.dpdk.devices[index].device);
    }
    size_t end = first;
    while (end < topology.pipelines.size() && topology.pipelines[end].devices == leader.devices) {
      options.udp_ports.push_back(topology.pipelines[end].udp_port);
      options.queue_nodes.push_back(topology.pipelines[end++].node);
    }
    auto opened = nic::DpdkInterface::open(options);
    if (!opened) return opened.error();
    ports->groups_.push_back({static_cast<uint32_t>(first), std::move(*opened)});
    first = end;
  }
  return ports;
}

Result<AnyPort> Ports::open(const topology::PipelinePlan& pipeline, const config::Config& config) {
  if (groups_.empty()) return open_kernel_port(pipeline, config);
  const auto group = std::find_if(groups_.rbegin(), groups_.rend(), [&](const Group& each) {
    return each.first_pipeline <= pipeline.index;
  });
  return AnyPort(nic::DpdkPort(*group->interface, pipeline.index - group->first_pipeline));
}

std::vector<std::string> Ports::describe() const {
  std::vector<std::string> lines = described_;
  for (const Group& group : groups_) {
    for (const auto& device : group.interface->devices()) {
      const nic::DeviceCapabilities& can = device->capabilities();
      lines.push_back(
          "device " + can.name + ": " + can.driver + ", MAC " + nic::to_string(can.mac) + ", MTU " +
          std::to_string(can.mtu) + ", " + std::to_string(can.queue_count) + " queues of " +
          std::to_string(can.receive_slots) + " packets, link " + (can.link_is_up ? "up" : "down") +
          ", packets find their queue by " + to_string(group.interface->affinity()));
      for (const auto& reason : can.reasons) lines.push_back("device " + can.name + ": " + reason);
    }
  }
  return lines;
}

std::vector<std::string> Ports::links_down() const {
  std::vector<std::string> names;
  for (const Group& group : groups_) {
    for (const auto& device : group.interface->devices()) {
      if (!device->link_is_up()) names.push_back(device->capabilities().name);
    }
  }
  return names;
}

uint64_t Ports::device_mbps() const {
  uint64_t mbps = 0;
  for (const Group& group : groups_) {
    for (const auto& device : group.interface->devices()) {
      mbps += device->link_mbps();
    }
  }
  return mbps;
}

#else

struct Ports::Group {};

Result<std::unique_ptr<Ports>> Ports::start(const topology::Topology& /*topology*/,
                                            const config::Config& config) {
  if (config.data.port == config::PortKind::kDpdk) {
    return Error{ErrorCode::kUnavailable,
                 "data.port = dpdk, but this pboxd was built without DPDK; install libdpdk-dev and "
                 "build it again, or set data.port = socket"};
  }
  return std::unique_ptr<Ports>(new Ports());
}

Result<AnyPort> Ports::open(const topology::PipelinePlan& pipeline, const config::Config& config) {
  return open_kernel_port(pipeline, config);
}

std::vector<std::string> Ports::describe() const {
  return described_;
}
std::vector<std::string> Ports::links_down() const {
  return {};
}
uint64_t Ports::device_mbps() const {
  return 0;
}

#endif

// Defined here, where Group is a complete type.
Ports::Ports() = default;
Ports::~Ports() = default;

}  // namespace pbox::pipelines
