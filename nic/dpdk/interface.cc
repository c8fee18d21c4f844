#include "nic/dpdk/interface.h"

#include <rte_errno.h>
#include <rte_ring.h>

#include <algorithm>
#include <atomic>

namespace pbox::nic {
namespace {

constexpr uint32_t kRingSlots = 512;

// DPDK's rings need names that are unique in the process.
std::string ring_name(const char* kind) {
  static std::atomic<uint32_t> next{0};
  return std::string(kind) + "_" + std::to_string(next.fetch_add(1));
}

// Returns the affinity that all devices have; kDispatch if they differ, or if several devices each
// have an RSS table.
QueueAffinity common_affinity(const std::vector<std::unique_ptr<DpdkDevice>>& devices) {
  const QueueAffinity first = devices[0]->capabilities().affinity;
  const bool is_common = std::all_of(devices.begin(), devices.end(), [&](const auto& each) {
    return each->capabilities().affinity == first;
  });
  const bool is_one_table = devices.size() == 1 || first != QueueAffinity::kRssHash;
  return is_common && is_one_table ? first : QueueAffinity::kDispatch;
}

}  // namespace

void DpdkInterface::RingDeleter::operator()(rte_ring* ring) const {
  rte_ring_free(ring);
}

DpdkInterface::~DpdkInterface() = default;

Result<std::unique_ptr<DpdkInterface>> DpdkInterface::open(const DpdkInterfaceOptions& options) {
  PBOX_CHECK(!options.devices.empty() && !options.queue_nodes.empty());
  PBOX_CHECK(options.udp_ports.size() == options.queue_nodes.size());
  if (const Status status = validate(options.interface); !status) return status.error();
  std::unique_ptr<DpdkInterface> opened(new DpdkInterface());
  opened->interface_ = options.interface;
  opened->pipeline_count_ = static_cast<uint32_t>(options.queue_nodes.size());
  opened->udp_port_of_ = options.udp_ports;
  const auto [lowest, highest] =
      std::minmax_element(options.udp_ports.begin(), options.udp_ports.end());
  opened->udp_ports_ = {*lowest, static_cast<uint16_t>(*highest - *lowest + 1)};
  if (const Status status = opened->open_devices(options); !status) return status.error();
  if (opened->affinity_ == QueueAffinity::kDispatch) {
    if (const Status status = opened->make_rings(options); !status) return status.error();
  }
  return opened;
}

Status DpdkInterface::open_devices(const DpdkInterfaceOptions& options) {
  const bool ipv6 = std::any_of(interface_.addresses.begin(), interface_.addresses.end(),
                                [](const auto& own) { return own.address.ipv6; });
  for (const auto& name : options.devices) {
    auto device = DpdkDevice::open({.device = name,
                                    .queue_nodes = options.queue_nodes,
                                    .mtu = options.interface.mtu,
                                    .udp_ports = options.udp_ports,
                                    .ipv6 = ipv6});
    if (!device) return device.error();
    interface_.mtu = std::min(interface_.mtu, (*device)->capabilities().mtu);
    devices_.push_back(std::move(*device));
  }
  affinity_ = common_affinity(devices_);
  const bool spreads_by_hash =
      affinity_ == QueueAffinity::kRssHash || affinity_ == QueueAffinity::kSourceTrial;
  if (spreads_by_hash && !options.senders_steer) affinity_ = QueueAffinity::kDispatch;
  if (affinity_ == QueueAffinity::kRssHash) rss_ = devices_[0]->capabilities().rss;
  return ok_status();
}

Status DpdkInterface::make_rings(const DpdkInterfaceOptions& options) {
  for (const int node : options.queue_nodes) {
    // Many pipelines enqueue, and only the owner dequeues.
    Ring received(
        rte_ring_create(ring_name("handed_over").c_str(), kRingSlots, node, RING_F_SC_DEQ));
    Ring outgoing(rte_ring_create(ring_name("to_send").c_str(), kRingSlots, node, RING_F_SC_DEQ));
    if (!received || !outgoing) {
      return Error{ErrorCode::kResourceExhausted,
                   "no memory for the rings that pass packets between pipelines: " +
                       std::string(rte_strerror(rte_errno)) + "; raise dpdk.memory_mib"};
    }
    handed_over_.push_back(std::move(received));
    to_send_.push_back(std::move(outgoing));
  }
  return ok_status();
}

uint32_t DpdkInterface::pipeline_of(uint16_t udp_port) const {
  return static_cast<uint32_t>(std::find(udp_port_of_.begin(), udp_port_of_.end(), udp_port) -
                               udp_port_of_.begin());
}

uint32_t DpdkInterface::receive_slots() const {
  uint32_t slots = UINT32_MAX;
  for (const auto& device : devices_) {
    const DeviceCapabilities& can = device->capabilities();
    const uint32_t sharers = (pipeline_count_ + can.queue_count - 1) / can.queue_count;
    slots = std::min(slots, can.receive_slots / sharers);
  }
  return slots;
}

// With kDispatch payloads are copied: a ring between pipelines would move references to a job's
// memory between cores.
bool DpdkInterface::reads_in_place() const {
  return affinity_ != QueueAffinity::kDispatch &&
         std::all_of(devices_.begin(), devices_.end(),
                     [](const auto& each) { return each->capabilities().reads_in_place; });
}

Status DpdkInterface::map_memory(const std::byte* memory, size_t bytes) {
  for (const auto& device : devices_) {
    if (const Status status = device->map_memory(memory, bytes); !status) {
      unmap_memory(memory, bytes);
      return status.error();
    }
  }
  return ok_status();
}

void DpdkInterface::unmap_memory(const std::byte* memory, size_t bytes) {
  for (const auto& device : devices_) device->unmap_memory(memory, bytes);
}

}  // namespace pbox::nic
