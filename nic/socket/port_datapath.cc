#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "nic/socket/address.h"
#include "nic/socket/buffers.h"
#include "nic/socket/port.h"

namespace pbox::nic {
namespace {

struct MessageInfo {
  size_t segment_bytes = 0;  // packet length in a coalesced message; 0: it is a single datagram
  LocalAddress to{};         // all zero: not reported
};

MessageInfo read_info(const msghdr& header) {
  MessageInfo info;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&header), control)) {
    if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == UDP_GRO) {
      int segment = 0;
      std::memcpy(&segment, CMSG_DATA(control), sizeof(segment));
      if (segment > 0) info.segment_bytes = static_cast<size_t>(segment);
    } else if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_PKTINFO) {
      const auto* found = reinterpret_cast<const in_pktinfo*>(CMSG_DATA(control));
      std::memcpy(info.to.data(), &found->ipi_addr, sizeof(found->ipi_addr));
    } else if (control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_PKTINFO) {
      const auto* found = reinterpret_cast<const in6_pktinfo*>(CMSG_DATA(control));
      std::memcpy(info.to.data(), &found->ipi6_addr, sizeof(found->ipi6_addr));
    }
  }
  return info;
}

// Writes a control message and returns its length with padding.
template <typename T>
size_t write_control(cmsghdr* control, int level, int type, const T& value) {
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof(value));
  std::memcpy(CMSG_DATA(control), &value, sizeof(value));
  return CMSG_SPACE(sizeof(value));
}

bool has_same_path(const TxPacket& a, const TxPacket& b) {
  if (a.to == b.to && a.from == b.from) return true;  // the usual case: a run to one worker
  if (*a.to != *b.to || (a.from == nullptr) != (b.from == nullptr)) return false;
  return a.from == nullptr || *a.from == *b.from;
}

uint32_t packet_bytes(const TxPacket& packet) {
  return limits::kPacketOverheadBytes + packet.header.payload_bytes;
}

}  // namespace

bool SocketPort::receive_messages() {
  Buffers& buffers = *buffers_;
  for (size_t index = 0; index < buffers.message_count; ++index) {
    msghdr& header = buffers.receive_headers[index].msg_hdr;
    header.msg_namelen = sizeof(sockaddr_storage);
    header.msg_controllen = kControlBytes;
  }
  PBOX_DCHECK(buffers.message_next == buffers.message_count);  // all were returned
  if (buffers.message_count == 0) {  // before the first message, and after an empty call
    for (auto& message : buffers.receive_headers) {
      message.msg_hdr.msg_namelen = sizeof(sockaddr_storage);
      message.msg_hdr.msg_controllen = kControlBytes;
    }
  }
  const int count = recvmmsg(descriptor_.get(), buffers.receive_headers.data(), kReceiveMessages,
                             MSG_DONTWAIT, nullptr);
  buffers.message_next = 0;
  buffers.segment_offset = 0;
  if (count <= 0) {
    buffers.message_count = 0;
    return false;
  }
  buffers.message_count = static_cast<size_t>(count);
  buffers.is_drained = buffers.message_count < kReceiveMessages;
  PBOX_DCHECK(buffers.message_count <= kReceiveMessages);
  return true;
}

bool SocketPort::take_segment(RxPacket& packet) {
  Buffers& buffers = *buffers_;
  while (buffers.message_next < buffers.message_count) {
    const size_t index = buffers.message_next;
    const mmsghdr& message = buffers.receive_headers[index];
    if (buffers.segment_offset == 0) {
      const MessageInfo info = read_info(message.msg_hdr);
      buffers.segment_bytes = info.segment_bytes > 0 ? info.segment_bytes : message.msg_len;
      buffers.segment_from = from_sockaddr(buffers.receive[index].address);
      buffers.segment_to = info.to;
    }
    if (buffers.segment_offset >= message.msg_len) {
      ++buffers.message_next;
      buffers.segment_offset = 0;
      continue;
    }
    PBOX_DCHECK(message.msg_len <= kMessageBytes && buffers.segment_bytes > 0);
    const size_t left = message.msg_len - buffers.segment_offset;
    packet.data = buffers.receive_bytes.get() + index * kMessageBytes + buffers.segment_offset;
    packet.bytes = static_cast<uint32_t>(std::min(left, buffers.segment_bytes));
    packet.from = buffers.segment_from;
    packet.to = buffers.segment_to;
    PBOX_DCHECK(packet.bytes > 0 && packet.bytes <= left);
    buffers.segment_offset += packet.bytes;
    return true;
  }
  return false;
}

size_t SocketPort::rx_burst(std::span<RxPacket> packets) {
  size_t count = 0;
  while (count < packets.size() && take_segment(packets[count])) ++count;
  // The returned packets lie in the current buffers, so this call must not receive into them again.
  if (count > 0) return count;
  if (std::exchange(buffers_->is_drained, false)) return 0;
  if (!receive_messages()) return 0;
  while (count < packets.size() && take_segment(packets[count])) ++count;
  return count;
}

// Returns the address that the packet must leave from; all zero if the kernel may choose.
const LocalAddress& SocketPort::source_of(const TxPacket& packet) const {
  if (!has_all_addresses_) return local_.address;
  return packet.from != nullptr ? *packet.from : kNoLocalAddress;
}

// Writes a control message with the address and the interface that a packet of an unconnected port
// leaves from, and returns its length. Writes nothing and returns 0 if the kernel may choose both.
size_t SocketPort::write_source(const TxPacket& packet, cmsghdr* control) const {
  const LocalAddress& own = source_of(packet);
  if (own == kNoLocalAddress) return 0;
  const uint32_t interface = shared_networks_.interface_for(own, *packet.to);
  if (!has_all_addresses_ && interface == 0) return 0;
  if (packet.to->ipv6) {
    in6_pktinfo info{};
    info.ipi6_ifindex = interface;
    std::memcpy(&info.ipi6_addr, own.data(), sizeof(info.ipi6_addr));
    return write_control(control, IPPROTO_IPV6, IPV6_PKTINFO, info);
  }
  in_pktinfo info{};
  info.ipi_ifindex = static_cast<int>(interface);
  std::memcpy(&info.ipi_spec_dst, own.data(), sizeof(info.ipi_spec_dst));
  return write_control(control, IPPROTO_IP, IP_PKTINFO, info);
}

// Returns how many of the first packets can leave as one segmented message. They have the same peer
// and source address, and the same size, except that the last may be shorter. The message is within
// the kernel's bounds.
size_t SocketPort::group_length(std::span<const TxPacket> packets) const {
  PBOX_DCHECK(!packets.empty());
  if (!capabilities_.segmentation_offload) return 1;
  const uint32_t segment = packet_bytes(packets[0]);
  size_t total = segment;
  size_t count = 1;
  while (count < packets.size() && count < kSegmentsMax) {
    const uint32_t bytes = packet_bytes(packets[count]);
    if (bytes > segment || total + bytes > limits::kUdpPayloadMax) break;
    if (!connected_ && !has_same_path(packets[count], packets[0])) break;
    total += bytes;
    ++count;
    if (bytes < segment) break;
  }
  PBOX_DCHECK(count == 1 || total <= limits::kUdpPayloadMax);
  return count;
}

// Fills the send tables from all packets and returns the number of messages.
size_t SocketPort::gather(std::span<const TxPacket> packets) {
  PBOX_DCHECK(packets.size() <= limits::kBurstPackets);
  Buffers& buffers = *buffers_;
  size_t message = 0;
  size_t vector = 0;
  for (size_t next = 0; next < packets.size(); ++message) {
    const size_t group = group_length(packets.subspan(next));
    auto& send = buffers.send[message];
    msghdr& header = buffers.send_headers[message].msg_hdr;
    header = {};
    header.msg_iov = &buffers.send_vectors[vector];
    send.packet_count = group;
    if (!connected_) {
      PBOX_DCHECK(packets[next].to != nullptr);
      header.msg_name = &send.address;
      header.msg_namelen = to_sockaddr(*packets[next].to, send.address);
      header.msg_controllen =
          write_source(packets[next], reinterpret_cast<cmsghdr*>(send.control.data()));
    }
    if (group > 1) {
      const auto segment = static_cast<uint16_t>(packet_bytes(packets[next]));
      auto* control = reinterpret_cast<cmsghdr*>(send.control.data() + header.msg_controllen);
      header.msg_controllen += write_control(control, IPPROTO_UDP, UDP_SEGMENT, segment);
    }
    if (header.msg_controllen > 0) header.msg_control = send.control.data();
    PBOX_DCHECK(header.msg_controllen <= send.control.size());
    for (size_t end = next + group; next < end; ++next) {
      const TxPacket& packet = packets[next];
      buffers.send_vectors[vector++] = {const_cast<wire::Header*>(&packet.header),
                                        sizeof(wire::Header)};
      PBOX_DCHECK(packet_bytes(packet) <= limits::kPacketBytesMax);
      if (packet.header.payload_bytes > 0) {
        PBOX_DCHECK(packet.payload != nullptr);
        buffers.send_vectors[vector++] = {const_cast<std::byte*>(packet.payload),
                                          packet.header.payload_bytes};
      }
      buffers.send_vectors[vector++] = {const_cast<std::byte*>(packet.tag.data()),
                                        packet.tag.size()};
    }
    PBOX_DCHECK(vector <= buffers.send_vectors.size());
    header.msg_iovlen = static_cast<size_t>(&buffers.send_vectors[vector] - header.msg_iov);
  }
  return message;
}

// Sends packets of a segmented message that the kernel has refused, and returns how many it has
// taken. Either the device cannot segment although the kernel offers it, or the kernel refuses each
// packet, for example because this host has lost the address that they leave from. The first packet
// alone shows which.
size_t SocketPort::send_unsegmented(std::span<const TxPacket> packets) {
  const uint64_t failures = counters_.get(PortCounter::kSendFailures);
  capabilities_.segmentation_offload = false;
  const size_t taken = tx_burst(packets.first(1));
  if (taken > 0 && counters_.get(PortCounter::kSendFailures) == failures) return taken;
  capabilities_.segmentation_offload = true;
  if (taken == 0) return 0;
  counters_.add(PortCounter::kSendFailures, packets.size() - taken);
  return packets.size();
}

size_t SocketPort::tx_burst(std::span<const TxPacket> packets) {
  packets = packets.first(std::min<size_t>(packets.size(), limits::kBurstPackets));
  const size_t messages = gather(packets);
  size_t message = 0;
  size_t sent = 0;
  while (message < messages) {
    const int count = sendmmsg(descriptor_.get(), &buffers_->send_headers[message],
                               static_cast<unsigned>(messages - message), MSG_DONTWAIT);
    if (count > 0) {
      for (int index = 0; index < count; ++index, ++message) {
        send_bound_.add(buffers_->send_headers[message].msg_len);
        sent += buffers_->send[message].packet_count;
      }
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const auto bytes = send_bound_.on_full(monotonic_ns())) bound_send_buffer(*bytes);
      break;
    }
    if (errno == ENOBUFS) break;
    if ((errno == EIO || errno == EINVAL) && buffers_->send[message].packet_count > 1) {
      const size_t taken =
          send_unsegmented(packets.subspan(sent, buffers_->send[message].packet_count));
      return sent + taken + (taken > 0 ? tx_burst(packets.subspan(sent + taken)) : 0);
    }
    // A permanent refusal: count the packets as sent and lost, as on any network.
    refusal_ = errno;
    counters_.add(PortCounter::kSendFailures, buffers_->send[message].packet_count);
    sent += buffers_->send[message++].packet_count;
  }
  PBOX_DCHECK(sent <= packets.size());
  return sent;
}

}  // namespace pbox::nic
