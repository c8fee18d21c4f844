#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "base/rng.h"
#include "nic/ethernet/neighbours.h"
#include "tests/unit/nic/ethernet/ethernet_host.h"

namespace pbox::nic {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMs;
constexpr uint64_t kStart = 1'000 * kSecond;

MacAddress mac_of(uint8_t number) {
  return {2, 0, 0, 0, 1, number};
}

// Returns an ARP frame in which `sender`, of 10.0.0.0/8, states its MAC.
Bytes arp_frame(uint16_t operation, const IpAddress& sender, const MacAddress& mac,
                const IpAddress& target) {
  Bytes frame(ethernet::kBytes + arp::kBytes);
  std::memcpy(&frame[ethernet::kDestination], kOwnMac.data(), 6);
  std::memcpy(&frame[ethernet::kSource], mac.data(), 6);
  store16(&frame[ethernet::kType], ethernet::kTypeArp);
  std::byte* packet = &frame[ethernet::kBytes];
  store16(packet, 1);
  store32(packet + 2, 0x0800'0604);
  store16(packet + arp::kOperation, operation);
  std::memcpy(packet + arp::kSenderMac, mac.data(), 6);
  std::memcpy(packet + arp::kSenderIp, sender.bytes.data(), 4);
  std::memcpy(packet + arp::kTargetMac, kOwnMac.data(), 6);
  std::memcpy(packet + arp::kTargetIp, target.bytes.data(), 4);
  return frame;
}

Interface wide_interface() {
  return {
      .addresses = {*parse_interface_address("10.0.0.1/8"), *parse_interface_address("fd00::1/64")},
      .gateway4 = {},
      .gateway6 = {}};
}

// A table, and functions for the frames that its host receives.
struct Host {
  NeighbourTable table;
  Interface interface = wide_interface();
  uint64_t now_ns = kStart;

  void hear(const Bytes& frame, uint16_t link = 0) {
    table.learn(frame, interface, kOwnMac, link, now_ns);
  }
  void hear_reply(const std::string& sender, const MacAddress& mac, uint16_t link = 0) {
    hear(arp_frame(arp::kReply, ip(sender), mac, ip("10.0.0.1")), link);
  }
  void hear_request(const std::string& sender, const MacAddress& mac) {
    hear(arp_frame(arp::kRequest, ip(sender), mac, ip("10.0.0.1")));
  }
  void hear_announcement(const std::string& sender, const MacAddress& mac) {
    hear(arp_frame(arp::kRequest, ip(sender), mac, ip(sender)));
  }
  NeighbourLookup lookup(const std::string& address) { return table.lookup(ip(address), now_ns); }
  std::optional<Neighbour> known(const std::string& address) { return lookup(address).neighbour; }
};

// Returns a distinct address in 10.0.0.0/8, outside of 10.0.0.0/16, for each number.
std::string numbered(uint32_t number) {
  return "10." + std::to_string(1 + (number >> 16)) + "." + std::to_string(number >> 8 & 255) +
         "." + std::to_string(number & 255);
}

}  // namespace

TEST_CASE("a solicited neighbour that answers is known, with the link of its answer") {
  Host host;
  const auto first = host.lookup("10.0.0.2");
  CHECK_FALSE(first.neighbour);
  CHECK(first.solicit == Solicit::kMulticast);
  host.hear_reply("10.0.0.2", mac_of(7), 3);
  const auto second = host.lookup("10.0.0.2");
  CHECK(second.neighbour == Neighbour{.mac = mac_of(7), .link = 3});
  CHECK(second.solicit == Solicit::kNone);
  CHECK_FALSE(host.known("10.0.0.3"));
  CHECK(host.table.counters().learned == 1);
}

TEST_CASE("an IPv6 neighbour is learned from its advertisement and not confused with an IPv4 one") {
  Host host;
  host.lookup("fd00::2");
  host.hear(
      from_hex("020000000001 020000000002 86dd 60000000 0020 3a ff"
               "fd000000000000000000000000000002 fd000000000000000000000000000001"
               "8800 1c9a 60000000 fd000000000000000000000000000002 0201 020000000002"));
  CHECK(host.known("fd00::2") == Neighbour{.mac = kPeerMac, .link = 0});
  host.lookup("10.0.0.2");
  host.hear_reply("10.0.0.2", mac_of(7));
  CHECK(host.known("10.0.0.2")->mac == mac_of(7));
  CHECK_FALSE(host.known("0a00:2::"));
}

TEST_CASE("unsolicited answers and announcements of unknown stations are not learned") {
  Host host;
  host.hear_reply("10.0.0.2", mac_of(7));
  host.hear_announcement("10.0.0.2", mac_of(7));
  CHECK_FALSE(host.known("10.0.0.2"));
  CHECK(host.table.counters().learned == 0);
}

TEST_CASE("a station that sends us a request is known from then on") {
  Host host;
  host.hear_request("10.0.0.2", mac_of(7));
  const auto found = host.lookup("10.0.0.2");
  CHECK(found.neighbour->mac == mac_of(7));
  CHECK(found.solicit == Solicit::kNone);
}

TEST_CASE("an unknown neighbour is solicited ten times within a second, then once a second") {
  Host host;
  std::vector<uint64_t> asked_ms;
  for (uint64_t ms = 0; ms < 4000; ms += 10) {
    host.now_ns = kStart + ms * kMs;
    if (host.lookup("10.0.0.2").solicit != Solicit::kNone) asked_ms.push_back(ms);
  }
  CHECK(asked_ms ==
        std::vector<uint64_t>{0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1900, 2900, 3900});
}

TEST_CASE("a neighbour is confirmed after 30 s, by unicast first, then by multicast") {
  Host host;
  host.hear_request("10.0.0.2", mac_of(7));
  host.now_ns = kStart + 30 * kSecond - 1;
  CHECK(host.lookup("10.0.0.2").solicit == Solicit::kNone);
  std::vector<Solicit> asked;
  for (uint64_t ms = 30'000; ms < 35'000; ms += 100) {
    host.now_ns = kStart + ms * kMs;
    const auto found = host.lookup("10.0.0.2");
    REQUIRE(found.neighbour);
    if (found.solicit != Solicit::kNone) asked.push_back(found.solicit);
  }
  CHECK(asked == std::vector<Solicit>{Solicit::kUnicast, Solicit::kUnicast, Solicit::kUnicast,
                                      Solicit::kMulticast, Solicit::kMulticast});
  host.hear_reply("10.0.0.2", mac_of(7));
  host.now_ns += 29 * kSecond;
  CHECK(host.lookup("10.0.0.2").solicit == Solicit::kNone);
  host.now_ns += kSecond;
  CHECK(host.lookup("10.0.0.2").solicit == Solicit::kUnicast);
}

TEST_CASE("a neighbour without confirmation for 120 s is unknown until it answers") {
  Host host;
  host.hear_request("10.0.0.2", mac_of(7));
  host.now_ns = kStart + 120 * kSecond - 1;
  CHECK(host.known("10.0.0.2"));
  host.now_ns = kStart + 122 * kSecond;
  const auto found = host.lookup("10.0.0.2");
  CHECK_FALSE(found.neighbour);
  CHECK(found.solicit == Solicit::kMulticast);
  host.hear_reply("10.0.0.2", mac_of(7));
  CHECK(host.known("10.0.0.2"));
  CHECK(host.table.counters().learned == 2);
}

TEST_CASE("a neighbour's new MAC or link is learned and counted, and changes the generation") {
  Host host;
  host.hear_request("10.0.0.2", mac_of(7));
  uint64_t generation = host.table.generation();
  host.hear_reply("10.0.0.2", mac_of(7));
  CHECK(host.table.generation() == generation);
  host.hear_announcement("10.0.0.2", mac_of(8));
  CHECK(host.known("10.0.0.2")->mac == mac_of(8));
  CHECK(host.table.generation() != generation);
  generation = host.table.generation();
  host.hear_reply("10.0.0.2", mac_of(8), 1);
  CHECK(host.known("10.0.0.2")->link == 1);
  CHECK(host.table.generation() != generation);
  CHECK(host.table.counters().moved == 2);
}

TEST_CASE("an advertisement without the override flag only confirms the known MAC") {
  const auto advertisement = [](const MacAddress& mac, const char* checksum) {
    Bytes frame = from_hex(std::string("020000000001 000000000000 86dd 60000000 0018 3a ff") +
                           "fd000000000000000000000000000002 fd000000000000000000000000000001" +
                           "8800" + checksum + "40000000 fd000000000000000000000000000002");
    std::memcpy(&frame[ethernet::kSource], mac.data(), mac.size());
    return frame;
  };
  Host host;
  host.lookup("fd00::2");
  host.hear(advertisement(mac_of(7), "40a5"));
  REQUIRE(host.known("fd00::2") == Neighbour{.mac = mac_of(7), .link = 0});
  host.now_ns += 20 * kSecond;
  host.hear(advertisement(mac_of(8), "40a5"));
  CHECK(host.known("fd00::2")->mac == mac_of(7));
  host.hear(advertisement(mac_of(7), "40a5"));
  host.now_ns += 20 * kSecond;
  CHECK(host.lookup("fd00::2").solicit == Solicit::kNone);
  CHECK(host.table.counters().moved == 0);
}

TEST_CASE("requests of unknown stations never evict a neighbour in use") {
  Host host;
  host.hear_request("10.0.0.2", mac_of(7));
  host.lookup("10.0.0.3");
  for (uint32_t number = 0; number < 4 * kNeighbourSets * kNeighbourWays; ++number) {
    host.hear_request(numbered(number), mac_of(9));
  }
  CHECK(host.known("10.0.0.2")->mac == mac_of(7));
  host.hear_reply("10.0.0.3", mac_of(8));  // it was looked up before the flood
  CHECK(host.known("10.0.0.3")->mac == mac_of(8));
  CHECK(host.table.counters().evicted == 0);
  // Expired entries may be reused.
  const uint64_t learned = host.table.counters().learned;
  host.now_ns += 120 * kSecond;
  for (uint32_t number = 0; number < 4 * kNeighbourSets * kNeighbourWays; ++number) {
    host.hear_request(numbered((1u << 20) + number), mac_of(9));
  }
  CHECK(host.table.counters().learned > learned + kNeighbourSets * kNeighbourWays / 2);
}

TEST_CASE("a lookup always gets an entry, and evicts the neighbour with the oldest confirmation") {
  Host host;
  constexpr uint32_t kCount = 4 * kNeighbourSets * kNeighbourWays;
  host.hear_request("10.0.0.2", mac_of(7));
  for (uint32_t number = 0; number < kCount; ++number) {
    ++host.now_ns;
    const uint64_t generation = host.table.generation();
    const uint64_t evicted = host.table.counters().evicted;
    REQUIRE(host.lookup(numbered(number)).solicit == Solicit::kMulticast);
    host.hear_reply(numbered(number), mac_of(9));
    REQUIRE(host.known(numbered(number)));
    if (host.table.counters().evicted != evicted) REQUIRE(host.table.generation() > generation + 1);
  }
  CHECK(host.table.counters().evicted >= kCount - kNeighbourSets * kNeighbourWays);
  CHECK_FALSE(host.known("10.0.0.2"));  // it has the oldest confirmation
  CHECK(host.known(numbered(kCount - 1)));
}

TEST_CASE("readers never see a wrong MAC while writers evict each other's entries") {
  Host host;
  constexpr uint32_t kAddresses = 2 * kNeighbourSets * kNeighbourWays;
  constexpr int kRounds = 100'000;
  std::vector<IpAddress> addresses;
  for (uint32_t number = 0; number < kAddresses; ++number) {
    addresses.push_back(ip(numbered(number)));
  }
  const auto mac = [](uint64_t number) -> MacAddress {
    return {2, 0, 0, 0, static_cast<uint8_t>(number >> 8), static_cast<uint8_t>(number)};
  };
  std::atomic<int> writing = 2;
  std::atomic<uint64_t> found = 0;
  std::atomic<uint64_t> wrong = 0;
  const auto write = [&](uint64_t seed) {
    Rng rng(seed);
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t number = rng.below(kAddresses);
      host.table.lookup(addresses[number], kStart);
      host.table.learn(arp_frame(arp::kReply, addresses[number], mac(number),
                                 host.interface.addresses[0].address),
                       host.interface, kOwnMac, 0, kStart);
    }
    --writing;
  };
  const auto read = [&](uint64_t seed) {
    Rng rng(seed);
    do {
      for (int count = 0; count < 1000; ++count) {
        const uint64_t number = rng.below(kAddresses);
        const auto neighbour = host.table.lookup(addresses[number], kStart).neighbour;
        if (!neighbour) continue;
        ++found;
        if (neighbour->mac != mac(number)) ++wrong;
      }
    } while (writing > 0);
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    threads.emplace_back(write, seed);
    threads.emplace_back(read, 100 + seed);
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(found > 0);
  CHECK(host.table.counters().evicted > 0);
}

TEST_CASE("only one of many threads that need a neighbour at once solicits it") {
  Host host;
  constexpr uint32_t kAddresses = 1000;
  std::array<std::atomic<int>, kAddresses> solicited{};
  std::atomic<bool> go = false;
  const auto look = [&] {
    while (!go) std::this_thread::yield();
    for (uint32_t number = 0; number < kAddresses; ++number) {
      const auto result = host.table.lookup(ip(numbered(number)), kStart);
      if (result.solicit != Solicit::kNone) ++solicited[number];
    }
  };
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) threads.emplace_back(look);
  go = true;
  for (auto& thread : threads) thread.join();
  for (const auto& count : solicited) REQUIRE(count <= 1);
  CHECK(std::count(solicited.begin(), solicited.end(), 1) > kAddresses / 2);
}

}  // namespace pbox::nic
