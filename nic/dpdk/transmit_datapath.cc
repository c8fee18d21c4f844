#include <rte_ethdev.h>
#include <rte_ring.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "nic/dpdk/port_state.h"
#include "nic/ethernet/answer.h"

namespace pbox::nic {
namespace {

// Payloads up to this size, in bytes, are copied into one buffer, which is cheaper than gathering
// three buffers (measured with `pbox-perf wire`).
constexpr uint32_t kCopiedBytesMax = 1024;

size_t route_index(const Endpoint& endpoint, size_t mask) {
  uint64_t words[2];
  std::memcpy(words, endpoint.address.data(), sizeof(words));
  const uint64_t mixed = (words[0] ^ words[1] ^ endpoint.port) * 0x9e3779b97f4a7c15;
  return (mixed >> 32) & mask;
}

}  // namespace

size_t DpdkPort::State::tx_burst(std::span<const TxPacket> packets) {
  packets = packets.first(std::min<size_t>(packets.size(), limits::kBurstPackets));
  send_pending();
  // If the only device accepts nothing, the caller keeps its packets. With several devices, one
  // that accepts nothing must not delay the others.
  if (links.size() == 1 && links[0].backlog_count > 0) return 0;
  const uint64_t now_ns = monotonic_ns();
  const Endpoint* to = nullptr;
  const Route* route = nullptr;
  size_t taken = 0;
  for (; taken < packets.size(); ++taken) {
    const TxPacket& packet = packets[taken];
    PBOX_DCHECK(packet.to != nullptr);
    PBOX_DCHECK(packet.payload != nullptr || packet.header.payload_bytes == 0);
    if (packet.to != to) {  // packets to one worker follow each other
      to = packet.to;
      route = route_to(*to, packet.from != nullptr ? *packet.from : kNoLocalAddress, now_ns);
    }
    if (route == nullptr) {
      counters.add(PortCounter::kUnresolved);
      continue;
    }
    rte_mbuf* mbuf = make_packet(*route, packet);
    if (mbuf == nullptr) {
      counters.add(PortCounter::kNoBuffer);
      break;  // devices hold all buffers and will return them
    }
    if (!enqueue(links[route->link], mbuf)) counters.add(PortCounter::kSendFailures);
  }
  count_in_flight();
  for (Link& link : links) flush(link);
  PBOX_DCHECK(taken <= packets.size() && uncounted_packets == 0);
  return taken;
}

// Adds the uncounted packets to the region's in_flight at once. The threads that free packets share
// that counter, so one addition per packet would be expensive.
void DpdkPort::State::count_in_flight() {
  if (uncounted_packets == 0) return;
  PBOX_DCHECK(current_region != nullptr);
  current_region->in_flight.fetch_add(uncounted_packets, std::memory_order_relaxed);
  counters.add(PortCounter::kExternalPackets, uncounted_packets);
  uncounted_packets = 0;
}

bool DpdkPort::State::Stock::refill() {
  PBOX_DCHECK(count < buffers.size());
  if (rte_mempool_get_bulk(pool, reinterpret_cast<void**>(buffers.data() + count),
                           static_cast<unsigned>(buffers.size() - count)) != 0) {
    return false;
  }
  // These two fields are all that a new packet needs. A freed buffer has no successor and is a
  // single segment already, and the other fields have no meaning without their flag.
  for (; count < buffers.size(); ++count) {
    PBOX_DCHECK(buffers[count]->nb_segs == 1 && buffers[count]->next == nullptr);
    buffers[count]->data_off = RTE_PKTMBUF_HEADROOM;
    buffers[count]->ol_flags = 0;
  }
  return true;
}

const DpdkPort::State::Route* DpdkPort::State::route_to(const Endpoint& endpoint,
                                                        const LocalAddress& from, uint64_t now_ns) {
  Route& route = routes[route_index(endpoint, kRoutes - 1)];
  const bool is_known = route.generation == interface.neighbours().generation() &&
                        now_ns < route.valid_until_ns && route.endpoint == endpoint &&
                        route.from == from;
  return is_known || resolve(route, endpoint, from, now_ns) ? &route : nullptr;
}

bool DpdkPort::State::resolve(Route& route, const Endpoint& endpoint, const LocalAddress& from,
                              uint64_t now_ns) {
  route.valid_until_ns = 0;
  const Interface& own = interface.interface();
  const MacAddress& any_mac = links[0].mac;
  const IpAddress remote = ip_address(endpoint);
  const auto next_hop = own.next_hop(remote, any_mac);
  if (!next_hop) return false;
  const uint64_t generation = interface.neighbours().generation();
  const NeighbourLookup found = interface.neighbours().lookup(*next_hop, now_ns);
  if (found.solicit != Solicit::kNone) solicit(*next_hop, found);
  if (!found.neighbour) return false;
  PBOX_DCHECK(found.neighbour->link < links.size());
  const MacAddress& own_mac = links[found.neighbour->link].mac;
  auto own_address = own.local_address_for(remote, own_mac);
  if (from != kNoLocalAddress) own_address = {.bytes = from, .ipv6 = remote.ipv6};
  if (!own_address) return false;
  route = {.endpoint = endpoint,
           .from = from,
           .generation = generation,
           .valid_until_ns = now_ns + kNeighbourKeepNs,
           .link = found.neighbour->link,
           .header = UdpHeader::make({.own_mac = own_mac,
                                      .next_hop_mac = found.neighbour->mac,
                                      .own_address = *own_address,
                                      .own_port = udp_port,
                                      .remote = endpoint,
                                      .vlan = own.vlan})};
  return true;
}

void DpdkPort::State::solicit(const IpAddress& next_hop, const NeighbourLookup& found) {
  PBOX_DCHECK(found.solicit != Solicit::kUnicast || found.neighbour);
  counters.add(PortCounter::kSolicitations);
  if (found.solicit == Solicit::kUnicast) {
    solicit_on(links[found.neighbour->link], next_hop, found.neighbour->mac);
    return;
  }
  for (Link& link : links) solicit_on(link, next_hop, std::nullopt);
}

void DpdkPort::State::solicit_on(Link& link, const IpAddress& next_hop,
                                 const std::optional<MacAddress>& mac) {
  rte_mbuf** taken = link.frames.take(1);
  if (taken == nullptr) {
    counters.add(PortCounter::kNoBuffer);
    return;
  }
  rte_mbuf* mbuf = *taken;
  const size_t bytes =
      nic::solicit(next_hop, mac, interface.interface(), link.mac,
                   {rte_pktmbuf_mtod(mbuf, std::byte*), rte_pktmbuf_tailroom(mbuf)});
  PBOX_DCHECK(bytes <= rte_pktmbuf_tailroom(mbuf));
  mbuf->data_len = static_cast<uint16_t>(bytes);
  mbuf->pkt_len = static_cast<uint32_t>(bytes);
  send_frame(link, mbuf);
}

rte_mbuf* DpdkPort::State::make_packet(const Route& route, const TxPacket& packet) {
  if (packet.header.payload_bytes > kCopiedBytesMax && reads_in_place) {
    if (PayloadMemory::Region* region = memory.find(packet.payload, packet.header.payload_bytes)) {
      return make_external(route, packet, *region);
    }
  }
  return make_copied(route, packet);
}

rte_mbuf* DpdkPort::State::make_copied(const Route& route, const TxPacket& packet) {
  rte_mbuf** taken = links[route.link].frames.take(1);
  if (taken == nullptr) return nullptr;
  rte_mbuf* mbuf = *taken;
  const uint32_t payload_bytes = packet.header.payload_bytes;
  const uint32_t udp_bytes = limits::kPacketOverheadBytes + payload_bytes;
  const uint32_t header_bytes = route.header.header_bytes();
  mbuf->data_len = static_cast<uint16_t>(header_bytes + udp_bytes);
  mbuf->pkt_len = mbuf->data_len;
  PBOX_DCHECK(rte_pktmbuf_headroom(mbuf) + mbuf->pkt_len <= mbuf->buf_len);
  PBOX_DCHECK(mbuf->data_len == header_bytes + udp_bytes);
  auto* out = rte_pktmbuf_mtod(mbuf, std::byte*);
  route.header.write(out, udp_bytes);
  out += header_bytes;
  std::memcpy(out, &packet.header, limits::kHeaderBytes);
  if (payload_bytes > 0) std::memcpy(out + limits::kHeaderBytes, packet.payload, payload_bytes);
  std::memcpy(out + limits::kHeaderBytes + payload_bytes, packet.tag.data(), limits::kTagBytes);
  set_checksum(route, mbuf, packet);
  return mbuf;
}

// Builds the packet from three segments: headers, the payload in place, and tag.
rte_mbuf* DpdkPort::State::make_external(const Route& route, const TxPacket& packet,
                                         PayloadMemory::Region& region) {
  rte_mbuf** pieces = links[route.link].segments.take(3);
  if (pieces == nullptr) return nullptr;
  rte_mbuf* head = pieces[0];
  rte_mbuf* payload = pieces[1];
  rte_mbuf* tag = pieces[2];
  const uint32_t payload_bytes = packet.header.payload_bytes;
  const uint32_t udp_bytes = limits::kPacketOverheadBytes + payload_bytes;
  const uint32_t header_bytes = route.header.header_bytes();
  PBOX_DCHECK(region.contains(packet.payload, payload_bytes));
  PBOX_DCHECK(header_bytes + limits::kHeaderBytes <= rte_pktmbuf_tailroom(head));
  head->data_len = static_cast<uint16_t>(header_bytes + limits::kHeaderBytes);
  head->pkt_len = header_bytes + udp_bytes;
  head->nb_segs = 3;
  head->next = payload;
  auto* out = rte_pktmbuf_mtod(head, std::byte*);
  route.header.write(out, udp_bytes);
  std::memcpy(out + header_bytes, &packet.header, limits::kHeaderBytes);
  if (&region != current_region) {
    count_in_flight();
    current_region = &region;
  }
  ++uncounted_packets;
  attach_payload(payload, packet.payload, static_cast<uint16_t>(payload_bytes), region.in_flight);
  payload->next = tag;
  tag->data_len = limits::kTagBytes;
  std::memcpy(rte_pktmbuf_mtod(tag, std::byte*), packet.tag.data(), limits::kTagBytes);
  PBOX_DCHECK(head->pkt_len == uint32_t{head->data_len} + payload->data_len + tag->data_len);
  set_checksum(route, head, packet);
  return head;
}

void DpdkPort::State::set_checksum(const Route& route, rte_mbuf* mbuf, const TxPacket& packet) {
  PBOX_DCHECK(route.link < links.size());
  const Link& can = links[route.link];
  const bool ipv6 = route.endpoint.ipv6;
  if (can.needs_no_checksum && !ipv6) return;
  auto* out = rte_pktmbuf_mtod(mbuf, std::byte*);
  if (can.fills_checksums) {
    route.header.set_pseudo_checksum(out);
    mbuf->l2_len = route.header.link_bytes();
    mbuf->l3_len = route.header.ip_bytes();
    mbuf->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM | (ipv6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4);
    return;
  }
  const auto bytes_of = [](const auto& value) { return std::as_bytes(std::span(&value, 1)); };
  route.header.set_udp_checksum(out, {bytes_of(packet.header),
                                      {packet.payload, packet.header.payload_bytes},
                                      bytes_of(packet.tag)});
}

void DpdkPort::State::send_frame(Link& link, rte_mbuf* mbuf) {
  if (!enqueue(link, mbuf)) counters.add(PortCounter::kSendFailures);
}

// Returns false if there was no room; the packet was then freed.
bool DpdkPort::State::enqueue(Link& link, rte_mbuf* mbuf) {
  if (!link.has_own_queue) [[unlikely]] {
    PBOX_DCHECK(interface.to_send(link.queue) != nullptr);
    mbuf->port = static_cast<uint16_t>(&link - links.data());
    if (rte_ring_enqueue(interface.to_send(link.queue), mbuf) == 0) return true;
    rte_pktmbuf_free(mbuf);
    return false;
  }
  if (link.backlog_count == link.backlog.size()) {
    count_in_flight();  // must precede flush: sent packets are counted down
    flush(link);
  }
  if (link.backlog_count == link.backlog.size()) {
    rte_pktmbuf_free(mbuf);
    return false;
  }
  PBOX_DCHECK(link.backlog_count < link.backlog.size());
  link.backlog[link.backlog_count++] = mbuf;
  return true;
}

void DpdkPort::State::flush(Link& link) {
  if (link.backlog_count == 0) return;
  const uint16_t sent = rte_eth_tx_burst(link.port_id, link.queue, link.backlog.data(),
                                         static_cast<uint16_t>(link.backlog_count));
  PBOX_DCHECK(sent <= link.backlog_count);
  std::copy(link.backlog.begin() + sent,
            link.backlog.begin() + static_cast<ptrdiff_t>(link.backlog_count),
            link.backlog.begin());
  link.backlog_count -= sent;
}

void DpdkPort::State::send_pending() {
  if (rte_ring* ring = interface.to_send(pipeline)) {
    std::array<rte_mbuf*, limits::kBurstPackets> mbufs;
    const unsigned count = rte_ring_dequeue_burst(ring, reinterpret_cast<void**>(mbufs.data()),
                                                  limits::kBurstPackets, nullptr);
    for (unsigned index = 0; index < count; ++index) {
      PBOX_DCHECK(mbufs[index]->port < links.size());
      send_frame(links[mbufs[index]->port], mbufs[index]);
    }
  }
  for (Link& link : links) flush(link);
}

}  // namespace pbox::nic
