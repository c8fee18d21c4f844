#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "tests/unit/nic/ethernet/ethernet_frames_ip.h"
#include "tests/unit/nic/ethernet/ethernet_frames_link.h"

namespace pbox::nic {
namespace {

const GoldenFrame& golden(const std::string& description) {
  for (const auto& frame : kIpFrames) {
    if (frame.description == description) return frame;
  }
  FAIL("no frame '" << description << "'");
  return kIpFrames[0];
}

// Replaces bytes of a frame and corrects the IPv4 header's checksum.
Bytes changed(const GoldenFrame& original, size_t at, const std::string& hex) {
  Bytes frame = from_hex(original.hex);
  const Bytes bytes = from_hex(hex);
  std::copy(bytes.begin(), bytes.end(), frame.begin() + static_cast<ptrdiff_t>(at));
  constexpr size_t kHeader = ethernet::kBytes;
  store16(&frame[kHeader + ipv4::kChecksum], 0);
  const Bytes header(frame.begin() + kHeader, frame.begin() + kHeader + ipv4::kBytes);
  store16(&frame[kHeader + ipv4::kChecksum], static_cast<uint16_t>(~reference_sum(header)));
  return frame;
}

template <typename Table, typename Check>
void for_each_frame(const Table& table, Check check) {
  for (const GoldenFrame& frame : table) {
    INFO(frame.description);
    check(frame, make_interface(frame.vlan));
  }
}

template <typename Check>
void for_each_frame(Check check) {
  for_each_frame(kLinkFrames, check);
  for_each_frame(kIpFrames, check);
}

}  // namespace

TEST_CASE("each golden frame gets its verdict") {
  std::set<Verdict> seen;
  for_each_frame([&](const GoldenFrame& frame, const Interface& interface) {
    const Verdict verdict = verdict_of(from_hex(frame.hex), interface);
    CHECK(std::string(reason(verdict)) == reason(frame.verdict));
    seen.insert(verdict);
  });
  CHECK(seen.size() == kVerdictCount);
}

TEST_CASE("a datagram has its payload without padding, and its sender") {
  for_each_frame(kIpFrames, [](const GoldenFrame& frame, const Interface& interface) {
    if (frame.verdict != Verdict::kUdp) return;
    const Bytes bytes = from_hex(frame.hex);
    RxPacket datagram;
    REQUIRE(verdict_of(bytes, interface, datagram) == Verdict::kUdp);
    const bool ipv6 = datagram.from.ipv6;
    CHECK(datagram.from == *parse_endpoint(ipv6 ? "fd00::2" : "10.0.0.2", 4000));
    CHECK(datagram.to == parse_endpoint(ipv6 ? "fd00::1" : "10.0.0.1", 0)->address);
    CHECK(datagram.to_port == (ipv6 ? 9543 : 9542));
    REQUIRE(datagram.bytes == 9);
    CHECK(Bytes(datagram.data, datagram.data + 9) == from_hex("010203040506070809"));
  });
}

TEST_CASE("no truncated frame gets the verdict of the whole") {
  for_each_frame([](const GoldenFrame& frame, const Interface& interface) {
    const Bytes whole = from_hex(frame.hex);
    RxPacket datagram;
    // Only padding may be cut without a change of the verdict.
    bool cut_into = false;
    for (size_t length = whole.size(); length-- > 0;) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
      const Verdict verdict = verdict_of(cut, interface, datagram);
      if (verdict != frame.verdict) cut_into = true;
      if (cut_into && frame.verdict <= Verdict::kPathMtu) REQUIRE(verdict > Verdict::kPathMtu);
      if (length < ethernet::kBytes) REQUIRE(verdict == Verdict::kMalformed);
    }
    CHECK((cut_into || frame.verdict == Verdict::kMalformed));
  });
}

TEST_CASE("every flipped bit of a datagram over IPv4 is detected, except in its source MAC") {
  const Bytes frame = from_hex(golden("datagram").hex);
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    Bytes flipped = frame;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    const bool sender = bit / 8 >= ethernet::kSource && bit / 8 < ethernet::kType;
    const bool group_bit = bit == ethernet::kSource * 8;
    INFO("bit " << bit);
    CHECK((verdict_of(flipped, make_interface()) == Verdict::kUdp) == (sender && !group_bit));
  }
}

TEST_CASE("each field of a datagram over IPv4 is checked, even with a correct checksum") {
  constexpr size_t kIp = ethernet::kBytes;
  constexpr size_t kUdp = kIp + ipv4::kBytes;
  const struct {
    const char* description;
    size_t at;
    const char* hex;
    Verdict verdict;
  } cases[] = {
      {"version 5", kIp, "55", Verdict::kMalformed},
      {"header of 16 bytes", kIp, "44", Verdict::kMalformed},
      {"options", kIp, "46", Verdict::kMalformed},
      {"longer than the frame", kIp + ipv4::kTotalLength, "0026", Verdict::kMalformed},
      {"shorter than the datagram", kIp + ipv4::kTotalLength, "0024", Verdict::kMalformed},
      {"shorter than a UDP header", kIp + ipv4::kTotalLength, "001b", Verdict::kMalformed},
      {"shorter than an IP header", kIp + ipv4::kTotalLength, "0013", Verdict::kMalformed},
      {"length 0", kIp + ipv4::kTotalLength, "0000", Verdict::kMalformed},
      {"reserved flag", kIp + ipv4::kFragment, "8000", Verdict::kMalformed},
      {"may be fragmented", kIp + ipv4::kFragment, "0000", Verdict::kUdp},
      {"more fragments", kIp + ipv4::kFragment, "2000", Verdict::kFragment},
      {"last fragment", kIp + ipv4::kFragment, "0001", Verdict::kFragment},
      {"another type of service", kIp + 1, "ff", Verdict::kUdp},
      {"TTL 1", kIp + ipv4::kTimeToLive, "01", Verdict::kUdp},
      {"TCP", kIp + ipv4::kProtocol, "06", Verdict::kProtocol},
      {"UDP-Lite", kIp + ipv4::kProtocol, "88", Verdict::kProtocol},
      {"to another host", kIp + ipv4::kDestination, "0a000003", Verdict::kNotForUs},
      {"to the network's broadcast address", kIp + ipv4::kDestination, "0a0000ff",
       Verdict::kNotForUs},
      {"to broadcast", kIp + ipv4::kDestination, "ffffffff", Verdict::kNotForUs},
      {"from the network's broadcast address", kIp + ipv4::kSource, "0a0000ff", Verdict::kSource},
      {"from broadcast", kIp + ipv4::kSource, "ffffffff", Verdict::kSource},
      {"from a group", kIp + ipv4::kSource, "e0000001", Verdict::kSource},
      {"from the unspecified address", kIp + ipv4::kSource, "00000000", Verdict::kSource},
      {"from loopback", kIp + ipv4::kSource, "7f000001", Verdict::kSource},
      {"from ourselves", kIp + ipv4::kSource, "0a000001", Verdict::kSource},
      {"from another address than summed", kIp + ipv4::kSource, "0a000003", Verdict::kChecksum},
      {"from port 0", kUdp + udp::kSourcePort, "0000", Verdict::kSource},
      {"to the port below", kUdp + udp::kDestinationPort, "2545", Verdict::kUdpPort},
      {"to the port above", kUdp + udp::kDestinationPort, "2548", Verdict::kUdpPort},
      {"to the other port, not summed so", kUdp + udp::kDestinationPort, "2547",
       Verdict::kChecksum},
      {"UDP length one less", kUdp + udp::kLength, "0010", Verdict::kMalformed},
      {"UDP length one more", kUdp + udp::kLength, "0012", Verdict::kMalformed},
      {"UDP length 0", kUdp + udp::kLength, "0000", Verdict::kMalformed},
      {"no UDP checksum", kUdp + udp::kChecksum, "0000", Verdict::kUdp},
      {"another UDP checksum", kUdp + udp::kChecksum, "ffff", Verdict::kChecksum},
  };
  for (const auto& [description, at, hex, verdict] : cases) {
    INFO(description);
    const Bytes frame = changed(golden("datagram"), at, hex);
    CHECK(std::string(reason(verdict_of(frame, make_interface()))) == reason(verdict));
  }
}

TEST_CASE("each field of a datagram over IPv6 is checked") {
  constexpr size_t kIp = ethernet::kBytes;
  constexpr size_t kUdp = kIp + ipv6::kBytes;
  const struct {
    const char* description;
    size_t at;
    const char* hex;
    Verdict verdict;
  } cases[] = {
      {"version 4", kIp, "40", Verdict::kMalformed},
      {"traffic class and flow label", kIp, "6fffffff", Verdict::kUdp},
      {"longer than the frame", kIp + ipv6::kPayloadLength, "0012", Verdict::kMalformed},
      {"shorter than the datagram", kIp + ipv6::kPayloadLength, "0010", Verdict::kMalformed},
      {"a jumbogram", kIp + ipv6::kPayloadLength, "0000", Verdict::kMalformed},
      {"no next header", kIp + ipv6::kNextHeader, "3b", Verdict::kProtocol},
      {"a fragment", kIp + ipv6::kNextHeader, "2c", Verdict::kFragment},
      {"hop limit 1", kIp + ipv6::kHopLimit, "01", Verdict::kUdp},
      {"from a group", kIp + ipv6::kSource, "ff", Verdict::kSource},
      {"from ourselves", kIp + ipv6::kSource + 15, "01", Verdict::kSource},
      {"from ::2", kIp + ipv6::kSource, "0000", Verdict::kSource},
      {"from another than summed", kIp + ipv6::kSource + 15, "03", Verdict::kChecksum},
      {"to another host", kIp + ipv6::kDestination + 15, "03", Verdict::kNotForUs},
      {"to a group", kIp + ipv6::kDestination, "ff02", Verdict::kNotForUs},
      {"from port 0", kUdp + udp::kSourcePort, "0000", Verdict::kSource},
      {"to another port", kUdp + udp::kDestinationPort, "2548", Verdict::kUdpPort},
      {"UDP length one less", kUdp + udp::kLength, "0010", Verdict::kMalformed},
      {"another UDP checksum", kUdp + udp::kChecksum, "ffff", Verdict::kChecksum},
  };
  for (const auto& [description, at, hex, verdict] : cases) {
    INFO(description);
    Bytes frame = from_hex(golden("datagram, IPv6").hex);
    const Bytes bytes = from_hex(hex);
    std::copy(bytes.begin(), bytes.end(), frame.begin() + static_cast<ptrdiff_t>(at));
    CHECK(std::string(reason(verdict_of(frame, make_interface()))) == reason(verdict));
  }
}

TEST_CASE("only the checksums that the NIC has verified are not verified again") {
  RxPacket datagram;
  const Interface interface = make_interface();
  Bytes bad_udp = from_hex(golden("datagram").hex);
  bad_udp.back() ^= std::byte{1};
  CHECK(verdict_of(bad_udp, interface, datagram, {.ip_good = true}) == Verdict::kChecksum);
  CHECK(verdict_of(bad_udp, interface, datagram, {.udp_good = true}) == Verdict::kUdp);

  Bytes bad_ip = from_hex(golden("datagram").hex);
  bad_ip[ethernet::kBytes + ipv4::kTimeToLive] ^= std::byte{1};
  CHECK(verdict_of(bad_ip, interface, datagram, {.udp_good = true}) == Verdict::kChecksum);
  CHECK(verdict_of(bad_ip, interface, datagram, {.ip_good = true}) == Verdict::kUdp);

  const Bytes unsummed = from_hex(golden("datagram without a checksum, IPv6").hex);
  CHECK(verdict_of(unsummed, interface, datagram, {true, true}) == Verdict::kChecksum);
}

TEST_CASE("exactly the ports of the range are served") {
  const UdpPorts top{.first = 65535, .count = 1};
  CHECK(top.serves(65535));
  CHECK_FALSE(top.serves(65534));
  CHECK_FALSE(top.serves(0));
  CHECK_FALSE(UdpPorts{}.serves(0));
}

TEST_CASE("the path MTU and its destination are read from the router's message") {
  const auto read = [](const char* description) {
    return read_path_mtu(from_hex(golden(description).hex), make_interface(), kOwnMac, kPorts);
  };
  const auto four = read("fragmentation needed");
  REQUIRE(four);
  CHECK(four->to == *parse_endpoint("192.0.2.9", 4000));
  CHECK(four->mtu == 1400);
  const auto six = read("packet too big");
  REQUIRE(six);
  CHECK(six->to == *parse_endpoint("2001:db8::9", 4000));
  CHECK(six->mtu == 1400);
  CHECK_FALSE(read("fragmentation needed without a width"));
  CHECK_FALSE(read("datagram"));
}

TEST_CASE("a claim has a peer on the link and the MAC that sent it, and marks requests to us") {
  for_each_frame([](const GoldenFrame& frame, const Interface& interface) {
    const auto claim = read_claim(from_hex(frame.hex), interface, kOwnMac);
    if (frame.verdict != Verdict::kLearn && frame.verdict != Verdict::kAnswer) {
      CHECK_FALSE(claim);
    } else if (claim) {
      CHECK((claim->address == ip("10.0.0.2") || claim->address == ip("fd00::2") ||
             claim->address == ip("fe80::ff:fe00:2")));
      CHECK(claim->mac == kPeerMac);
      CHECK(claim->is_request_to_us == (frame.verdict == Verdict::kAnswer));
    } else {
      CHECK(frame.verdict == Verdict::kAnswer);  // an echo, or from the unspecified address
    }
  });
}

}  // namespace pbox::nic
