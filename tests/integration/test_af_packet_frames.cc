// The box as a host on its network, live: it answers ARP, neighbour discovery and pings, counts
// invalid frames by reason without answering them, and accepts frames of its own VLAN only.
#include <arpa/inet.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "nic/ethernet/answer.h"
#include "nic/ethernet/transmit.h"
#include "nic/socket/address.h"
#include "tests/support/sums.h"
#include "tests/support/veth.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using nic::MacAddress;

constexpr int kAnswerMs = 2'000;
constexpr int kSilenceMs = 300;
constexpr char kBothFamilies[] = "10.77.0.1/24 fd77::1/64";
constexpr char kWorkerAddress6[] = "fd77::2";

MacAddress mac_of(const std::string& bytes) {
  MacAddress mac;
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(mac.data()));
  return mac;
}

// Sends one echo request through the kernel. Returns whether the same bytes come back.
bool ping(const std::string& address, size_t bytes) {
  const bool ipv6 = address.find(':') != std::string::npos;
  const int fd = ipv6 ? socket(AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMPV6)
                      : socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
  sockaddr_storage to{};
  const socklen_t length = nic::to_sockaddr(*nic::parse_endpoint(address, 0), to);
  std::string request(sizeof(icmphdr) + bytes, 'e');
  std::fill_n(request.begin(), sizeof(icmphdr), '\0');
  request[0] = static_cast<char>(ipv6 ? ICMP6_ECHO_REQUEST : ICMP_ECHO);
  nic::store16(&request[4], 77);
  // For IPv6 the kernel fills in the checksum.
  const uint16_t checksum = ~nic::fold(nic::sum_words(std::as_bytes(std::span(request))));
  if (!ipv6) std::memcpy(&request[nic::icmp::kChecksum], &checksum, sizeof(checksum));
  bool answered = sendto(fd, request.data(), request.size(), 0, reinterpret_cast<sockaddr*>(&to),
                         length) == static_cast<ssize_t>(request.size());
  while (answered) {
    pollfd wait{fd, POLLIN, 0};
    answered = poll(&wait, 1, kAnswerMs) == 1;
    std::string reply(65'536, '\0');
    const ssize_t got = answered ? recv(fd, reply.data(), reply.size(), 0) : 0;
    reply.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (!ipv6) reply.erase(0, nic::ipv4::kBytes);
    const char type = static_cast<char>(ipv6 ? ICMP6_ECHO_REPLY : ICMP_ECHOREPLY);
    if (reply.size() == request.size() && reply[0] == type &&
        reply.compare(4, std::string::npos, request, 4, std::string::npos) == 0) {
      break;
    }
  }
  close(fd);
  return answered;
}

// Returns the kernel's neighbour entry, as text.
std::string neighbour(const std::string& address) {
  Program program("ip", {"neigh", "show", "to", address});
  return program.read_line(kDeadlineMs).value_or("none");
}

// A station with the workers' interface, which sends frames to the box's interface.
class Station {
 public:
  Station()
      : socket_(Veth::kWorkerInterface),
        own_(mac_of(socket_.mac())),
        box_(mac_of(FrameSocket(Veth::kBoxInterface).mac())) {}

  const FrameSocket& socket() const { return socket_; }
  const MacAddress& own() const { return own_; }
  const MacAddress& box() const { return box_; }

  // Returns a valid frame to the box with a UDP payload of 64 bytes that is not a PBox packet.
  std::string udp(const std::string& from, const std::string& to, uint16_t port = 9542) const {
    const auto header =
        nic::UdpHeader::make({.own_mac = own_,
                              .next_hop_mac = box_,
                              .own_address = nic::ip_address(*nic::parse_endpoint(from, 0)),
                              .own_port = 5'555,
                              .remote = *nic::parse_endpoint(to, port)});
    const std::string payload(64, 'p');
    std::string frame(header.header_bytes() + payload.size(), '\0');
    auto* out = reinterpret_cast<std::byte*>(frame.data());
    header.write(out, static_cast<uint32_t>(payload.size()));
    std::copy(payload.begin(), payload.end(), frame.end() - static_cast<long>(payload.size()));
    header.set_udp_checksum(out, {std::as_bytes(std::span(payload))});
    return frame;
  }
  std::string udp4(uint16_t port = 9542) const {
    return udp(Veth::kWorkerAddress, Veth::kBoxAddress, port);
  }
  std::string udp6() const { return udp(kWorkerAddress6, Veth::kBoxAddress6); }

 private:
  FrameSocket socket_;
  MacAddress own_, box_;
};

std::string changed(std::string frame, size_t at, const std::string& bytes) {
  return frame.replace(at, bytes.size(), bytes);
}

struct Garbage {
  std::string what;
  std::string frame;
  std::string reason;
};

std::vector<Garbage> garbage(const Station& station) {
  constexpr size_t kIp = nic::ethernet::kBytes;
  const std::string v4 = station.udp4(), v6 = station.udp6();
  return {
      {"to another MAC", changed(v4, 0, "\x02pbox!"), "not_for_us"},
      {"to another address", station.udp(Veth::kWorkerAddress, "10.77.0.9"), "not_for_us"},
      {"an unknown ethertype", changed(v4, nic::ethernet::kType, "\x88\xb5"), "not_ip"},
      {"in a VLAN", with_tag(v4, 7), "vlan"},
      {"cut off within the IP packet", v4.substr(0, v4.size() - 20), "malformed"},
      {"with options", changed(v4, kIp, "\x46"), "malformed"},
      {"an IPv6 fragment", changed(v6, kIp + nic::ipv6::kNextHeader, "\x2c"), "fragment"},
      {"a wrong IP checksum", changed(v4, kIp + nic::ipv4::kChecksum, "xy"), "checksum"},
      {"a wrong UDP checksum", changed(v4, v4.size() - 2, "xy"), "checksum"},
      {"TCP", changed(v6, kIp + nic::ipv6::kNextHeader, "\x06"), "protocol"},
      {"to a port that is not served", station.udp4(9'999), "udp_port"},
      {"from a broadcast address", station.udp("10.77.0.255", Veth::kBoxAddress), "source"},
  };
}

uint64_t dropped(const Daemon& daemon, const std::string& reason = "") {
  const std::string label = reason.empty() ? "" : "reason=\"" + reason + "\"";
  return daemon.metric("pbox_port_dropped_frames_total", label);
}

bool await_dropped(const Daemon& daemon, uint64_t count, const std::string& reason = "") {
  for (int waited_ms = 0; waited_ms < kDeadlineMs; waited_ms += 10) {
    if (dropped(daemon, reason) >= count) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("pings are answered in both families, and the kernel learns the box's MAC") {
  Veth veth;
  Daemon daemon(veth.box_arguments(2, "", kBothFamilies));
  const std::string mac = nic::to_string(mac_of(FrameSocket(Veth::kBoxInterface).mac()));
  for (const std::string address : {Veth::kBoxAddress, Veth::kBoxAddress6}) {
    CAPTURE(address);
    for (const size_t bytes : {0, 56, 8'000}) CHECK(ping(address, bytes));
    CHECK_THAT(neighbour(address), Contains(mac));
  }
  CHECK(daemon.metric("pbox_port_answers_total") >= 6 + 2);
}

TEST_CASE(
    "an ARP request for the box's address is answered to its sender, other requests are not") {
  Veth veth;
  Daemon daemon(veth.box_arguments(1));
  const Station station;
  nic::Interface own;
  own.addresses = {*nic::parse_interface_address("10.77.0.2/24")};
  const auto ask = [&](const std::string& address) {
    std::string frame(nic::kAnswerBytesMin, '\0');
    frame.resize(nic::solicit(nic::ip_address(*nic::parse_endpoint(address, 0)), std::nullopt, own,
                              station.own(), std::as_writable_bytes(std::span(frame))));
    station.socket().send(frame);
  };
  ask("10.77.0.9");
  CHECK_FALSE(station.socket().receive(kSilenceMs));
  ask(Veth::kBoxAddress);
  const auto reply = station.socket().receive(kAnswerMs);
  REQUIRE(reply);
  const char* arp = reply->bytes.data() + nic::ethernet::kBytes;
  CHECK(reply->bytes.substr(0, 6) == station.socket().mac());
  CHECK(nic::load16(arp + nic::arp::kOperation) == nic::arp::kReply);
  CHECK(std::memcmp(arp + nic::arp::kSenderMac, station.box().data(), 6) == 0);
}

TEST_CASE("invalid frames are counted by reason and not answered, and sums are right afterwards") {
  Veth veth;
  Daemon daemon(veth.box_arguments(2, "", kBothFamilies));
  const Station station;
  CHECK(ping(Veth::kBoxAddress6, 8));  // the kernel has sent its own IPv6 frames by now
  for (const Garbage& each : garbage(station)) {
    INFO(each.what);
    while (station.socket().receive(0)) {
    }
    const uint64_t before = dropped(daemon, each.reason);
    for (int count = 0; count < 5; ++count) station.socket().send(each.frame);
    CHECK(await_dropped(daemon, before + 5, each.reason));
    CHECK_FALSE(station.socket().receive(kSilenceMs));
  }
  const uint64_t before = dropped(daemon);
  Rng rng(5);
  constexpr int kFrames = 2'000;
  for (int count = 0; count < kFrames; ++count) {
    std::string frame = station.udp4().substr(0, nic::ethernet::kBytes);
    const uint64_t bytes = 10 + rng.below(1'400);
    for (uint64_t index = 0; index < bytes; ++index) frame += static_cast<char>(rng.below(256));
    // Half of the frames pass for IPv4. Fragments do not reach the box, because the kernel
    // reassembles them for af_packet.
    if (count % 2 == 0) frame = changed(frame, nic::ethernet::kBytes, "\x45");
    frame = changed(frame, nic::ethernet::kBytes + nic::ipv4::kFragment, {'\0', '\0'});
    station.socket().send(frame);
    if (count % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(await_dropped(daemon, before + kFrames));
  CHECK_FALSE(station.socket().receive(kSilenceMs));
  CHECK(daemon.metric("pbox_rx_packets_total") == 0);
  const auto outcome = run_sums({.box = daemon.control(), .workers = 2, .as_nobody = true});
  CHECK(outcome.failure == "");
}

TEST_CASE("a valid UDP packet that is not a PBox packet is rejected and not answered") {
  Veth veth;
  Daemon daemon(veth.box_arguments(1, "", kBothFamilies));
  const Station station;
  station.socket().send(station.udp4());
  station.socket().send(station.udp6());
  for (int waited_ms = 0; waited_ms < kDeadlineMs; waited_ms += 10) {
    if (daemon.metric("pbox_rejected_packets_total") == 2) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(daemon.metric("pbox_rejected_packets_total") == 2);
  while (const auto frame = station.socket().receive(kSilenceMs)) {
    CHECK(nic::load16(frame->bytes.data() + nic::ethernet::kType) != nic::ethernet::kTypeIpv4);
  }
}

TEST_CASE("a box in a VLAN serves workers in that VLAN and nobody without the tag") {
  Veth veth({.mtu = 1500, .wire = WireOptions{.vlan = 100}});
  Daemon daemon(veth.box_arguments(2, "", "10.77.0.1/24 vlan=100"));
  const auto outcome =
      run_sums({.box = daemon.control(), .workers = 3, .rounds = 6, .as_nobody = true});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(dropped(daemon, "vlan") == 0);
  FrameSocket("wire0").send(Station().udp4());
  CHECK(await_dropped(daemon, 1, "vlan"));
}

}  // namespace pbox::test
