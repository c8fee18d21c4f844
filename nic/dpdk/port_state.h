// Behind a DpdkPort: its tables, allocated once, and the two halves of the data path. Private to
// nic/dpdk.
#pragma once

#include <rte_mbuf.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nic/dpdk/grace_period.h"
#include "nic/dpdk/port.h"
#include "nic/ethernet/transmit.h"

namespace pbox::nic {

struct DpdkPort::State {
  struct Link;

  State(DpdkInterface& interface_in, uint32_t pipeline_in);
  ~State();

  // receive_datapath.cc
  size_t rx_burst(std::span<RxPacket> packets);

  // transmit_datapath.cc
  size_t tx_burst(std::span<const TxPacket> packets);
  // A frame of our own, between the others. Frees it if there is no room.
  void send_frame(Link& link, rte_mbuf* mbuf);
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
  // Buffers taken out of a pool many at a time, so that they are fetched together.
  struct Stock {
    rte_mempool* pool = nullptr;
    std::array<rte_mbuf*, 48> buffers;
    size_t count = 0;  // that are left, at the front

    // `wanted` of them, at most 3 (which divides the array's size); nullptr: devices hold all
    // buffers.
    rte_mbuf** take(size_t wanted) {
      if (count < wanted && !refill()) return nullptr;
      count -= wanted;
      return buffers.data() + count;
    }
    bool refill();  // false: the pool has not enough
  };
  // One device, as the data path sees it.
  struct Link {
    Link(const DpdkDevice& device, uint32_t pipeline);

    uint16_t port_id = 0;
    uint16_t queue = 0;          // to send on
    bool has_own_queue = false;  // else it is another pipeline's, and nothing is received here
    bool fills_checksums = false;
    bool needs_no_checksum = false;
    MacAddress mac{};
    Stock frames;
    Stock segments;
    // Made, and not yet taken by the device.
    std::array<rte_mbuf*, 2 * limits::kBurstPackets> backlog;
    size_t backlog_count = 0;
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

  // Packets of this burst whose payload stays where it lies, all of one region, not yet counted in
  // it.
  PayloadMemory::Region* region_at_hand = nullptr;
  uint64_t uncounted = 0;

  // Where a peer's going may unmap what is polled.
  std::optional<GracePeriodPoller> poller;
  std::vector<Link> links;
  std::vector<Route> routes;

 private:
  size_t receive_from(uint32_t link, std::span<RxPacket> packets);
  size_t receive_handed_over(std::span<RxPacket> packets);
  size_t take_all(std::span<rte_mbuf*> mbufs, uint32_t link, std::span<RxPacket> packets);
  // What every packet passes here is inlined by force, and so below: the calls cost it 15 cycles
  // (`pbox-perf wire`).
  [[gnu::always_inline]] inline bool take(rte_mbuf* mbuf, uint32_t link, RxPacket& packet);
  [[gnu::always_inline]] inline std::span<const std::byte> frame_of(rte_mbuf* mbuf);
  void answer(std::span<const std::byte> frame, Link& link);
  void hand_over(rte_mbuf* mbuf, uint16_t to_port);

  const Route* route_to(const Endpoint& endpoint, uint64_t now_ns);
  bool resolve(Route& route, const Endpoint& endpoint, uint64_t now_ns);
  void solicit(const IpAddress& next_hop, const NeighbourLookup& found);
  void solicit_on(Link& link, const IpAddress& next_hop, const std::optional<MacAddress>& mac);
  [[gnu::always_inline]] inline rte_mbuf* make_packet(const Route& route, const TxPacket& packet);
  rte_mbuf* make_copied(const Route& route, const TxPacket& packet);
  [[gnu::always_inline]] inline rte_mbuf* make_external(const Route& route, const TxPacket& packet,
                                                        PayloadMemory::Region& region);
  void count_in_flight();
  [[gnu::always_inline]] inline void set_checksum(const Route& route, rte_mbuf* mbuf,
                                                  const TxPacket& packet);
  [[gnu::always_inline]] inline bool enqueue(Link& link, rte_mbuf* mbuf);
  static void flush(Link& link);
};

}  // namespace pbox::nic
