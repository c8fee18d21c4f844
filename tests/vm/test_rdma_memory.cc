// Application memory that its device reads, in a guest of tests/vm, at the level of queues. Whole
// jobs are in test_rdma.cc.
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "nic/payload_memory.h"
#include "nic/rdma/memory.h"
#include "nic/rdma/queue.h"

namespace pbox::nic::rdma_memory_test {
namespace {

constexpr uint16_t kPayloadBytes = 20'000;
constexpr uint64_t kPatienceNs = 30 * kNanosPerSecond;

std::shared_ptr<RdmaDevice> open_device(const std::string& name) {
  auto device = RdmaDevice::open({.name = name});
  REQUIRE(device);
  return *device;
}

RdmaQueue open_queue(const std::shared_ptr<RdmaDevice>& device,
                     const std::shared_ptr<ProtectionDomain>& domain, uint32_t receive_slots) {
  auto queue = RdmaQueue::open({.device = device,
                                .hugepages = Hugepages::kNever,
                                .receive_slots = receive_slots,
                                .staging_slots = 64,
                                .peers_max = 2,
                                .domain = domain,
                                .signals_bursts = true});
  REQUIRE(queue);
  return std::move(*queue);
}

// A worker with two lanes that share a protection domain. Each is connected to a box with few
// receive buffers.
struct Lanes {
  static constexpr uint32_t kBoxBuffers = 8;

  struct Lane {
    RdmaQueue worker;
    RdmaQueue box;
    Endpoint to;
  };

  Lanes() {
    auto made = make_protection_domain(*device);
    REQUIRE(made);
    domain = *made;
    for (int lane = 0; lane < 2; ++lane) {
      lanes.push_back({open_queue(device, domain, 8),
                       open_queue(open_device("rxe0"), nullptr, kBoxBuffers),
                       {}});
      connect(lanes.back(), 1);
    }
  }

  static void connect(Lane& lane, uint64_t owner) {
    const auto own = lane.worker.prepare(owner);
    const auto other = lane.box.prepare(owner);
    REQUIRE(own);
    REQUIRE(other);
    REQUIRE(lane.box.complete(other->endpoint, own->own));
    REQUIRE(lane.worker.complete(own->endpoint, other->own));
    lane.to = own->endpoint;
  }

  static void disconnect(Lane& lane, uint64_t owner) {
    std::vector<RxPacket> packets(1);
    lane.worker.close(owner);
    lane.box.close(owner);
    do {
      lane.worker.rx_burst(packets);
      lane.box.rx_burst(packets);
    } while (lane.worker.reap() + lane.box.reap() > 0);
  }

  static bool send(Lane& lane, const std::byte* payload) {
    TxPacket packet{.to = &lane.to, .header = {}, .payload = payload, .tag = {}};
    packet.header.payload_bytes = kPayloadBytes;
    return lane.worker.tx_burst({&packet, 1}) == 1;
  }

  // Returns whether the next packet to the box carries these bytes.
  static bool receives(Lane& lane, const std::byte* payload) {
    std::vector<RxPacket> packets(1);
    const uint64_t end_ns = monotonic_ns() + kPatienceNs;
    while (lane.box.rx_burst(packets) == 0) {
      lane.worker.rx_burst(packets);
      if (monotonic_ns() >= end_ns) return false;
    }
    return packets[0].bytes == limits::kPacketOverheadBytes + kPayloadBytes &&
           std::memcmp(packets[0].data + limits::kHeaderBytes, payload, kPayloadBytes) == 0;
  }

  static uint64_t direct(const Lane& lane) {
    return lane.worker.counters().get(PortCounter::kExternalPackets);
  }
  static uint64_t staged(const Lane& lane) {
    return lane.worker.counters().get(PortCounter::kStagedPackets);
  }

  // Waits until the lane has released the memory. Returns false if that takes too long.
  static bool removes(Lane& lane, const std::byte* memory) {
    std::vector<RxPacket> packets(1);
    const uint64_t end_ns = monotonic_ns() + kPatienceNs;
    while (!lane.worker.remove_memory(memory)) {
      lane.worker.rx_burst(packets);
      lane.worker.reap();
      if (monotonic_ns() >= end_ns) return false;
    }
    return true;
  }

  std::shared_ptr<RdmaDevice> device = open_device("rxe1");
  std::shared_ptr<ProtectionDomain> domain;
  std::vector<Lane> lanes;
};

std::vector<std::byte> patterned(size_t bytes) {
  std::vector<std::byte> memory(bytes);
  for (size_t index = 0; index < bytes; ++index) memory[index] = static_cast<std::byte>(index * 7);
  return memory;
}

}  // namespace

TEST_CASE("memory registered once is read by all lanes, and by queue pairs made anew", "[memory]") {
  {
    const auto memory = patterned(3 * kPayloadBytes);
    Lanes rack;
    auto region = register_to_read(*rack.device, *rack.domain, memory.data(), 2 * kPayloadBytes);
    REQUIRE(region);
    for (Lanes::Lane& lane : rack.lanes) {
      lane.worker.add_memory(memory.data(), 2 * kPayloadBytes, (*region)->lkey);
      for (const uint64_t owner : {2, 3}) {
        REQUIRE(Lanes::send(lane, memory.data() + kPayloadBytes));
        CHECK(Lanes::receives(lane, memory.data() + kPayloadBytes));
        CHECK(Lanes::direct(lane) == owner - 1);
        Lanes::disconnect(lane, owner - 1);
        Lanes::connect(lane, owner);
      }
      CHECK(Lanes::staged(lane) == 0);
      // The last byte of this payload is outside the registered memory, so the packet is copied.
      REQUIRE(Lanes::send(lane, memory.data() + kPayloadBytes + 1));
      CHECK(Lanes::receives(lane, memory.data() + kPayloadBytes + 1));
      CHECK(Lanes::staged(lane) == 1);
      CHECK(lane.worker.refused_packets() == 0);
      CHECK(Lanes::removes(lane, memory.data()));
    }
  }
  CHECK(verbs_objects() == 0);
}

TEST_CASE("memory stays while a packet from there is under way, and new packets are copied",
          "[memory]") {
  const auto memory = patterned(kPayloadBytes);
  Lanes rack;
  auto region = register_to_read(*rack.device, *rack.domain, memory.data(), memory.size());
  REQUIRE(region);
  Lanes::Lane& lane = rack.lanes[0];
  lane.worker.add_memory(memory.data(), memory.size(), (*region)->lkey);
  const uint64_t count = Lanes::kBoxBuffers + 3;  // the box has no buffer for the last three
  for (uint64_t packet = 0; packet < count; ++packet) REQUIRE(Lanes::send(lane, memory.data()));
  CHECK(Lanes::direct(lane) == count);
  CHECK_FALSE(lane.worker.remove_memory(memory.data()));
  REQUIRE(Lanes::send(lane, memory.data()));
  CHECK(Lanes::direct(lane) == count);
  CHECK(Lanes::staged(lane) == 1);
  SECTION("until it has been read") {
    for (uint64_t packet = 0; packet <= count; ++packet) {
      CHECK(Lanes::receives(lane, memory.data()));
    }
    CHECK(Lanes::removes(lane, memory.data()));
    CHECK(!lane.worker.is_broken(lane.to));
  }
  SECTION("or until its queue pair is gone") {
    lane.worker.close(1);
    CHECK(Lanes::removes(lane, memory.data()));
  }
}

// The box takes no packet of the first peer from its queue, so the peer's send queue stays full.
TEST_CASE("a peer that takes nothing holds up no packet to another peer", "[memory]") {
  constexpr uint32_t kInFlight = 256;  // the length of a send queue
  const auto memory = patterned(kPayloadBytes);
  const auto device = open_device("rxe1");
  auto sender = RdmaQueue::open({.device = device,
                                 .hugepages = Hugepages::kNever,
                                 .receive_slots = 8,
                                 .staging_slots = 64,
                                 .peers_max = 2,
                                 .held_packets_max = 64});
  REQUIRE(sender);
  REQUIRE(sender->add_memory(memory.data(), memory.size()));
  std::vector<RdmaQueue> receivers;
  std::vector<Endpoint> ends;
  for (uint64_t peer = 0; peer < 2; ++peer) {
    receivers.push_back(open_queue(open_device("rxe0"), nullptr, Lanes::kBoxBuffers));
    const auto own = sender->prepare(peer + 1);
    const auto other = receivers[peer].prepare(peer + 1);
    REQUIRE(own);
    REQUIRE(other);
    REQUIRE(receivers[peer].complete(other->endpoint, own->own));
    REQUIRE(sender->complete(own->endpoint, other->own));
    ends.push_back(own->endpoint);
  }
  const auto packet_to = [&](size_t peer) {
    TxPacket packet{.to = &ends[peer], .header = {}, .payload = memory.data(), .tag = {}};
    packet.header.payload_bytes = kPayloadBytes;
    return packet;
  };
  const TxPacket to_full = packet_to(0);
  uint64_t sent = 0;  // one at a time, so that the device gets each
  for (; sent < kInFlight + Lanes::kBoxBuffers; ++sent) {
    REQUIRE(sender->tx_burst({&to_full, 1}) == 1);
  }
  const std::vector<TxPacket> burst = {to_full, packet_to(1), to_full};
  CHECK(sender->tx_burst(burst) == burst.size());
  sent += 2;
  std::vector<RxPacket> packets(4);
  const auto receives = [&](size_t peer) {
    const uint64_t end_ns = monotonic_ns() + kPatienceNs;
    size_t received = 0;
    while ((received = receivers[peer].rx_burst(packets)) == 0 && monotonic_ns() < end_ns) {
      std::vector<RxPacket> none(1);
      sender->rx_burst(none);
    }
    return received;
  };
  CHECK(receives(1) == 1);
  CHECK(sender->counters().get(PortCounter::kNoQueuePair) == 0);
  // The packets to the first peer were only held. They arrive once it takes what it has.
  uint64_t arrived = 0;
  while (arrived < sent) {
    const size_t received = receives(0);
    REQUIRE(received > 0);
    arrived += received;
  }
  CHECK(arrived == sent);
}

TEST_CASE("packets from memory that was refused are told apart", "[memory]") {
  const auto memory = patterned(2 * kPayloadBytes);
  Lanes rack;
  Lanes::Lane& lane = rack.lanes[0];
  lane.worker.add_memory(memory.data(), kPayloadBytes, PayloadMemory::kRefused);
  REQUIRE(Lanes::send(lane, memory.data()));
  REQUIRE(Lanes::send(lane, memory.data() + kPayloadBytes));
  CHECK(Lanes::receives(lane, memory.data()));
  CHECK(Lanes::staged(lane) == 2);
  CHECK(lane.worker.refused_packets() == 1);
  CHECK(lane.worker.remove_memory(memory.data()));
}

}  // namespace pbox::nic::rdma_memory_test
