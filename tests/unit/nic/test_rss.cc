// Checks the Toeplitz hash against Microsoft's published verification suite, and the search for
// source ports against the hash.
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "base/rng.h"
#include "nic/port.h"
#include "nic/rss.h"

namespace pbox::nic {
namespace {

const std::vector<uint8_t> kPublishedKey = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
    0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
    0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

struct Published {
  const char* destination;
  uint16_t destination_port;
  const char* source;
  uint16_t source_port;
  uint32_t hash_of_addresses;
  uint32_t hash;
};

const Published kPublished[] = {
    {"161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e8fc2, 0x51ccc178},
    {"65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718262a, 0xc626b0ea},
    {"12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0a5de, 0x5c2b394a},
    {"209.142.163.6", 2217, "38.27.205.30", 48228, 0x82989176, 0xafc7327f},
    {"202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d1809c5, 0x10e828a2},
    {"3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc18cd5, 0x40207d3d},
    {"ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c461c, 0xdde51bbf},
    {"fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, 0x4b61e985,
     0x02d1feef}};

Endpoint random_endpoint(Rng& rng, bool ipv6) {
  Endpoint endpoint;
  endpoint.ipv6 = ipv6;
  for (size_t index = 0; index < (ipv6 ? 16u : 4u); ++index) {
    endpoint.address[index] = static_cast<uint8_t>(rng.next());
  }
  endpoint.port = static_cast<uint16_t>(rng.next());
  return endpoint;
}

RssTable random_table(Rng& rng, uint16_t queues) {
  RssTable table;
  table.key.resize(rng.below(2) == 0 ? 40 : 52);
  for (uint8_t& byte : table.key) byte = static_cast<uint8_t>(rng.next());
  table.queues.resize(size_t{1} << (4 + rng.below(6)));
  for (uint16_t& queue : table.queues) queue = static_cast<uint16_t>(rng.below(queues));
  return table;
}

}  // namespace

TEST_CASE("the RSS hash equals Microsoft's verification suite for IPv4 and IPv6") {
  const RssTable table{kPublishedKey, {0}};
  for (const Published& line : kPublished) {
    INFO(line.source);
    const Endpoint source = *parse_endpoint(line.source, line.source_port);
    const Endpoint destination = *parse_endpoint(line.destination, line.destination_port);
    CHECK(rss_hash(table, source, destination) == line.hash);
    const size_t bytes = source.ipv6 ? 16 : 4;
    std::vector<uint8_t> addresses(source.address.begin(), source.address.begin() + bytes);
    addresses.insert(addresses.end(), destination.address.begin(),
                     destination.address.begin() + bytes);
    CHECK(toeplitz_hash(kPublishedKey, addresses) == line.hash_of_addresses);
  }
}

TEST_CASE("missing key bits count as zero") {
  const std::vector<uint8_t> input(36, 0xa5);
  std::vector<uint8_t> padded(kPublishedKey.begin(), kPublishedKey.begin() + 16);
  const uint32_t hash = toeplitz_hash(padded, input);
  padded.resize(64);
  CHECK(toeplitz_hash(padded, input) == hash);
  CHECK(toeplitz_hash({}, input) == 0);
}

TEST_CASE("a source port that is found reaches its queue, for random keys, tables and addresses") {
  Rng rng(7);
  for (int turn = 0; turn < 300; ++turn) {
    const auto queues = static_cast<uint16_t>(1 + rng.below(16));
    const RssTable table = random_table(rng, queues);
    const bool ipv6 = rng.below(2) == 0;
    Endpoint local = random_endpoint(rng, ipv6);
    const Endpoint remote = random_endpoint(rng, ipv6);
    const std::set<uint16_t> present(table.queues.begin(), table.queues.end());
    for (uint16_t queue = 0; queue < queues; ++queue) {
      const auto first = static_cast<uint16_t>(rng.next());
      const auto port = source_port_for(table, local, remote, queue, first);
      REQUIRE(port.has_value() == present.contains(queue));
      if (!port) continue;
      CHECK(*port >= kSourcePortFirst);
      local.port = *port;
      REQUIRE(rss_queue(table, local, remote) == queue);
    }
  }
}

TEST_CASE("the search starts at the candidate, skips no port that fits, and wraps") {
  const RssTable table{kPublishedKey, {0, 1, 2, 3}};
  const Endpoint remote = *parse_endpoint("10.0.0.1", 9542);
  Endpoint local = *parse_endpoint("10.0.0.2", 0);
  const uint16_t first = *source_port_for(table, local, remote, 2, 40'000);
  for (uint16_t port = 40'000; port < first; ++port) {
    local.port = port;
    REQUIRE(rss_queue(table, local, remote) != 2);
  }
  CHECK(*source_port_for(table, local, remote, 2, first) == first);
  CHECK(*source_port_for(table, local, remote, 2, static_cast<uint16_t>(first + 1)) > first);
  local.port = 65535;
  while (rss_queue(table, local, remote) != 2) --local.port;
  const auto after_last = static_cast<uint16_t>(local.port + 1);
  CHECK(source_port_for(table, local, remote, 2, after_last) ==
        source_port_for(table, local, remote, 2, kSourcePortFirst));
  CHECK(source_port_for(table, local, remote, 2, 0) ==
        source_port_for(table, local, remote, 2, kSourcePortFirst));
}

TEST_CASE("no port reaches a queue that is not in the redirection table") {
  const RssTable table{kPublishedKey, {0, 1, 3}};
  const Endpoint remote = *parse_endpoint("10.0.0.1", 9542);
  CHECK_FALSE(source_port_for(table, *parse_endpoint("10.0.0.2", 0), remote, 2, 1));
  CHECK(source_port_for(table, *parse_endpoint("10.0.0.2", 0), remote, 3, 65535));
}

TEST_CASE("each queue affinity has its own name") {
  std::set<std::string> names;
  for (uint32_t value = 0; value < kQueueAffinityCount; ++value) {
    names.insert(to_string(static_cast<QueueAffinity>(value)));
  }
  CHECK(names.size() == kQueueAffinityCount);
  CHECK_FALSE(names.contains("unknown"));
}

}  // namespace pbox::nic
