// Real sockets over 127.0.0.1 and ::1, with ports that the kernel chooses.
#include <netinet/in.h>
#include <poll.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <vector>

#include "nic/socket/port.h"
#include "nic/socket/receive_room.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::nic {
namespace {

using Bytes = std::vector<std::byte>;

bool ipv6_here() {
  return SocketPort::open({.local = *parse_endpoint("::1", 0)}).ok();
}

SocketPort open(const std::string& address, std::optional<Endpoint> remote = {},
                bool offload = true) {
  auto port = SocketPort::open(
      {.local = *parse_endpoint(address, 0), .remote = remote, .segmentation_offload = offload});
  REQUIRE(port.ok());
  return std::move(*port);
}

// A burst of packets whose payloads identify them.
class Burst {
 public:
  explicit Burst(const std::vector<uint32_t>& sizes, const Endpoint& to = {}) : to_(to) {
    for (uint32_t index = 0; index < sizes.size(); ++index) {
      auto& payload = payloads_.emplace_back(sizes[index]);
      for (size_t at = 0; at < payload.size(); ++at) {
        payload[at] = static_cast<std::byte>(at * 31 + index);
      }
      TxPacket& packet = packets.emplace_back();
      packet.to = &to_;
      packet.header.packet_number = index;
      packet.header.payload_bytes = static_cast<uint16_t>(sizes[index]);
      packet.payload = payload.data();
      packet.tag.fill(static_cast<std::byte>(index));
    }
  }

  Bytes wire(size_t index) const {
    Bytes bytes(limits::kPacketOverheadBytes + payloads_[index].size());
    std::memcpy(bytes.data(), &packets[index].header, 40);
    std::copy(payloads_[index].begin(), payloads_[index].end(), bytes.begin() + 40);
    std::copy(packets[index].tag.begin(), packets[index].tag.end(), bytes.end() - 16);
    return bytes;
  }

  std::vector<TxPacket> packets;

 private:
  Endpoint to_;
  std::deque<Bytes> payloads_;
};

struct Received {
  std::vector<Bytes> packets;
  std::vector<Endpoint> from;
};

// Receives bursts of `burst_size` until `count` packets have arrived or none arrives for 2 s.
Received receive(SocketPort& port, size_t count, size_t burst_size = 64) {
  Received received;
  std::vector<RxPacket> burst(burst_size);
  while (received.packets.size() < count) {
    const size_t got = port.rx_burst(burst);
    for (size_t index = 0; index < got; ++index) {
      received.packets.emplace_back(burst[index].data, burst[index].data + burst[index].bytes);
      received.from.push_back(burst[index].from);
    }
    pollfd wait{port.event_fd(), POLLIN, 0};
    if (got == 0 && poll(&wait, 1, 2000) == 0) break;
  }
  return received;
}

void require_same(const Received& received, const Burst& burst) {
  REQUIRE(received.packets.size() == burst.packets.size());
  for (size_t index = 0; index < burst.packets.size(); ++index) {
    INFO("packet " << index << " of " << received.packets[index].size() << " bytes");
    REQUIRE((received.packets[index] == burst.wire(index)));
  }
}

void send_all(SocketPort& port, const Burst& burst) {
  REQUIRE(port.tx_burst(burst.packets) == burst.packets.size());
  REQUIRE(port.counters().get(nic::PortCounter::kSendFailures) == 0);
}

std::vector<std::string> families() {
  std::vector<std::string> addresses = {"127.0.0.1"};
  if (ipv6_here()) addresses.emplace_back("::1");
  return addresses;
}

}  // namespace

TEST_CASE("a burst of equal packets arrives whole and in order over both address families") {
  for (const std::string& address : families()) {
    for (const uint32_t size : {1408u, 8192u, 32768u}) {
      INFO(address << " payload " << size);
      SocketPort box = open(address);
      SocketPort worker = open(address, box.local());
      const Burst burst(std::vector<uint32_t>(size == 32768 ? 8 : 32, size));
      send_all(worker, burst);
      const auto received = receive(box, burst.packets.size());
      require_same(received, burst);
      for (const Endpoint& from : received.from) REQUIRE(from == worker.local());
    }
  }
}

TEST_CASE("packets of mixed sizes in one burst keep their boundaries and order") {
  const std::vector<std::vector<uint32_t>> bursts = {
      {1408, 1408, 392, 1408, 1408, 392},  // chunks with a short last fragment
      {392, 1408, 1408, 0, 0, 8, 16, 8},   // growing, empty, tiny
      {8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192},  // more than 64 KiB in total
      {32768, 32768, 8, 32768, 1408, 1408, 1408},
      {0, 0, 0, 0},
  };
  for (const std::string& address : families()) {
    for (const auto& sizes : bursts) {
      for (const bool offload : {true, false}) {
        SocketPort box = open(address, {}, offload);
        SocketPort worker = open(address, box.local(), offload);
        const Burst burst(sizes);
        send_all(worker, burst);
        require_same(receive(box, sizes.size()), burst);
      }
    }
  }
}

TEST_CASE("a box without segmentation receives what a segmenting worker sent, and vice versa") {
  for (const bool sender_offloads : {true, false}) {
    SocketPort box = open("127.0.0.1", {}, !sender_offloads);
    SocketPort worker = open("127.0.0.1", box.local(), sender_offloads);
    const Burst burst(std::vector<uint32_t>(40, 1408));
    send_all(worker, burst);
    require_same(receive(box, 40), burst);
  }
}

TEST_CASE("a coalesced message splits over several small receive bursts") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  std::vector<uint32_t> sizes(30, 1408);
  sizes.push_back(100);
  const Burst burst(sizes);
  send_all(worker, burst);
  require_same(receive(box, sizes.size(), 4), burst);
}

TEST_CASE("a burst longer than a port's bound is taken in several calls") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  const Burst burst(std::vector<uint32_t>(100, 512));
  const size_t first = worker.tx_burst(burst.packets);
  CHECK(first == limits::kBurstPackets);
  const auto rest = std::span<const TxPacket>(burst.packets).subspan(first);
  CHECK(worker.tx_burst(rest) == rest.size());
  require_same(receive(box, 100), burst);
}

TEST_CASE("an unconnected port sends each packet to its own address") {
  SocketPort box = open("127.0.0.1");
  SocketPort one = open("127.0.0.1", box.local());
  SocketPort two = open("127.0.0.1", box.local());
  const Endpoint to_one = one.local();
  const Endpoint to_two = two.local();
  Burst burst(std::vector<uint32_t>(20, 1408));
  for (size_t index = 0; index < 20; ++index) {
    burst.packets[index].to = index % 5 < 3 ? &to_one : &to_two;
  }
  send_all(box, burst);
  const auto at_one = receive(one, 12);
  const auto at_two = receive(two, 8);
  REQUIRE(at_one.packets.size() == 12);
  REQUIRE(at_two.packets.size() == 8);
  size_t next_one = 0;
  size_t next_two = 0;
  for (size_t index = 0; index < 20; ++index) {
    const Bytes& actual = index % 5 < 3 ? at_one.packets[next_one++] : at_two.packets[next_two++];
    REQUIRE((actual == burst.wire(index)));
  }
}

TEST_CASE("a port on all addresses reports the address that packets came to, and sends from it") {
  struct Case {
    const char *box, *used, *reported;
  };
  std::vector<Case> cases = {{"0.0.0.0", "127.0.0.2", "127.0.0.2"},
                             {"0.0.0.0", "127.0.0.1", "127.0.0.1"}};
  if (ipv6_here()) {
    cases.push_back({"::", "::1", "::1"});
    cases.push_back({"::", "127.0.0.3", "::ffff:127.0.0.3"});
  }
  for (const Case& each : cases) {
    for (const bool offload : {true, false}) {
      INFO(each.box << " used as " << each.used << ", offload " << offload);
      SocketPort box = open(each.box, {}, offload);
      Endpoint used = *parse_endpoint(each.used, box.local().port);
      // The worker has another address than `used`, and receives only packets that come from
      // `used`.
      SocketPort worker = open(used.ipv6 ? "::1" : "127.0.0.9", used, offload);
      send_all(worker, Burst({1408}));
      std::array<RxPacket, 1> asked;
      pollfd wait{box.event_fd(), POLLIN, 0};
      REQUIRE(poll(&wait, 1, 2000) == 1);
      REQUIRE(box.rx_burst(asked) == 1);
      CHECK(asked[0].to == parse_endpoint(each.reported, 0)->address);
      Burst answers({1408, 1408, 1408, 200}, asked[0].from);
      for (TxPacket& packet : answers.packets) packet.from = &asked[0].to;
      send_all(box, answers);
      require_same(receive(worker, 4), answers);
    }
  }
}

TEST_CASE(
    "an answer from an address that this host has lost is counted, and others are segmented") {
  SocketPort box = open("0.0.0.0");
  SocketPort worker = open("127.0.0.9", *parse_endpoint("127.0.0.2", box.local().port));
  if (!box.capabilities().segmentation_offload) return;
  const LocalAddress lost = parse_endpoint("198.51.100.7", 0)->address;
  const LocalAddress own = parse_endpoint("127.0.0.2", 0)->address;
  Burst burst(std::vector<uint32_t>(7, 1408), worker.local());
  for (size_t index = 0; index < 7; ++index) burst.packets[index].from = index < 4 ? &lost : &own;
  REQUIRE(box.tx_burst(burst.packets) == 7);
  CHECK(box.counters().get(PortCounter::kSendFailures) == 4);
  CHECK(box.capabilities().segmentation_offload);
  const auto received = receive(worker, 3);
  REQUIRE(received.packets.size() == 3);
  CHECK((received.packets[2] == burst.wire(6)));
}

TEST_CASE("as many packets as the receive buffer is said to hold wait unread, and none is lost") {
  constexpr uint32_t kBufferBytes = 1u << 20;
  for (const uint32_t fragment_bytes : {512u, 1408u, 8192u, 32768u}) {
    for (const bool offload : {false, true}) {
      auto box = SocketPort::open({.local = *parse_endpoint("127.0.0.1", 0),
                                   .receive_buffer_bytes = kBufferBytes,
                                   .segmentation_offload = offload});
      REQUIRE(box.ok());
      const uint32_t buffer_bytes = box->capabilities().receive_buffer_bytes;
      const size_t count = receivable_bytes(buffer_bytes, fragment_bytes) / fragment_bytes;
      INFO(count << " fragments of " << fragment_bytes << ", offload " << offload);
      REQUIRE(count > 0);
      SocketPort worker = open("127.0.0.1", box->local(), offload);
      const Burst burst(std::vector<uint32_t>(count, fragment_bytes));
      for (size_t sent = 0; sent < count;) {
        const size_t taken = worker.tx_burst(std::span(burst.packets).subspan(sent));
        REQUIRE(taken > 0);
        sent += taken;
      }
      require_same(receive(*box, count), burst);
    }
  }
}

TEST_CASE("a connected port receives only from its peer") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  SocketPort stranger = open("127.0.0.1");
  const Burst forged({64}, worker.local());
  send_all(stranger, forged);
  const Burst genuine({128}, worker.local());
  send_all(box, genuine);
  require_same(receive(worker, 1), genuine);
  std::array<RxPacket, 4> packets;
  for (int count = 0; count < 3; ++count) CHECK(worker.rx_burst(packets) == 0);
}

TEST_CASE("sending to a closed port neither blocks nor miscounts") {
  Endpoint gone;
  {
    const SocketPort closed = open("127.0.0.1");
    gone = closed.local();
  }
  SocketPort worker = open("127.0.0.1", gone);
  const Burst burst(std::vector<uint32_t>(16, 1408));
  for (int count = 0; count < 20; ++count) {
    REQUIRE(worker.tx_burst(burst.packets) == burst.packets.size());
  }
  CHECK(worker.counters().get(nic::PortCounter::kSendFailures) >
        0);  // the kernel reported an error, which was counted
  std::array<RxPacket, 4> packets;
  for (int count = 0; count < 3; ++count) CHECK(worker.rx_burst(packets) == 0);

  // The same socket works once its peer exists.
  auto revived = SocketPort::open({.local = gone});
  REQUIRE(revived.ok());
  worker.rx_burst(packets);  // clears a pending error
  REQUIRE(worker.tx_burst(burst.packets) == burst.packets.size());
  require_same(receive(*revived, 16), burst);
}

TEST_CASE("an unconnected port drops packets to an unreachable peer and serves the others") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  Burst burst(std::vector<uint32_t>(6, 256), worker.local());
  Endpoint unreachable = worker.local();
  unreachable.port = 0;
  burst.packets[0].to = burst.packets[1].to = &unreachable;  // one message if the kernel segments
  REQUIRE(box.tx_burst(burst.packets) == 6);
  CHECK(box.counters().get(nic::PortCounter::kSendFailures) == 2);
  const auto received = receive(worker, 4);
  REQUIRE(received.packets.size() == 4);
  CHECK((received.packets[3] == burst.wire(5)));
}

TEST_CASE("a port that was just emptied asks the kernel again at the second call") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  std::array<RxPacket, 4> packets;
  pollfd wait{box.event_fd(), POLLIN, 0};
  for (int round = 0; round < 3; ++round) {
    send_all(worker, Burst({128}));
    REQUIRE(poll(&wait, 1, 2000) == 1);
    while (box.rx_burst(packets) == 0) {
    }
    send_all(worker, Burst({256}));
    REQUIRE(poll(&wait, 1, 2000) == 1);
    CHECK(box.rx_burst(packets) == 0);
    CHECK(box.rx_burst(packets) == 1);
  }
}

TEST_CASE("received bytes do not change until the next receive") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  const Burst first({1408, 1408});
  send_all(worker, first);
  std::array<RxPacket, 2> burst;
  size_t count = 0;
  while (count == 0) count = box.rx_burst(burst);
  const Bytes before(burst[0].data, burst[0].data + burst[0].bytes);
  const Burst second(std::vector<uint32_t>(30, 1000));
  send_all(worker, second);
  CHECK((Bytes(burst[0].data, burst[0].data + burst[0].bytes) == before));
}

TEST_CASE("a port reports its local address and the MTU of its path") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  CHECK(box.local().port != 0);
  CHECK(worker.local() != box.local());
  // The MTU of lo is 65536, but an IP packet has at most 65535. The largest fragments fit both.
  CHECK(wire::fragment_bytes_for_mtu(worker.capabilities().mtu, false) == 32768);
  CHECK(worker.capabilities().receive_buffer_bytes > 0);
  CHECK(std::string(worker.capabilities().kind) == "socket");
  const auto taken = SocketPort::open({.local = box.local()});
  REQUIRE_FALSE(taken.ok());
  CHECK(taken.error().message.find(to_string(box.local())) != std::string::npos);
}

TEST_CASE("no port fragments, and one of IPv6 does not fragment IPv4 packets either") {
  const auto discovery = [](const SocketPort& port, int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    REQUIRE(getsockopt(port.event_fd(), level, name, &value, &length) == 0);
    return value;
  };
  CHECK(discovery(open("127.0.0.1"), IPPROTO_IP, IP_MTU_DISCOVER) == IP_PMTUDISC_DO);
  if (!ipv6_here()) return;
  for (const char* address : {"::", "::1"}) {
    const SocketPort port = open(address);
    CHECK(discovery(port, IPPROTO_IPV6, IPV6_MTU_DISCOVER) == IPV6_PMTUDISC_DO);
    CHECK(discovery(port, IPPROTO_IP, IP_MTU_DISCOVER) == IP_PMTUDISC_DO);
  }
}

TEST_CASE("the event fd becomes readable when a packet waits") {
  SocketPort box = open("127.0.0.1");
  SocketPort worker = open("127.0.0.1", box.local());
  pollfd wait{box.event_fd(), POLLIN, 0};
  CHECK(poll(&wait, 1, 0) == 0);
  send_all(worker, Burst({64}));
  CHECK(poll(&wait, 1, 2000) == 1);
}

}  // namespace pbox::nic
