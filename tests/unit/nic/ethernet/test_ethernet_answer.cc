#include <catch2/catch.hpp>

#include "nic/ethernet/answer.h"
#include "tests/unit/nic/ethernet/ethernet_frames_ip.h"
#include "tests/unit/nic/ethernet/ethernet_frames_link.h"

namespace pbox::nic {
namespace {

// Returns the answer, written to a buffer of `room` bytes.
Bytes answer_in(size_t room, const Bytes& request, const Interface& interface) {
  Bytes reply(room, std::byte{0xee});
  reply.resize(answer(request, interface, kOwnMac, reply));
  return reply;
}

Bytes solicited(const char* neighbour, std::optional<MacAddress> known, uint16_t vlan = 0) {
  Bytes frame(kAnswerBytesMin, std::byte{0xee});
  frame.resize(solicit(ip(neighbour), known, make_interface(vlan), kOwnMac, frame));
  return frame;
}

// The interface of the neighbour that is asked.
Interface peer_interface(uint16_t vlan = 0) {
  return {.addresses = {*parse_interface_address("10.0.0.2/24"),
                        *parse_interface_address("fd00::2/64")},
          .gateway4 = {},
          .gateway6 = {},
          .vlan = vlan};
}

template <typename Table>
void check_replies(const Table& table) {
  for (const GoldenFrame& golden : table) {
    INFO(golden.description);
    const Bytes request = from_hex(golden.hex);
    const Bytes reply = answer_in(2000, request, make_interface(golden.vlan));
    CHECK(reply == from_hex(golden.reply));
    CHECK(reply.empty() == (golden.verdict != Verdict::kAnswer));
    CHECK(reply.size() <= std::max(request.size(), kAnswerBytesMin));
  }
}

// Returns an echo request whose IPv4 packet has `packet_bytes` bytes.
Bytes echo_request(size_t packet_bytes) {
  Bytes frame = from_hex("020000000001 020000000002 0800 4500 0000 0000 4000 40 01 0000");
  for (const std::byte byte : from_hex("0a000002 0a000001 0800 0000")) frame.push_back(byte);
  frame.resize(ethernet::kBytes + packet_bytes);
  std::byte* header = frame.data() + ethernet::kBytes;
  store16(header + ipv4::kTotalLength, static_cast<uint16_t>(packet_bytes));
  const Bytes ip_bytes(header, header + ipv4::kBytes);
  store16(header + ipv4::kChecksum, static_cast<uint16_t>(~reference_sum(ip_bytes)));
  store16(header + ipv4::kBytes + icmp::kChecksum, 0xf7ff);  // checksum of type 8 and zeros
  return frame;
}

}  // namespace

TEST_CASE("each golden request gets the expected answer, and other frames get none") {
  check_replies(kLinkFrames);
  check_replies(kIpFrames);
}

TEST_CASE("an answer never exceeds its buffer") {
  const Interface interface = make_interface();
  const Bytes request = echo_request(200);
  CHECK(answer_in(request.size(), request, interface).size() == request.size());
  CHECK(answer_in(request.size() - 1, request, interface).empty());
  const Bytes arp = from_hex(kLinkFrames[0].hex);
  CHECK(answer_in(kAnswerBytesMin, arp, interface).size() == ethernet::kFrameBytesMin);
  CHECK(answer_in(kAnswerBytesMin - 1, arp, interface).empty());
}

TEST_CASE("an echo reply never exceeds the MTU") {
  const Interface interface = make_interface();
  CHECK(answer_in(9000, echo_request(1500), interface).size() == ethernet::kBytes + 1500);
  CHECK(answer_in(9000, echo_request(1501), interface).empty());
}

TEST_CASE("a neighbour is solicited by multicast, or by unicast if its MAC is known") {
  CHECK(solicited("10.0.0.2", {}) ==
        from_hex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a000001"
                 "000000000000 0a000002 000000000000000000000000000000000000"));
  CHECK(solicited("10.0.0.2", kPeerMac, 5) ==
        from_hex("020000000002 020000000001 81000005 0806 0001 0800 06 04 0001 020000000001"
                 "0a000001 000000000000 0a000002 0000000000000000000000000000"));
  CHECK(solicited("fd00::2", {}) ==
        from_hex("3333ff000002 020000000001 86dd 6000000000203aff fd000000000000000000000000000001"
                 "ff0200000000000000000001ff000002 8700 7d97 00000000"
                 "fd000000000000000000000000000002 0101020000000001"));
  // A link-local neighbour is asked from our link-local address, which it can answer.
  const Bytes to_router = solicited("fe80::fe", {});
  CHECK(ipv6_address(to_router.data() + ethernet::kBytes + ipv6::kSource) ==
        link_local_address(kOwnMac));
}

TEST_CASE("a neighbour answers our solicitation, and we learn from the answer") {
  for (const uint16_t vlan : {0, 5}) {
    for (const char* neighbour : {"10.0.0.2", "fd00::2", "fe80::ff:fe00:2"}) {
      for (const bool known : {false, true}) {
        INFO(neighbour << " known " << known << " vlan " << vlan);
        const Bytes request =
            solicited(neighbour, known ? std::optional<MacAddress>(kPeerMac) : std::nullopt, vlan);
        REQUIRE(classify_other(request, peer_interface(vlan), kPeerMac, {}) == Verdict::kAnswer);
        Bytes reply(kAnswerBytesMin);
        reply.resize(answer(request, peer_interface(vlan), kPeerMac, reply));
        REQUIRE(verdict_of(reply, make_interface(vlan)) == Verdict::kLearn);
        const auto claim = read_claim(reply, make_interface(vlan), kOwnMac);
        REQUIRE(claim);
        CHECK(claim->address == ip(neighbour));
        CHECK(claim->mac == kPeerMac);
        CHECK(claim->may_replace);
      }
    }
  }
}

TEST_CASE("nothing is solicited without an address of the family, or in too small a buffer") {
  Interface alone;
  alone.addresses = {*parse_interface_address("10.0.0.1/24")};
  Bytes frame(kAnswerBytesMin);
  CHECK(solicit(ip("fd00::2"), {}, alone, kOwnMac, frame) == 0);
  frame.resize(kAnswerBytesMin - 1);
  CHECK(solicit(ip("10.0.0.2"), {}, alone, kOwnMac, frame) == 0);
}

}  // namespace pbox::nic
