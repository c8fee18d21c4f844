// The state of a DpdkPort: its tables, allocated once, and the functions of the data path. Private
// to nic/dpdk.
#pragma once

#include <rte_mbuf.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
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
  // Sends a frame that the port itself created, such as an ARP reply. Frees and counts it if there
  // is no room.
  void send_frame(Link& link, rte_mbuf* mbuf);
  // Sends what is pending: the backlogs, and packets of pipelines without their own queue.
  void send_pending();

  // The route to one endpoint from one own address. Valid while the neighbour table's generation is
  // unchanged and until valid_until_ns.
  struct Route {
    Endpoint endpoint;
    LocalAddress from{};  // as in TxPacket; all zero: chosen by the interface
    uint64_t generation = UINT64_MAX;
    uint64_t valid_until_ns = 0;
    uint32_t link = 0;  // index into links
    UdpHeader header;
  };
  // Free buffers, taken from a pool in bulk because that is cheaper than one at a time.
  struct Stock {
    rte_mempool* pool = nullptr;
    std::array<rte_mbuf*, 48> buffers;
    size_t count = 0;  // valid entries, at the front of `buffers`

    // Returns `wanted` buffers, 1 to 3, or nullptr if devices hold all buffers. The caller owns
    // them.
    rte_mbuf** take(size_t wanted) {
      PBOX_DCHECK(wanted >= 1 && wanted <= 3);
      if (count < wanted && !refill()) return nullptr;
      PBOX_DCHECK(count >= wanted);
      count -= wanted;
      return buffers.data() + count;
    }
    bool refill();  // returns false if the pool has too few buffers
  };
  // One device, as the data path uses it.
  struct Link {
    Link(const DpdkDevice& device, uint32_t pipeline);

    uint16_t port_id = 0;
    uint16_t queue = 0;          // queue to send on
    bool has_own_queue = false;  // false: the queue belongs to another pipeline; receive nothing
    bool fills_checksums = false;
    bool needs_no_checksum = false;
    MacAddress mac{};
    Stock frames;
    Stock segments;
    // Packets that the device has not accepted yet.
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

  std::array<rte_mbuf*, limits::kBurstPackets>
      held;  // buffers of the last burst; freed by the next
  size_t held_count = 0;
  size_t first_link = 0;                    // polled first in the next burst
  uint32_t answers_left = 0;                // answers that this burst may still send
  std::unique_ptr<std::byte[]> linearized;  // copies of packets that came in several buffers
  size_t linearized_bytes = 0;              // room for each copy
  size_t linearized_count = 0;              // copies of the current burst

  // Packets of this burst whose payload is sent in place from `current_region`, and which are not
  // yet added to the region's in_flight.
  PayloadMemory::Region* current_region = nullptr;
  uint64_t uncounted_packets = 0;

  // Set if a disconnecting peer may unmap memory that is polled (memif).
  std::optional<GracePeriodPoller> poller;
  std::vector<Link> links;
  std::vector<Route> routes;

 private:
  size_t receive_from(uint32_t link, std::span<RxPacket> packets);
  size_t receive_handed_over(std::span<RxPacket> packets);
  size_t take_all(std::span<rte_mbuf*> mbufs, std::optional<uint32_t> link,
                  std::span<RxPacket> packets);
  // Functions that every packet passes are always inlined: calls cost 15 cycles per packet
  // (measured with `pbox-perf wire`).
  [[gnu::always_inline]] inline bool take(rte_mbuf* mbuf, uint32_t link, RxPacket& packet);
  [[gnu::always_inline]] inline std::span<const std::byte> frame_of(rte_mbuf* mbuf);
  void answer(std::span<const std::byte> frame, Link& link);
  void hand_over(rte_mbuf* mbuf, uint32_t link, uint16_t to_port);

  const Route* route_to(const Endpoint& endpoint, const LocalAddress& from, uint64_t now_ns);
  bool resolve(Route& route, const Endpoint& endpoint, const LocalAddress& from, uint64_t now_ns);
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
