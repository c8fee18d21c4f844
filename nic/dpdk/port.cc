#include "nic/dpdk/port.h"

#include "base/numa_arena.h"
#include "nic/dpdk/port_state.h"

namespace pbox::nic {

DpdkPort::State::Link::Link(const DpdkDevice& device, uint32_t pipeline)
    : port_id(device.port_id()),
      queue(static_cast<uint16_t>(pipeline % device.capabilities().queue_count)),
      has_own_queue(pipeline < device.capabilities().queue_count),
      fills_checksums(device.capabilities().fills_checksums),
      needs_no_checksum(device.capabilities().needs_no_checksum),
      mac(device.capabilities().mac),
      frames{.pool = device.frame_pool(queue), .buffers = {}},
      segments{.pool = device.segment_pool(queue), .buffers = {}} {}

DpdkPort::State::State(DpdkInterface& interface_in, uint32_t pipeline_in)
    : interface(interface_in),
      pipeline(pipeline_in),
      udp_port(interface_in.udp_port(pipeline_in)),
      reads_in_place(interface_in.reads_in_place()),
      linearized_bytes(align_up(frame_bytes(interface_in.mtu()), kCacheLineBytes)),
      routes(kRoutes) {
  for (const auto& device : interface.devices()) {
    links.emplace_back(*device, pipeline);
    if (device->capabilities().driver == "net_memif" && !poller) poller.emplace();
  }
  // This memory is not touched, and so not resident, unless a device delivers packets in several
  // buffers.
  linearized =
      std::make_unique_for_overwrite<std::byte[]>(limits::kBurstPackets * linearized_bytes);
}

DpdkPort::State::~State() {
  rte_pktmbuf_free_bulk(held.data(), static_cast<unsigned>(held_count));
  for (Link& link : links) {
    for (Stock* stock : {&link.frames, &link.segments}) {
      rte_pktmbuf_free_bulk(stock->buffers.data(), static_cast<unsigned>(stock->count));
    }
    rte_pktmbuf_free_bulk(link.backlog.data(), static_cast<unsigned>(link.backlog_count));
  }
}

DpdkPort::DpdkPort(DpdkInterface& interface, uint32_t pipeline)
    : state_(std::make_unique<State>(interface, pipeline)) {
  PBOX_CHECK(pipeline < interface.pipeline_count());
}
DpdkPort::DpdkPort(DpdkPort&&) noexcept = default;
DpdkPort::~DpdkPort() = default;

size_t DpdkPort::rx_burst(std::span<RxPacket> packets) {
  if (state_->poller) state_->poller->enter();
  const size_t count = state_->rx_burst(packets);
  if (state_->poller) state_->poller->leave();
  return count;
}

size_t DpdkPort::tx_burst(std::span<const TxPacket> packets) {
  if (state_->poller) state_->poller->enter();
  const size_t count = state_->tx_burst(packets);
  if (state_->poller) state_->poller->leave();
  return count;
}

const PortCounters& DpdkPort::counters() const {
  return state_->counters;
}

Capabilities DpdkPort::capabilities() const {
  const DpdkInterface& interface = state_->interface;
  const uint64_t ring_bytes = uint64_t{interface.receive_slots()} * interface.mtu();
  return {.kind = "dpdk",
          .mtu = interface.mtu(),
          .receive_buffer_bytes = static_cast<uint32_t>(std::min<uint64_t>(ring_bytes, UINT32_MAX)),
          .receive_slots = interface.receive_slots(),
          .affinity = interface.affinity(),
          .queue = state_->pipeline,
          .rss = interface.rss()};
}

Status DpdkPort::add_memory(const std::byte* memory, size_t bytes) {
  if (!state_->reads_in_place) return ok_status();
  if (const Status mapped = state_->interface.map_memory(memory, bytes); !mapped) return mapped;
  state_->memory.add(memory, bytes);  // if all places are taken, payloads there are copied
  return ok_status();
}

bool DpdkPort::remove_memory(const std::byte* memory, size_t bytes) {
  if (!state_->reads_in_place) return true;
  if (!state_->memory.remove(memory)) return false;
  state_->interface.unmap_memory(memory, bytes);
  return true;
}

Endpoint DpdkPort::local() const {
  return endpoint_of(state_->interface.interface().addresses[0].address, state_->udp_port);
}

}  // namespace pbox::nic
