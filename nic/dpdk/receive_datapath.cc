#include <rte_ethdev.h>
#include <rte_ring.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "nic/dpdk/port_state.h"
#include "nic/ethernet/answer.h"
#include "nic/ethernet/receive.h"

namespace pbox::nic {
namespace {

// Largest number of answers to ARP, NDP and echo requests per burst. The bound keeps a flood of
// requests from occupying the box.
constexpr uint32_t kAnswersPerBurst = 8;
// Distance, in packets, at which headers are prefetched.
constexpr size_t kFetchAhead = 4;

PortCounter drop_counter(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNotIp: return PortCounter::kDropNotIp;
    case Verdict::kVlan: return PortCounter::kDropVlan;
    case Verdict::kMalformed: return PortCounter::kDropMalformed;
    case Verdict::kFragment: return PortCounter::kDropFragment;
    case Verdict::kChecksum: return PortCounter::kDropChecksum;
    case Verdict::kProtocol: return PortCounter::kDropProtocol;
    case Verdict::kUdpPort: return PortCounter::kDropUdpPort;
    case Verdict::kSource: return PortCounter::kDropSource;
    default: return PortCounter::kDropNotForUs;
  }
}

HardwareChecks checks_of(const rte_mbuf& mbuf) {
  return {.ip_good = (mbuf.ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_GOOD,
          .udp_good = (mbuf.ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD};
}

}  // namespace

size_t DpdkPort::State::rx_burst(std::span<RxPacket> packets) {
  rte_pktmbuf_free_bulk(held.data(), static_cast<unsigned>(held_count));
  held_count = 0;
  linearized_count = 0;
  answers_left = kAnswersPerBurst;
  packets = packets.first(std::min<size_t>(packets.size(), limits::kBurstPackets));
  send_pending();
  size_t count = receive_handed_over(packets);
  for (size_t step = 0; step < links.size() && count < packets.size(); ++step) {
    const auto link = static_cast<uint32_t>((first_link + step) % links.size());
    count += receive_from(link, packets.subspan(count));
  }
  first_link = (first_link + 1) % links.size();
  PBOX_DCHECK(count <= packets.size() && held_count == count);
  return count;
}

size_t DpdkPort::State::receive_from(uint32_t link, std::span<RxPacket> packets) {
  PBOX_DCHECK(link < links.size() && packets.size() <= limits::kBurstPackets);
  const Link& from = links[link];
  if (!from.has_own_queue) return 0;
  std::array<rte_mbuf*, limits::kBurstPackets> mbufs;
  const uint16_t received = rte_eth_rx_burst(from.port_id, from.queue, mbufs.data(),
                                             static_cast<uint16_t>(packets.size()));
  PBOX_DCHECK(received <= packets.size());
  return take_all({mbufs.data(), received}, link, packets);
}

size_t DpdkPort::State::receive_handed_over(std::span<RxPacket> packets) {
  rte_ring* ring = interface.handed_over(pipeline);
  if (ring == nullptr) return 0;
  PBOX_DCHECK(packets.size() <= limits::kBurstPackets);
  std::array<rte_mbuf*, limits::kBurstPackets> mbufs;
  const unsigned received = rte_ring_dequeue_burst(ring, reinterpret_cast<void**>(mbufs.data()),
                                                   static_cast<unsigned>(packets.size()), nullptr);
  return take_all({mbufs.data(), received}, std::nullopt, packets);
}

// `link`: where all frames arrived; nullopt if hand_over() has noted it in each.
size_t DpdkPort::State::take_all(std::span<rte_mbuf*> mbufs, std::optional<uint32_t> link,
                                 std::span<RxPacket> packets) {
  PBOX_DCHECK(mbufs.size() <= packets.size());
  size_t count = 0;
  for (size_t index = 0; index < std::min(kFetchAhead, mbufs.size()); ++index) {
    rte_prefetch0(rte_pktmbuf_mtod(mbufs[index], void*));
  }
  for (size_t index = 0; index < mbufs.size(); ++index) {
    if (index + kFetchAhead < mbufs.size()) {
      rte_prefetch0(rte_pktmbuf_mtod(mbufs[index + kFetchAhead], void*));
    }
    const size_t linearized_before = linearized_count;
    if (take(mbufs[index], link.value_or(mbufs[index]->port), packets[count])) {
      ++count;
    } else {
      linearized_count = linearized_before;  // the copy is not needed any more
    }
  }
  return count;
}

// Classifies one frame. Returns true if it is a packet for the caller: the buffer is then in
// `held`. Otherwise the buffer was freed or handed over.
bool DpdkPort::State::take(rte_mbuf* mbuf, uint32_t link, RxPacket& packet) {
  const auto frame = frame_of(mbuf);
  const Interface& own = interface.interface();
  const MacAddress& mac = links[link].mac;
  const Verdict verdict =
      classify(frame, own, mac, interface.udp_ports(), checks_of(*mbuf), packet);
  if (verdict == Verdict::kUdp) [[likely]] {
    if (packet.to_port != udp_port && interface.handed_over(pipeline) != nullptr) {
      hand_over(mbuf, link, packet.to_port);
      return false;
    }
    PBOX_DCHECK(held_count < held.size());
    PBOX_DCHECK(packet.data != nullptr && packet.bytes <= frame.size());
    held[held_count++] = mbuf;
    return true;
  }
  if (verdict == Verdict::kAnswer || verdict == Verdict::kLearn) {
    interface.neighbours().learn(frame, own, mac, static_cast<uint16_t>(link), monotonic_ns());
    if (verdict == Verdict::kAnswer) answer(frame, links[link]);
  } else if (verdict == Verdict::kPathMtu) {
    counters.add(PortCounter::kPathMtuReports);
  } else {
    counters.add(drop_counter(verdict));
  }
  rte_pktmbuf_free(mbuf);
  return false;
}

// Returns the frame as contiguous bytes. A frame longer than any valid one is truncated; its
// lengths are then inconsistent, so it is dropped as malformed.
std::span<const std::byte> DpdkPort::State::frame_of(rte_mbuf* mbuf) {
  if (mbuf->nb_segs == 1) [[likely]] {
    return {rte_pktmbuf_mtod(mbuf, const std::byte*), mbuf->data_len};
  }
  counters.add(PortCounter::kChainedPackets);
  PBOX_DCHECK(linearized_count < limits::kBurstPackets);
  const size_t bytes = std::min<size_t>(mbuf->pkt_len, linearized_bytes);
  std::byte* copy = linearized.get() + linearized_count++ * linearized_bytes;
  size_t filled = 0;
  for (const rte_mbuf* piece = mbuf; piece != nullptr && filled < bytes; piece = piece->next) {
    const size_t part = std::min<size_t>(piece->data_len, bytes - filled);
    std::memcpy(copy + filled, rte_pktmbuf_mtod(piece, const std::byte*), part);
    filled += part;
  }
  PBOX_DCHECK(filled <= linearized_bytes);
  return {copy, filled};
}

void DpdkPort::State::answer(std::span<const std::byte> frame, Link& link) {
  if (answers_left == 0) return;
  --answers_left;
  rte_mbuf** taken = link.frames.take(1);
  if (taken == nullptr) {
    counters.add(PortCounter::kNoBuffer);
    return;
  }
  rte_mbuf* reply = *taken;
  const size_t bytes =
      nic::answer(frame, interface.interface(), link.mac,
                  {rte_pktmbuf_mtod(reply, std::byte*), rte_pktmbuf_tailroom(reply)});
  if (bytes == 0) {
    rte_pktmbuf_free(reply);
    return;
  }
  PBOX_DCHECK(bytes <= rte_pktmbuf_tailroom(reply));
  reply->data_len = static_cast<uint16_t>(bytes);
  reply->pkt_len = static_cast<uint32_t>(bytes);
  counters.add(PortCounter::kAnswers);
  send_frame(link, reply);
}

void DpdkPort::State::hand_over(rte_mbuf* mbuf, uint32_t link, uint16_t to_port) {
  PBOX_DCHECK(to_port != udp_port && link < links.size());
  mbuf->port = static_cast<uint16_t>(link);  // the owner looks for the MAC address of this link
  const uint32_t owner = interface.pipeline_of(to_port);
  if (owner == interface.pipeline_count()) {
    counters.add(PortCounter::kDropUdpPort);
  } else if (rte_ring_enqueue(interface.handed_over(owner), mbuf) == 0) {
    counters.add(PortCounter::kDispatched);
    return;
  } else {
    counters.add(PortCounter::kDropDispatch);
  }
  rte_pktmbuf_free(mbuf);
}

}  // namespace pbox::nic
