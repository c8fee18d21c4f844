#include "nic/dpdk/device.h"

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <set>
#include <thread>

#include "base/limits.h"
#include "nic/dpdk/device_find.h"
#include "nic/dpdk/eal.h"
#include "nic/dpdk/steering.h"
#include "nic/lock_hint.h"

namespace pbox::nic {
namespace {

constexpr uint16_t kDescriptors = 1024;        // per queue and direction, if the device allows it
constexpr uint32_t kSegmentDataBytes = 128;    // for all headers of a packet, or for its tag
constexpr uint32_t kSegmentsPerPacket = 3;     // header, payload, tag
constexpr uint32_t kPoolLentBuffers = 2048;    // for two rings, for caches and for a burst
constexpr uint32_t kPoolSlackBuffers = 1024;   // for current bursts and per-thread caches
constexpr uint64_t kExternalPageBytes = 4096;  // smallest page of job memory

// Returns whether the driver copies a packet before its send burst returns.
bool copies_packets(const std::string& driver) {
  static const std::set<std::string> drivers = {"net_memif", "net_af_packet", "net_null"};
  return drivers.count(driver) != 0;
}

// Returns whether packets stay in memory that this host's own processes share, so that no wire can
// damage them.
bool stays_in_memory(const std::string& driver) {
  static const std::set<std::string> drivers = {"net_memif", "net_ring", "net_null"};
  return drivers.count(driver) != 0;
}

// Returns why the device cannot read results in place; an empty text if it can.
std::string reason_against_external(const DeviceArguments& device, const rte_eth_dev_info& info) {
  if ((info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) == 0) {
    return "the device cannot send a packet from several buffers";
  }
  const uint16_t segments_max = info.tx_desc_lim.nb_seg_max;
  if (segments_max != 0 && segments_max < kSegmentsPerPacket) {
    return "the device sends a packet from at most " + std::to_string(segments_max) + " buffers";
  }
  if (device.driver == "net_memif" && device.value("zero-copy").value_or("no") == "yes") {
    return "memif with zero-copy=yes sends only from its own memory";
  }
  if (device.driver == "net_ring" || copies_packets(device.driver)) return {};
  if (device.is_virtual()) return device.driver + " sends only from DPDK's memory";
  if (!eal_uses_virtual_addresses()) {
    return "without an IOMMU the device needs physical addresses, which memory of jobs does not "
           "have; boot with intel_iommu=on iommu=pt";
  }
  return {};
}

// Some drivers state the MTU, others the frame length. Returns the smaller of the two MTUs.
uint32_t stated_mtu(const rte_eth_dev_info& info) {
  constexpr uint32_t kOverheadBytes = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
  const uint32_t by_frame =
      info.max_rx_pktlen > kOverheadBytes ? info.max_rx_pktlen - kOverheadBytes : 0;
  return std::min<uint32_t>(info.max_mtu, by_frame);
}

Error device_error(const std::string& device, const std::string& what, int result,
                   const std::string& remedy) {
  return {ErrorCode::kUnavailable, "device " + device + ": " + what + ": " + rte_strerror(-result) +
                                       take_eal_messages() + "; " + remedy};
}

// Runs `work` on DPDK's interrupt thread and waits for it. DPDK 22.11's memif closes a connection
// on the thread that closes the device, and also on the interrupt thread when the peer disconnects,
// and does not synchronise the two. Therefore both must happen on the interrupt thread.
void on_interrupt_thread(const std::function<void()>& work) {
  // DPDK's alarm orders the two threads already. The flags make that visible to the thread
  // sanitizer, which does not see into DPDK.
  struct Task {
    const std::function<void()>* work = nullptr;
    std::atomic<bool> is_handed_over{false};
    std::atomic<bool> is_done{false};
  };
  Task task;
  task.work = &work;
  task.is_handed_over.store(true, std::memory_order_release);
  const auto run = [](void* argument) {
    auto& given = *static_cast<Task*>(argument);
    while (!given.is_handed_over.load(std::memory_order_acquire)) {
    }
    (*given.work)();
    given.is_done.store(true, std::memory_order_release);  // the last access: then `task` ends
  };
  if (rte_eal_alarm_set(1, run, &task) != 0) return work();
  while (!task.is_done.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

Result<std::unique_ptr<DpdkDevice>> DpdkDevice::open(const DpdkDeviceOptions& options) {
  PBOX_CHECK(!options.queue_nodes.empty());
  std::unique_ptr<DpdkDevice> device(new DpdkDevice());
  for (const auto step : {&DpdkDevice::find, &DpdkDevice::configure, &DpdkDevice::set_up_queues,
                          &DpdkDevice::start}) {
    if (const Status status = (device.get()->*step)(options); !status) return status.error();
  }
  return device;
}

DpdkDevice::~DpdkDevice() {
  if (port_id_ == UINT16_MAX) return;
  rte_eth_dev_info info{};
  const bool is_known = rte_eth_dev_info_get(port_id_, &info) == 0;
  const auto close = [this] {
    if (is_started_) rte_eth_dev_stop(port_id_);
    rte_eth_dev_close(port_id_);
  };
  if (arguments_.driver == "net_memif") {
    on_interrupt_thread(close);
  } else {
    close();
  }
  // Remove the device from DPDK too, so that it can be opened again.
  if (is_known) rte_dev_remove(info.device);
}

Status DpdkDevice::find(const DpdkDeviceOptions& options) {
  arguments_ = parse_device(options.device);
  const auto wanted = static_cast<uint32_t>(options.queue_nodes.size());
  complete_arguments(arguments_, wanted, options.mtu);
  const auto found = find_device(arguments_);
  if (!found) return found.error();
  rte_eth_dev_owner owner{};
  std::snprintf(owner.name, sizeof(owner.name), "pbox");
  if (rte_eth_dev_owner_new(&owner.id) != 0 || rte_eth_dev_owner_set(*found, &owner) != 0) {
    take_eal_messages();  // drops DPDK's own wording of this error
    return Error{ErrorCode::kAlreadyExists,
                 "device " + arguments_.name +
                     " is open in this process already; close it there first, or use different "
                     "devices, such as net_memif0 and net_memif1"};
  }
  port_id_ = *found;
  return ok_status();
}

Status DpdkDevice::configure(const DpdkDeviceOptions& options) {
  rte_eth_dev_info info{};
  if (const int result = rte_eth_dev_info_get(port_id_, &info); result != 0) {
    return device_error(arguments_.name, "cannot be queried", result, "see the log");
  }
  DeviceCapabilities& can = capabilities_;
  can.name = arguments_.name;
  can.driver = info.driver_name;
  if (arguments_.is_virtual()) arguments_.driver = can.driver;  // regardless of the name given
  can.node = rte_eth_dev_socket_id(port_id_);
  const auto wanted = static_cast<uint32_t>(options.queue_nodes.size());
  can.queue_count = std::min({wanted, uint32_t{info.max_rx_queues}, uint32_t{info.max_tx_queues}});

  rte_eth_conf config{};
  can.mtu = options.mtu;
  const uint32_t mtu_max = stated_mtu(info);
  if (mtu_max >= options.mtu) {
    config.rxmode.mtu = options.mtu;
  } else if (arguments_.is_virtual() && arguments_.driver != "net_tap") {  // net_tap enforces it
    explain("the driver states an MTU of at most " + std::to_string(mtu_max) + "; " +
            std::to_string(options.mtu) +
            " is used anyway, because virtual devices do not enforce it");
  } else {
    config.rxmode.mtu = can.mtu = mtu_max;
    explain("the device's MTU is at most " + std::to_string(mtu_max) + ", less than the " +
            std::to_string(options.mtu) + " requested");
  }
  config.rxmode.offloads =
      info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  config.txmode.offloads =
      info.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_UDP_CKSUM);
  if (can.queue_count > 1 && rss_types(info, options.ipv6) != 0) {
    config.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    config.rx_adv_conf.rss_conf.rss_hf = rss_types(info, options.ipv6);
  }
  const auto queues = static_cast<uint16_t>(can.queue_count);
  if (const int result = rte_eth_dev_configure(port_id_, queues, queues, &config); result != 0) {
    return device_error(arguments_.name,
                        "cannot be configured with " + std::to_string(queues) + " queues", result,
                        "lower pipeline.count or data.mtu");
  }
  const std::string against = reason_against_external(arguments_, info);
  can.reads_in_place = against.empty();
  explain(can.reads_in_place ? "the device reads results in place, without a copy"
                             : "results are copied before they are sent: " + against);
  maps_memory_ = can.reads_in_place && !arguments_.is_virtual();
  can.fills_checksums = (config.txmode.offloads & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0;
  can.checks_checksums = (config.rxmode.offloads & RTE_ETH_RX_OFFLOAD_UDP_CKSUM) != 0;
  can.needs_no_checksum = stays_in_memory(arguments_.driver);
  if (can.needs_no_checksum) {
    explain("packets stay in this host's memory: IPv4 packets are sent without a UDP checksum");
  } else if (!can.fills_checksums) {
    explain("UDP checksums are computed by the core, not by the device");
  }
  return ok_status();
}

Status DpdkDevice::set_up_queues(const DpdkDeviceOptions& options) {
  uint16_t receive_slots = kDescriptors;
  uint16_t send_slots = kDescriptors;
  rte_eth_dev_adjust_nb_rx_tx_desc(port_id_, &receive_slots, &send_slots);
  capabilities_.receive_slots = receive_slots;
  const uint32_t held_slots = copies_packets(arguments_.driver) ? 0 : receive_slots + send_slots;
  // A pipeline without its own queue takes send buffers from the pool of another pipeline's queue.
  const auto wanted = static_cast<uint32_t>(options.queue_nodes.size());
  const uint32_t borrowers = (wanted - 1) / capabilities_.queue_count;
  const uint32_t lent = borrowers * kPoolLentBuffers;
  for (uint32_t queue = 0; queue < capabilities_.queue_count; ++queue) {
    const std::string name = std::to_string(port_id_) + "_" + std::to_string(queue);
    const int node = options.queue_nodes[queue];
    auto frames = make_frame_pool({.name = "frames_" + name,
                                   .count = held_slots + kPoolSlackBuffers + lent,
                                   .data_bytes = receive_buffer_bytes(arguments_, options.mtu),
                                   .node = node});
    if (!frames) return frames.error();
    const uint32_t pieces = kSegmentsPerPacket * (held_slots + kPoolSlackBuffers);
    auto segments = make_segment_pool({.name = "segments_" + name,
                                       .count = capabilities_.reads_in_place ? pieces : 1,
                                       .data_bytes = kSegmentDataBytes,
                                       .node = node});
    if (!segments) return segments.error();
    const auto id = static_cast<uint16_t>(queue);
    const auto socket = static_cast<unsigned>(node);
    int result =
        rte_eth_rx_queue_setup(port_id_, id, receive_slots, socket, nullptr, frames->get());
    if (result == 0) result = rte_eth_tx_queue_setup(port_id_, id, send_slots, socket, nullptr);
    if (result != 0) {
      return device_error(arguments_.name, "queue " + std::to_string(queue) + " cannot be set up",
                          result, "lower pipeline.count or data.mtu");
    }
    frame_pools_.push_back(std::move(*frames));
    segment_pools_.push_back(std::move(*segments));
  }
  return ok_status();
}

Status DpdkDevice::start(const DpdkDeviceOptions& options) {
  if (const int result = rte_eth_dev_start(port_id_); result != 0) {
    return device_error(arguments_.name, "does not start", result,
                        "check that no other process uses it and that its interface is up");
  }
  is_started_ = true;
  if (options.ipv6) rte_eth_allmulticast_enable(port_id_);  // for neighbour solicitations
  rte_ether_addr mac{};
  rte_eth_macaddr_get(port_id_, &mac);
  if (rte_is_zero_ether_addr(&mac)) rte_eth_random_addr(mac.addr_bytes);  // net_ring has no MAC
  // net_tap reports the MAC of the kernel's end. If we used it too, frames from the kernel would
  // look like our own.
  if (arguments_.driver == "net_tap") mac.addr_bytes[RTE_ETHER_ADDR_LEN - 1] ^= 1;
  std::copy(std::begin(mac.addr_bytes), std::end(mac.addr_bytes), capabilities_.mac.begin());
  rte_eth_dev_info info{};
  if (const int result = rte_eth_dev_info_get(port_id_, &info); result != 0) {
    return device_error(arguments_.name, "cannot be queried", result, "see the log");
  }
  auto steering = steer(port_id_, info,
                        {.driver = arguments_.driver,
                         .wanted_queues = static_cast<uint32_t>(options.queue_nodes.size()),
                         .queue_count = capabilities_.queue_count,
                         .udp_ports = options.udp_ports,
                         .ipv6 = options.ipv6});
  capabilities_.affinity = steering.affinity;
  capabilities_.rss = std::move(steering.rss);
  for (auto& reason : steering.reasons) explain(std::move(reason));
  capabilities_.link_is_up = link_is_up();
  if (!capabilities_.link_is_up)
    explain(
        "the link is down: no peer is connected yet, or the cable or the switch port is at fault");
  take_eal_messages();  // drops the messages of a successful start
  return ok_status();
}

bool DpdkDevice::link_is_up() const {
  if (arguments_.driver == "net_af_packet") {  // the driver reports every link as up
    return interface_is_running(arguments_.value("iface").value_or(""));
  }
  rte_eth_link link{};
  return rte_eth_link_get_nowait(port_id_, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

uint32_t DpdkDevice::link_mbps() const {
  rte_eth_link link{};
  const bool is_known =
      rte_eth_link_get_nowait(port_id_, &link) == 0 && link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN;
  return is_known ? link.link_speed : 0;
}

Status DpdkDevice::map_memory(const std::byte* memory, size_t bytes) {
  if (!maps_memory_) return ok_status();
  auto* address = const_cast<std::byte*>(memory);
  rte_eth_dev_info info{};
  if (const int result = rte_eth_dev_info_get(port_id_, &info); result != 0) {
    return device_error(arguments_.name, "cannot be queried", result, "see the log");
  }
  // Several devices may read the same memory, but it is registered with DPDK only once.
  if (rte_extmem_register(address, bytes, nullptr, 0, kExternalPageBytes) != 0 &&
      rte_errno != EEXIST) {
    return device_error(arguments_.name, "cannot use the job's memory", -rte_errno, "see the log");
  }
  if (rte_dev_dma_map(info.device, address, reinterpret_cast<rte_iova_t>(address), bytes) == 0 ||
      rte_errno == EEXIST) {
    return ok_status();
  }
  return device_error(arguments_.name, "cannot map the job's memory", -rte_errno, kLockHint);
}

void DpdkDevice::unmap_memory(const std::byte* memory, size_t bytes) {
  if (!maps_memory_) return;
  auto* address = const_cast<std::byte*>(memory);
  rte_eth_dev_info info{};
  if (rte_eth_dev_info_get(port_id_, &info) == 0) {
    rte_dev_dma_unmap(info.device, address, reinterpret_cast<rte_iova_t>(address), bytes);
  }  // otherwise the device was removed, and its mappings with it
  rte_extmem_unregister(address, bytes);
}

}  // namespace pbox::nic
