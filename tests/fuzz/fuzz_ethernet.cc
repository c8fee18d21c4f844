// Gives any frames to an Ethernet host. Each frame must get a verdict, and nothing outside of it
// may be read. Answers must have a bounded length and go to the station that asked, which must
// accept them. The neighbour table must hold unicast addresses only.
//
// Input: a byte for the interface (1: VLAN 5), then frames. Each frame is a byte of options (1: the
// NIC has verified its checksums, 2: addressed to this host, 4: its checksums are repaired, 8: it
// arrives 50 s later, 0xf0: the link), a length of 16 bits, and that many bytes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "nic/ethernet/answer.h"
#include "nic/ethernet/neighbours.h"
#include "tests/fuzz/input.h"

namespace pbox::fuzz {
namespace {

using namespace pbox::nic;
using Frame = std::vector<std::byte>;

constexpr MacAddress kOwnMac = {2, 0, 0, 0, 0, 1};
constexpr UdpPorts kPorts = {.first = 9542, .count = 2};
constexpr uint64_t kPauseNs = 50'000'000'000;

Interface make_interface(uint16_t vlan) {
  return {.addresses = {*parse_interface_address("10.0.0.1/24"),
                        *parse_interface_address("fd00::1/64")},
          .gateway4 = std::nullopt,
          .gateway6 = std::nullopt,
          .vlan = vlan};
}

MacAddress mac_at(const std::byte* at) {
  MacAddress mac;
  std::memcpy(mac.data(), at, mac.size());
  return mac;
}

// Repairs a checksum, so that the checks after it are reached. `before`: a pseudo-header's sum.
void repair_sum(std::byte* bytes, size_t count, size_t field, uint64_t before) {
  store16(bytes + field, 0);
  const uint16_t checksum = ~fold(before + sum_words({bytes, count}));
  std::memcpy(bytes + field, &checksum, sizeof(checksum));
}

void repair_transport(std::byte* bytes, size_t count, std::byte protocol, uint64_t before) {
  if (protocol == protocol::kUdp && count >= udp::kBytes) {
    repair_sum(bytes, count, udp::kChecksum, before);
  } else if (count >= icmp::kBytes) {
    repair_sum(bytes, count, icmp::kChecksum, protocol == protocol::kIcmp ? 0 : before);
  }
}

void repair(Frame& frame, const Interface& interface) {
  const size_t header_bytes = ethernet_bytes(interface);
  if (frame.size() < header_bytes + ipv4::kBytes) return;
  std::byte* ip = frame.data() + header_bytes;
  const size_t left = frame.size() - header_bytes;
  const uint16_t type = load16(ip - 2);
  if (type == ethernet::kTypeIpv4) {
    const size_t bytes = load16(ip + ipv4::kTotalLength);
    repair_sum(ip, ipv4::kBytes, ipv4::kChecksum, 0);
    if (bytes < ipv4::kBytes || bytes > left) return;
    const size_t carried = bytes - ipv4::kBytes;
    const std::byte protocol = ip[ipv4::kProtocol];
    repair_transport(ip + ipv4::kBytes, carried, protocol,
                     pseudo_header_sum<kIpv4AddressesBytes>(ip + ipv4::kSource, protocol, carried));
  } else if (type == ethernet::kTypeIpv6 && left >= ipv6::kBytes) {
    const size_t carried = load16(ip + ipv6::kPayloadLength);
    if (ipv6::kBytes + carried > left) return;
    const std::byte protocol = ip[ipv6::kNextHeader];
    repair_transport(ip + ipv6::kBytes, carried, protocol,
                     pseudo_header_sum<kIpv6AddressesBytes>(ip + ipv6::kSource, protocol, carried));
  }
}

void check_datagram(const Frame& frame, const RxPacket& datagram, const Interface& interface) {
  PBOX_CHECK(datagram.data >= frame.data() + udp::kBytes);
  PBOX_CHECK(datagram.data + datagram.bytes <= frame.data() + frame.size());
  PBOX_CHECK(kPorts.serves(datagram.to_port) && datagram.from.port != 0);
  PBOX_CHECK(interface.is_peer(ip_address(datagram.from), kOwnMac));
}

// Checks that the asking host would accept the reply. The host has the address that the reply goes
// to or, if it asked without an address, some other one.
void check_answer(const Frame& request, const Frame& reply, const Interface& interface) {
  PBOX_CHECK(reply.size() <= std::max(request.size(), kAnswerBytesMin));
  const MacAddress asker = mac_at(request.data() + ethernet::kSource);
  PBOX_CHECK(is_unicast(asker) && mac_at(reply.data()) == asker);
  PBOX_CHECK(mac_at(reply.data() + ethernet::kSource) == kOwnMac);
  const size_t header_bytes = ethernet_bytes(interface);
  const std::byte* packet = reply.data() + header_bytes;
  const uint16_t type = load16(packet - 2);
  IpAddress to = type == ethernet::kTypeArp    ? ipv4_address(packet + arp::kTargetIp)
                 : type == ethernet::kTypeIpv4 ? ipv4_address(packet + ipv4::kDestination)
                                               : ipv6_address(packet + ipv6::kDestination);
  const bool probe = to == IpAddress{};
  if (to == all_nodes_address()) to = ip_address(*parse_endpoint("fd00::9", 0));
  Interface askers{.addresses = {{.address = to, .prefix_length = 0}},
                   .gateway4 = std::nullopt,
                   .gateway6 = std::nullopt,
                   .vlan = interface.vlan};
  const Verdict verdict = classify_other(reply, askers, asker, {});
  // An echo reply passes all checks except the protocol's. The answer to an ARP probe has no target
  // address.
  PBOX_CHECK(verdict == Verdict::kLearn || verdict == Verdict::kProtocol || probe);
}

void check_neighbour(NeighbourTable& table, const IpAddress& address, const Interface& interface,
                     uint64_t now_ns) {
  const NeighbourLookup found = table.lookup(address, now_ns);
  PBOX_CHECK(!found.neighbour || is_unicast(found.neighbour->mac));
  PBOX_CHECK(found.neighbour || found.solicit != Solicit::kUnicast);
  if (found.solicit == Solicit::kNone) return;
  Frame frame(kAnswerBytesMin);
  std::optional<MacAddress> known;
  if (found.solicit == Solicit::kUnicast) known = found.neighbour->mac;
  frame.resize(solicit(address, known, interface, kOwnMac, frame));
  PBOX_CHECK(frame.size() >= ethernet::kFrameBytesMin);
  // The neighbour must answer the solicitation.
  const Interface its{.addresses = {{.address = address, .prefix_length = 0}},
                      .gateway4 = std::nullopt,
                      .gateway6 = std::nullopt,
                      .vlan = interface.vlan};
  const MacAddress its_mac = known.value_or(MacAddress{2, 0, 0, 0, 0, 9});
  PBOX_CHECK(classify_other(frame, its, its_mac, {}) == Verdict::kAnswer);
}

class Host {
 public:
  explicit Host(uint16_t vlan) : interface_(make_interface(vlan)) {}

  void receive(Input& input) {
    const uint8_t options = input.byte();
    Frame frame = input.bytes(input.number<uint16_t>());
    if ((options & 2) != 0 && frame.size() >= kOwnMac.size()) {
      std::memcpy(frame.data(), kOwnMac.data(), kOwnMac.size());
    }
    if ((options & 4) != 0) repair(frame, interface_);
    if ((options & 8) != 0) now_ns_ += kPauseNs;
    const bool verified = (options & 1) != 0;

    RxPacket datagram;
    const Verdict verdict = classify(frame, interface_, kOwnMac, kPorts,
                                     {.ip_good = verified, .udp_good = verified}, datagram);
    PBOX_CHECK(static_cast<size_t>(verdict) < kVerdictCount);
    PBOX_CHECK(std::strcmp(reason(verdict), "unknown") != 0);
    if (verdict == Verdict::kUdp) check_datagram(frame, datagram, interface_);
    const auto path_mtu = read_path_mtu(frame, interface_, kOwnMac, kPorts);
    PBOX_CHECK(path_mtu.has_value() == (verdict == Verdict::kPathMtu));
    PBOX_CHECK(!path_mtu || path_mtu->mtu < interface_.mtu);
    answer_to(frame, verdict);
    learn_from(frame, verdict, options >> 4);
  }

 private:
  void answer_to(const Frame& frame, Verdict verdict) {
    for (const size_t room : {size_t{0}, kAnswerBytesMin, frame.size(), size_t{66'000}}) {
      Frame reply(room);
      reply.resize(answer(frame, interface_, kOwnMac, reply));
      if (!reply.empty()) {
        PBOX_CHECK(verdict == Verdict::kAnswer);
        check_answer(frame, reply, interface_);
      } else if (room > kAnswerBytesMin && room > frame.size()) {
        PBOX_CHECK(verdict != Verdict::kAnswer || frame.size() > interface_.mtu);
      }
    }
  }

  void learn_from(const Frame& frame, Verdict verdict, uint8_t link) {
    const auto claim = read_claim(frame, interface_, kOwnMac);
    table_.learn(frame, interface_, kOwnMac, link, now_ns_);
    if (!claim) return;
    PBOX_CHECK(verdict == Verdict::kLearn || verdict == Verdict::kAnswer);
    PBOX_CHECK(claim->mac == mac_at(frame.data() + ethernet::kSource));
    PBOX_CHECK(interface_.is_on_link(claim->address));
    PBOX_CHECK(interface_.next_hop(claim->address, kOwnMac) == claim->address);
    check_neighbour(table_, claim->address, interface_, now_ns_);
  }

  const Interface interface_;
  NeighbourTable table_;
  uint64_t now_ns_ = kPauseNs;
};

}  // namespace
}  // namespace pbox::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pbox::fuzz::Input input(data, size);
  pbox::fuzz::Host host((input.byte() & 1) != 0 ? 5 : 0);
  while (!input.empty()) host.receive(input);
  return 0;
}
