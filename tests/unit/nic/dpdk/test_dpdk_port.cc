#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <deque>

#include "base/numa_arena.h"
#include "nic/dpdk/eal.h"
#include "tests/unit/nic/dpdk/cable.h"

namespace pbox::test {
namespace {

using nic::PortCounter;

// A box and a worker at the two ends of a cable.
struct Pair {
  explicit Pair(uint32_t pipelines = 1, const std::string& box_address = "10.7.0.1/24",
                const std::string& worker_address = "10.7.0.2/24")
      : cable(pipelines),
        box_interface(open_interface(options_for(cable.left(), box_address, pipelines))),
        worker_interface(open_interface(options_for(cable.right(), worker_address, pipelines))) {
    for (uint32_t index = 0; index < pipelines; ++index) {
      box.emplace_back(*box_interface, index);
      worker.emplace_back(*worker_interface, index);
    }
  }

  // Polls both ends, so that requests for MAC addresses are sent and answered.
  void settle() {
    std::array<nic::RxPacket, limits::kBurstPackets> burst;
    for (int turn = 0; turn < 4; ++turn) {
      for (auto& port : box) CHECK(port.rx_burst(burst) == 0);
      for (auto& port : worker) CHECK(port.rx_burst(burst) == 0);
    }
  }

  nic::DpdkThread thread;
  Cable cable;
  std::unique_ptr<nic::DpdkInterface> box_interface;
  std::unique_ptr<nic::DpdkInterface> worker_interface;
  std::deque<nic::DpdkPort> box;
  std::deque<nic::DpdkPort> worker;
};

nic::TxPacket packet_to(const nic::Endpoint& to, const std::byte* payload, uint16_t bytes) {
  nic::TxPacket packet;
  packet.to = &to;
  packet.header.set_type(wire::PacketType::kResult);
  packet.header.payload_bytes = bytes;
  packet.payload = payload;
  packet.tag = wire::make_tag({.payload_crc = true}, packet.header, payload);
  return packet;
}

// Checks that the received packet equals the sent one in every byte.
void check_arrived(const nic::RxPacket& received, const nic::TxPacket& sent,
                   const nic::Endpoint& from) {
  CHECK(received.from == from);
  REQUIRE(received.bytes == limits::kPacketOverheadBytes + sent.header.payload_bytes);
  wire::Parsed parsed;
  REQUIRE(wire::parse(received.data, received.bytes, parsed) == wire::Reject::kNone);
  CHECK(wire::verify_tag({.payload_crc = true}, parsed));
  CHECK(std::memcmp(parsed.payload, sent.payload, sent.header.payload_bytes) == 0);
}

NumaArena patterned_memory(size_t bytes) {
  auto arena = NumaArena::create(bytes, kAnyNumaNode, Hugepages::kNever);
  REQUIRE(arena);
  for (size_t index = 0; index < bytes; ++index) arena->data()[index] = std::byte(index * 7 + 3);
  return std::move(*arena);
}

void exchange_one(Pair& pair, uint16_t payload_bytes, const NumaArena& memory) {
  const nic::Endpoint to = pair.worker[0].local();
  const nic::TxPacket packet = packet_to(to, memory.data(), payload_bytes);
  REQUIRE(pair.box[0].tx_burst({&packet, 1}) == 1);
  pair.settle();  // the first packet to a neighbour is replaced by an ARP request
  REQUIRE(pair.box[0].tx_burst({&packet, 1}) == 1);
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  REQUIRE(pair.worker[0].rx_burst(burst) == 1);
  check_arrived(burst[0], packet, pair.box[0].local());
  CHECK(pair.box[0].counters().get(PortCounter::kUnresolved) == 1);
  CHECK(pair.box[0].counters().get(PortCounter::kSolicitations) == 1);
  CHECK(pair.worker[0].counters().get(PortCounter::kAnswers) == 1);
}

}  // namespace

TEST_CASE("a packet of either family and any size arrives unchanged") {
  const bool ipv6 = GENERATE(false, true);
  const uint16_t payload_bytes = GENERATE(as<uint16_t>(), 0, 1, 16, 1408, 8192);
  const NumaArena memory = patterned_memory(8192);
  if (ipv6) {
    Pair pair(1, "fd00:7::1/64", "fd00:7::2/64");
    exchange_one(pair, payload_bytes, memory);
  } else {
    Pair pair;
    exchange_one(pair, payload_bytes, memory);
  }
}

TEST_CASE("an answer leaves from the address that the packet came to") {
  Pair pair(1, "10.7.0.1/24 10.7.0.11/24");
  const NumaArena memory = patterned_memory(64);
  for (const char* used : {"10.7.0.11", "10.7.0.1"}) {
    const nic::Endpoint box = *nic::parse_endpoint(used, pair.box[0].local().port);
    const nic::TxPacket question = packet_to(box, memory.data(), 64);
    REQUIRE(pair.worker[0].tx_burst({&question, 1}) == 1);
    pair.settle();  // the first packet to a neighbour is replaced by an ARP request
    REQUIRE(pair.worker[0].tx_burst({&question, 1}) == 1);
    std::array<nic::RxPacket, limits::kBurstPackets> burst;
    REQUIRE(pair.box[0].rx_burst(burst) == 1);
    CHECK(burst[0].to == box.address);
    nic::TxPacket answer = packet_to(burst[0].from, memory.data(), 64);
    answer.from = &burst[0].to;
    REQUIRE(pair.box[0].tx_burst({&answer, 1}) == 1);
    REQUIRE(pair.worker[0].rx_burst(burst) == 1);
    check_arrived(burst[0], answer, box);
  }
}

TEST_CASE("a large payload is sent in place, and its memory is held until it has been read") {
  Pair pair;
  const NumaArena memory = patterned_memory(1 << 16);
  nic::DpdkPort& box = pair.box[0];
  REQUIRE(box.add_memory(memory.data(), memory.size()));
  exchange_one(pair, 8192, memory);
  CHECK(box.counters().get(PortCounter::kExternalPackets) == 1);
  CHECK_FALSE(box.remove_memory(memory.data(), memory.size()));  // the worker still holds it
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  CHECK(pair.worker[0].rx_burst(burst) == 0);  // releases the last burst
  CHECK(box.remove_memory(memory.data(), memory.size()));
  CHECK(pair.worker[0].counters().get(PortCounter::kChainedPackets) == 1);
}

TEST_CASE("payloads in memory that was not added are copied") {
  Pair pair;
  const NumaArena memory = patterned_memory(1 << 16);
  exchange_one(pair, 8192, memory);
  CHECK(pair.box[0].counters().get(PortCounter::kExternalPackets) == 0);
}

TEST_CASE("if a device accepts nothing, packets are held back and not lost") {
  Pair pair;
  const NumaArena memory = patterned_memory(4096);
  const nic::Endpoint to = pair.worker[0].local();
  exchange_one(pair, 100, memory);
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  pair.worker[0].rx_burst(burst);

  std::vector<nic::TxPacket> packets(limits::kBurstPackets, packet_to(to, memory.data(), 100));
  size_t sent = 0;
  size_t taken = 0;
  while ((taken = pair.box[0].tx_burst(packets)) > 0) sent += taken;
  CHECK(sent > 255);  // the cable's ring and the backlog
  size_t received = 0;
  size_t count = 0;
  while ((count = pair.worker[0].rx_burst(burst)) > 0) {
    received += count;
    std::array<nic::RxPacket, 1> none;
    CHECK(pair.box[0].rx_burst(none) == 0);  // polling alone sends the backlog
  }
  CHECK(received == sent);
  CHECK(pair.box[0].counters().get(PortCounter::kSendFailures) == 0);
}

TEST_CASE("each pipeline has its own queue, and the sender's queue is the receiver's") {
  Pair pair(4);
  CHECK(pair.box_interface->affinity() == nic::QueueAffinity::kSenderQueue);
  const NumaArena memory = patterned_memory(4096);
  const nic::Endpoint first = pair.box[0].local();
  const nic::TxPacket hello = packet_to(first, memory.data(), 64);
  pair.worker[0].tx_burst({&hello, 1});
  pair.settle();
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  for (uint32_t index = 0; index < 4; ++index) {
    nic::Endpoint to = first;
    to.port = static_cast<uint16_t>(first.port + index);
    const nic::TxPacket packet = packet_to(to, memory.data(), 64);
    REQUIRE(pair.worker[index].tx_burst({&packet, 1}) == 1);
    for (uint32_t other = 0; other < 4; ++other) {
      CHECK(pair.box[other].rx_burst(burst) == (other == index ? 1 : 0));
    }
  }
}

TEST_CASE("with too few queues, packets are handed over to the pipeline of their UDP port") {
  Cable cable(1);  // one queue at each end
  auto near_options = options_for(cable.left(), "10.7.0.1/24", 3);
  near_options.udp_ports = {50'000, 50'007, 50'003};
  const auto near = open_interface(near_options);
  const auto far = open_interface(options_for(cable.right(), "10.7.0.2/24", 1));
  CHECK(near->affinity() == nic::QueueAffinity::kDispatch);
  const nic::DpdkThread thread;
  std::deque<nic::DpdkPort> ports;
  for (uint32_t index = 0; index < 3; ++index) ports.emplace_back(*near, index);
  nic::DpdkPort sender(*far, 0);
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  const auto poll_all = [&] {
    std::vector<size_t> counts;
    for (auto& port : ports) counts.push_back(port.rx_burst(burst));
    return counts;
  };
  const NumaArena memory = patterned_memory(64);
  const auto send_to = [&](uint16_t udp_port) {
    nic::Endpoint to = ports[0].local();
    to.port = udp_port;
    const nic::TxPacket packet = packet_to(to, memory.data(), 64);
    REQUIRE(sender.tx_burst({&packet, 1}) == 1);
  };
  send_to(50'000);                                  // replaced by an ARP request
  for (int turn = 0; turn < 2; ++turn) poll_all();  // an answer leaves with the next burst
  CHECK(sender.rx_burst(burst) == 0);

  send_to(50'000);
  CHECK(poll_all() == std::vector<size_t>{1, 0, 0});
  send_to(50'007);
  CHECK(poll_all() == std::vector<size_t>{0, 1, 0});
  send_to(50'003);
  CHECK(poll_all() == std::vector<size_t>{0, 0, 1});
  CHECK(ports[0].counters().get(PortCounter::kDispatched) == 2);
  send_to(50'005);  // in the port range, but no pipeline's port
  CHECK(poll_all() == std::vector<size_t>{0, 0, 0});
  CHECK(ports[0].counters().get(PortCounter::kDropUdpPort) == 1);

  const nic::Endpoint there = sender.local();
  for (auto& port : ports) {  // ports without a queue send through the one that has it
    const nic::TxPacket packet = packet_to(there, memory.data(), 64);
    REQUIRE(port.tx_burst({&packet, 1}) == 1);
  }
  poll_all();
  CHECK(sender.rx_burst(burst) == 3);
}

TEST_CASE("pipelines that share a queue share its slots, so that credit cannot exceed it") {
  const Cable cable(1);
  const auto alone = open_interface(options_for(cable.left(), "10.0.0.1/24", 1));
  const auto shared = open_interface(options_for(cable.right(), "10.0.0.2/24", 4));
  CHECK(shared->affinity() == nic::QueueAffinity::kDispatch);
  CHECK(shared->receive_slots() > 0);
  CHECK(4 * shared->receive_slots() <= alone->receive_slots());
}

TEST_CASE("frames in several buffers that are dropped leave room for those of the next device") {
  const Cable first(1), second(1);
  auto options = options_for(first.left(), "10.7.0.1/24", 1);
  options.devices.push_back(second.left());
  const auto near = open_interface(options);
  const nic::DpdkThread thread;
  nic::DpdkPort box(*near, 0);
  rte_mempool* pool =
      rte_pktmbuf_pool_create("chains", 1023, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
  REQUIRE(pool != nullptr);
  uint32_t sent = 0;
  std::vector<std::unique_ptr<nic::DpdkInterface>> far;
  for (const std::string& device : {first.right(), second.right()}) {
    far.push_back(open_interface(options_for(device, "10.7.0.2/24", 1)));
    uint16_t port_id = 0;
    REQUIRE(rte_eth_dev_get_port_by_name(device.c_str(), &port_id) == 0);
    for (uint32_t frame = 0; frame < limits::kBurstPackets; ++frame) {
      rte_mbuf* head = rte_pktmbuf_alloc(pool);
      rte_mbuf* tail = rte_pktmbuf_alloc(pool);
      REQUIRE((head != nullptr && tail != nullptr));
      std::memset(rte_pktmbuf_append(head, 40), 0xff, 40);
      std::memset(rte_pktmbuf_append(tail, 40), 0xff, 40);
      REQUIRE(rte_pktmbuf_chain(head, tail) == 0);
      sent += rte_eth_tx_burst(port_id, 0, &head, 1);
    }
  }
  REQUIRE(sent == 2 * limits::kBurstPackets);
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  CHECK(box.rx_burst(burst) == 0);
  CHECK(box.counters().get(PortCounter::kChainedPackets) == sent);
  far.clear();
  rte_mempool_free(pool);
}

}  // namespace pbox::test
