// Prepared headers of UDP packets to one peer. To send a packet, 42 to 66 bytes are copied and the
// lengths are filled in.
#pragma once

#include <array>
#include <cstring>
#include <initializer_list>
#include <span>

#include "base/check.h"
#include "nic/ethernet/address.h"
#include "nic/ethernet/checksum.h"

namespace pbox::nic {

inline constexpr uint32_t kUdpHeaderBytesMin = ethernet::kBytes + ipv4::kBytes + udp::kBytes;
inline constexpr uint32_t kUdpHeaderBytesMax =
    ethernet::kBytes + ethernet::kTagBytes + ipv6::kBytes + udp::kBytes;

// The headers of Ethernet, 802.1Q if there is a VLAN, IPv4 (don't fragment, TTL 64) or IPv6, and
// UDP. A value; any core. Only make() creates a usable one.
class UdpHeader {
 public:
  struct Path {
    MacAddress own_mac;
    MacAddress next_hop_mac;
    IpAddress own_address;  // has the same family as `remote`
    uint16_t own_port = 0;
    Endpoint remote;
    uint16_t vlan = 0;  // 802.1Q id; 0: untagged
  };
  static UdpHeader make(const Path& path);

  // Length of all headers, in [kUdpHeaderBytesMin, kUdpHeaderBytesMax].
  uint32_t header_bytes() const { return header_bytes_; }

  // Writes header_bytes() bytes to `out`. The UDP checksum is 0, which over IPv4 means "no
  // checksum". Over IPv6 a call of one of the next two functions must follow. The IP packet must
  // not exceed 65535 bytes.
  void write(std::byte* out, uint32_t udp_payload_bytes) const;

  // Sets the UDP checksum in `out`. Call it after write(). `payload` is the whole UDP payload, in
  // pieces of any length.
  void set_udp_checksum(std::byte* out,
                        std::initializer_list<std::span<const std::byte>> payload) const;

  // Sets the value that a NIC needs in order to compute the UDP checksum itself: the sum of the
  // pseudo-header, with the length, not complemented. Call it after write().
  void set_pseudo_checksum(std::byte* out) const;

  // Lengths for a NIC's descriptor: the Ethernet header, and the IP header that follows it.
  uint32_t link_bytes() const { return link_bytes_; }
  uint32_t ip_bytes() const { return header_bytes_ - link_bytes_ - uint32_t{udp::kBytes}; }

 private:
  uint64_t pseudo_sum(const std::byte* udp_header) const {
    return addresses_sum_ + word_of(load16(udp_header + udp::kLength));
  }
  std::byte* udp_header(std::byte* out) const { return out + header_bytes_ - udp::kBytes; }

  std::array<std::byte, kUdpHeaderBytesMax> bytes_{};  // the headers; lengths and checksums are 0
  uint32_t header_bytes_ = 0;
  uint32_t link_bytes_ = 0;
  uint32_t ipv4_sum_ = 0;       // sum of the IPv4 header in bytes_
  uint32_t addresses_sum_ = 0;  // sum of the pseudo-header without the length
  bool ipv6_ = false;
};

// --- per packet ---

inline void UdpHeader::write(std::byte* out, uint32_t udp_payload_bytes) const {
  // Two overlapping copies of fixed size cover every length from 42 to 66 without a branch.
  static_assert(kUdpHeaderBytesMin == 42 && kUdpHeaderBytesMax == 66);
  PBOX_DCHECK(header_bytes_ >= kUdpHeaderBytesMin);  // it comes from make()
  PBOX_DCHECK(out != nullptr && header_bytes_ <= kUdpHeaderBytesMax);
  PBOX_DCHECK(link_bytes_ >= ethernet::kBytes && link_bytes_ < header_bytes_);
  PBOX_DCHECK(header_bytes_ - link_bytes_ + udp_payload_bytes <= UINT16_MAX);
  std::memcpy(out, bytes_.data(), 34);
  std::memcpy(out + header_bytes_ - 32, bytes_.data() + header_bytes_ - 32, 32);

  const auto udp_bytes = static_cast<uint16_t>(udp::kBytes + udp_payload_bytes);
  std::byte* ip = out + link_bytes_;
  if (ipv6_) {
    store16(ip + ipv6::kPayloadLength, udp_bytes);
  } else {
    const auto packet_bytes = static_cast<uint16_t>(ipv4::kBytes + udp_bytes);
    store16(ip + ipv4::kTotalLength, packet_bytes);
    const uint16_t checksum = ~fold(ipv4_sum_ + word_of(packet_bytes));
    std::memcpy(ip + ipv4::kChecksum, &checksum, sizeof(checksum));
  }
  store16(udp_header(out) + udp::kLength, udp_bytes);
}

inline void UdpHeader::set_pseudo_checksum(std::byte* out) const {
  PBOX_DCHECK(header_bytes_ >= kUdpHeaderBytesMin);
  const uint16_t sum = fold(pseudo_sum(udp_header(out)));
  std::memcpy(udp_header(out) + udp::kChecksum, &sum, sizeof(sum));
}

}  // namespace pbox::nic
