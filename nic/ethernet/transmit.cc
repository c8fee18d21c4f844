#include "nic/ethernet/transmit.h"

#include "base/check.h"

namespace pbox::nic {

UdpHeader UdpHeader::make(const Path& path) {
  PBOX_CHECK(path.own_address.ipv6 == path.remote.ipv6);
  UdpHeader header;
  header.ipv6_ = path.remote.ipv6;
  std::byte* at = header.bytes_.data();
  std::memcpy(at + ethernet::kDestination, path.next_hop_mac.data(), path.next_hop_mac.size());
  std::memcpy(at + ethernet::kSource, path.own_mac.data(), path.own_mac.size());
  at += ethernet::kType;
  if (path.vlan != 0) {
    store16(at, ethernet::kTypeTag);
    store16(at + 2, path.vlan);
    at += ethernet::kTagBytes;
  }
  store16(at, header.ipv6_ ? ethernet::kTypeIpv6 : ethernet::kTypeIpv4);
  at += 2;
  header.link_bytes_ = static_cast<uint32_t>(at - header.bytes_.data());

  uint64_t addresses_sum = word_of(std::to_integer<uint16_t>(protocol::kUdp));
  if (header.ipv6_) {
    at[0] = std::byte{0x60};
    at[ipv6::kNextHeader] = protocol::kUdp;
    at[ipv6::kHopLimit] = std::byte{ipv6::kHops};
    std::memcpy(at + ipv6::kSource, path.own_address.bytes.data(), 16);
    std::memcpy(at + ipv6::kDestination, path.remote.address.data(), 16);
    addresses_sum += sum_header<32>(at + ipv6::kSource);
    at += ipv6::kBytes;
  } else {
    at[0] = ipv4::kVersionAndLength;
    store16(at + ipv4::kFragment, ipv4::kDontFragment);
    at[ipv4::kTimeToLive] = std::byte{ipv4::kHops};
    at[ipv4::kProtocol] = protocol::kUdp;
    std::memcpy(at + ipv4::kSource, path.own_address.bytes.data(), 4);
    std::memcpy(at + ipv4::kDestination, path.remote.address.data(), 4);
    addresses_sum += sum_header<8>(at + ipv4::kSource);
    header.ipv4_sum_ = fold(sum_header<ipv4::kBytes>(at));
    at += ipv4::kBytes;
  }
  header.addresses_sum_ = fold(addresses_sum);
  store16(at + udp::kSourcePort, path.own_port);
  store16(at + udp::kDestinationPort, path.remote.port);
  header.header_bytes_ = static_cast<uint32_t>(at - header.bytes_.data()) + uint32_t{udp::kBytes};
  PBOX_CHECK(header.header_bytes_ >= kUdpHeaderBytesMin);
  PBOX_CHECK(header.header_bytes_ <= kUdpHeaderBytesMax);
  return header;
}

void UdpHeader::set_udp_checksum(std::byte* out,
                                 std::initializer_list<std::span<const std::byte>> payload) const {
  std::byte* header = udp_header(out);
  PBOX_DCHECK(header_bytes_ >= kUdpHeaderBytesMin);
  // The checksum field itself counts as 0.
  Checksum sum(pseudo_sum(header) + sum_header<udp::kLength>(header) +
               word_of(load16(header + udp::kLength)));
  [[maybe_unused]] size_t payload_bytes = 0;
  for (const auto& piece : payload) {
    sum.add(piece);
    payload_bytes += piece.size();
  }
  PBOX_DCHECK(udp::kBytes + payload_bytes == load16(header + udp::kLength));
  uint16_t checksum = ~sum.folded();
  if (checksum == 0) checksum = 0xffff;  // 0 would mean that there is no checksum
  std::memcpy(header + udp::kChecksum, &checksum, sizeof(checksum));
}

}  // namespace pbox::nic
