// Behind a DpdkPort: its tables, allocated once, and the two halves of the data path. Private to
// nic/dpdk.
#pragma once

#include <rte_mbuf.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "nic/dpdk/port.h"
#include "nic/ethernet/transmit.h"

namespace pbox::nic {

struct DpdkPort::State {
  State(DpdkInterface& interface_in, uint32_t pipeline_in);
  ~State();

  // receive_datapath.cc
  size_t rx_burst(std::span<RxPacket> packets);

  // transmit_datapath.cc
  size_t tx_burst(std::span<const TxPacket> packets);
  // A frame of our own, between the others. Frees it if there is no room.
  void send_frame(uint32_t link, rte_mbuf* mbuf);
  // What waits goes on: backlogs, and what pipelines without a queue of their own made.
  void send_waiting();

  // Where packets to one end point go. Kept while the neighbour table does not change.
  struct Route {
    Endpoint endpoint;
    uint64_t generation = UINT64_MAX;
    uint64_t valid_until_ns = 0;
    uint32_t link = 0;
    UdpHeader header;
  };
  // Made, and not yet taken by the device.
  struct Backlog {
    std::array<rte_mbuf*, 2 * limits::kBurstPackets> packets;
    size_t count = 0;
    bool empty() const { return count == 0; }
  };
  static constexpr size_t kRoutes = 256;  // a power of two

  DpdkInterface& interface;
  const uint32_t pipeline;
  const uint16_t udp_port;
  const bool reads_in_place;
  PortCounters counters;
  PayloadMemory memory;

  std::array<rte_mbuf*, limits::kBurstPackets> held;  // the burst that was handed out last
  size_t held_count = 0;
  size_t first_link = 0;                // asked first in the next burst
  uint32_t answers_left = 0;            // of this burst
  std::unique_ptr<std::byte[]> joined;  // packets of several buffers, copied together
  size_t joined_bytes = 0;              // of each
  size_t joined_count = 0;              // of the burst at hand

  std::vector<Backlog> backlogs;  // by link
  std::vector<Route> routes;

 private:
  size_t receive_from(uint32_t link, std::span<RxPacket> packets);
  size_t receive_handed_over(std::span<RxPacket> packets);
  size_t take_all(std::span<rte_mbuf*> mbufs, uint32_t link, std::span<RxPacket> packets);
  bool take(rte_mbuf* mbuf, uint32_t link, RxPacket& packet);
  std::span<const std::byte> frame_of(rte_mbuf* mbuf);
  void answer(std::span<const std::byte> frame, uint32_t link);
  void hand_over(rte_mbuf* mbuf, uint16_t to_port);

  const Route* route_to(const Endpoint& endpoint, uint64_t now_ns);
  bool resolve(Route& route, const Endpoint& endpoint, uint64_t now_ns);
  void solicit(const IpAddress& next_hop, const NeighbourLookup& found);
  void solicit_on(uint32_t link, const IpAddress& next_hop, const std::optional<MacAddress>& mac);
  rte_mbuf* make_packet(const Route& route, const TxPacket& packet);
  rte_mbuf* make_copied(const Route& route, const TxPacket& packet);
  rte_mbuf* make_external(const Route& route, const TxPacket& packet,
                          PayloadMemory::Region& region);
  void set_checksum(const Route& route, rte_mbuf* mbuf, const TxPacket& packet);
  bool enqueue(uint32_t link, rte_mbuf* mbuf);
  void flush(uint32_t link);

  DpdkDevice& device(uint32_t link) const { return *interface.devices()[link]; }
  // The queue that this pipeline sends on: its own where there are enough.
  uint32_t queue_of(const DpdkDevice& on) const { return pipeline % on.capabilities().queue_count; }
  bool has_own_queue(const DpdkDevice& on) const {
    return pipeline < on.capabilities().queue_count;
  }
};

}  // namespace pbox::nic
