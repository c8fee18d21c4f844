#include <algorithm>
#include <catch2/catch.hpp>

#include "base/rng.h"
#include "nic/ethernet/transmit.h"
#include "tests/unit/nic/ethernet/ethernet_host.h"

namespace pbox::nic {
namespace {

// Headers from the peer's port 4000 to our port, so that we can classify what we wrote.
UdpHeader header_to_us(bool ipv6, uint16_t vlan) {
  return UdpHeader::make({.own_mac = kPeerMac,
                          .next_hop_mac = kOwnMac,
                          .own_address = ip(ipv6 ? "fd00::2" : "10.0.0.2"),
                          .own_port = 4000,
                          .remote = *parse_endpoint(ipv6 ? "fd00::1" : "10.0.0.1", 9542),
                          .vlan = vlan});
}

Bytes random_payload(size_t bytes, Rng& rng) {
  Bytes payload(bytes);
  for (std::byte& byte : payload) byte = static_cast<std::byte>(rng.next());
  return payload;
}

// Returns headers and payload in a block of exactly their size.
Bytes packet_of(const UdpHeader& header, const Bytes& payload) {
  Bytes frame(header.header_bytes() + payload.size(), std::byte{0xee});
  std::copy(payload.begin(), payload.end(), frame.begin() + header.header_bytes());
  header.write(frame.data(), static_cast<uint32_t>(payload.size()));
  return frame;
}

}  // namespace

TEST_CASE("headers are written byte for byte") {
  CHECK(packet_of(header_to_us(false, 0), Bytes(9)) ==
        from_hex("020000000001 020000000002 0800 4500 0025 0000 4000 40 11 26c6 0a000002 0a000001"
                 "0fa0 2546 0011 0000 000000000000000000"));
  CHECK(packet_of(header_to_us(true, 5), Bytes(1)) ==
        from_hex("020000000001 020000000002 81000005 86dd 60000000 0009 11 40"
                 "fd000000000000000000000000000002 fd000000000000000000000000000001"
                 "0fa0 2546 0009 0000 00"));
}

TEST_CASE("each header layer has its stated length") {
  const struct {
    bool ipv6;
    uint16_t vlan;
    uint32_t link_bytes, ip_bytes;
  } cases[] = {{false, 0, 14, 20}, {false, 5, 18, 20}, {true, 0, 14, 40}, {true, 5, 18, 40}};
  for (const auto& [ipv6, vlan, link_bytes, ip_bytes] : cases) {
    const UdpHeader header = header_to_us(ipv6, vlan);
    CHECK(header.link_bytes() == link_bytes);
    CHECK(header.ip_bytes() == ip_bytes);
    CHECK(header.header_bytes() == link_bytes + ip_bytes + udp::kBytes);
    Bytes room(100, std::byte{0xee});
    header.write(room.data(), 10);
    CHECK(std::all_of(room.begin() + header.header_bytes(), room.end(),
                      [](std::byte byte) { return byte == std::byte{0xee}; }));
  }
}

TEST_CASE("a datagram with a software checksum over any pieces is received") {
  Rng rng(3);
  for (const bool ipv6 : {false, true}) {
    for (const uint16_t vlan : {0, 5}) {
      const UdpHeader header = header_to_us(ipv6, vlan);
      for (int trial = 0; trial < 300; ++trial) {
        const Bytes payload = random_payload(rng.below(200), rng);
        Bytes frame = packet_of(header, payload);
        const std::span<const std::byte> all = payload;
        const size_t first = rng.below(payload.size() + 1);
        const size_t second = first + rng.below(payload.size() - first + 1);
        header.set_udp_checksum(frame.data(), {all.first(first), all.subspan(first, second - first),
                                               all.subspan(second)});
        RxPacket datagram;
        REQUIRE(verdict_of(frame, make_interface(vlan), datagram) == Verdict::kUdp);
        CHECK(datagram.from == *parse_endpoint(ipv6 ? "fd00::2" : "10.0.0.2", 4000));
        CHECK(Bytes(datagram.data, datagram.data + datagram.bytes) == payload);
        frame.back() ^= std::byte{0x10};
        CHECK(verdict_of(frame, make_interface(vlan)) == Verdict::kChecksum);
      }
    }
  }
}

TEST_CASE("a datagram without checksum is received over IPv4 and refused over IPv6") {
  CHECK(verdict_of(packet_of(header_to_us(false, 0), Bytes(8)), make_interface()) == Verdict::kUdp);
  CHECK(verdict_of(packet_of(header_to_us(true, 0), Bytes(8)), make_interface()) ==
        Verdict::kChecksum);
}

TEST_CASE("a checksum of 0 is sent as ffff") {
  for (const bool ipv6 : {false, true}) {
    const UdpHeader header = header_to_us(ipv6, 0);
    size_t zero_count = 0;
    for (uint32_t value = 0; value <= 0xffff; ++value) {
      Bytes payload(2);
      store16(payload.data(), static_cast<uint16_t>(value));
      Bytes frame = packet_of(header, payload);
      header.set_udp_checksum(frame.data(), {payload});
      const uint16_t checksum = load16(&frame[header.header_bytes() - 2]);
      REQUIRE(checksum != 0);
      if (checksum == 0xffff) ++zero_count;
      REQUIRE(verdict_of(frame, make_interface()) == Verdict::kUdp);
    }
    CHECK(zero_count > 0);
  }
}

TEST_CASE("a NIC completes the prepared sum to a correct checksum") {
  Rng rng(4);
  for (const bool ipv6 : {false, true}) {
    const UdpHeader header = header_to_us(ipv6, 0);
    Bytes frame = packet_of(header, random_payload(77, rng));
    header.set_pseudo_checksum(frame.data());
    const auto udp_at = static_cast<ptrdiff_t>(header.header_bytes() - udp::kBytes);
    const Bytes datagram(frame.begin() + udp_at, frame.end());
    store16(&frame[static_cast<size_t>(udp_at) + udp::kChecksum],
            static_cast<uint16_t>(~reference_sum(datagram)));
    CHECK(verdict_of(frame, make_interface()) == Verdict::kUdp);
  }
}

TEST_CASE("the lengths of the longest packet fit their fields") {
  const UdpHeader header = header_to_us(false, 0);
  const Bytes frame = packet_of(header, Bytes(65535 - ipv4::kBytes - udp::kBytes));
  RxPacket datagram;
  REQUIRE(verdict_of(frame, make_interface(), datagram) == Verdict::kUdp);
  CHECK(datagram.bytes == 65507);
}

}  // namespace pbox::nic
