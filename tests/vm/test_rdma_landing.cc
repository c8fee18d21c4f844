// Packets that are written into slots of the box, in a guest of tests/vm: what the queues do, and
// what a peer cannot do.
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "nic/rdma/queue.h"

namespace pbox::nic::rdma_landing_test {
namespace {

constexpr uint32_t kRing = 5;
constexpr uint16_t kPayloadBytes = 20'000;
constexpr uint64_t kPatienceNs = 30 * kNanosPerSecond;

RdmaQueue open_queue(const std::string& name, uint32_t landing_slots, uint32_t receive_slots) {
  auto device = RdmaDevice::open({.name = name});
  REQUIRE(device);
  auto queue = RdmaQueue::open({.device = *device,
                                .hugepages = Hugepages::kNever,
                                .receive_slots = receive_slots,
                                .staging_slots = 64,
                                .landing_slots = landing_slots,
                                .peers_max = 4});
  REQUIRE(queue);
  return std::move(*queue);
}

std::byte byte_of(uint32_t number) {
  return static_cast<std::byte>(number * 7 + 1);
}

// A box and workers on a device each, in one thread.
struct Rack {
  // `tell` changes what the box says about its ring.
  Endpoint join(uint64_t owner, const std::function<void(wire::LandingRing&)>& tell = {}) {
    const auto own = worker.prepare(owner);
    REQUIRE(own);
    auto other = box.prepare(owner, kRing);
    REQUIRE(other);
    REQUIRE(box.complete(other->endpoint, own->own));
    if (tell) tell(other->own.landing);
    REQUIRE(worker.complete(own->endpoint, other->own));
    rings.push_back(other->own.landing);
    ends.push_back(other->endpoint);
    return own->endpoint;
  }

  bool send(const Endpoint& to, uint32_t number) {
    const std::vector<std::byte> payload(kPayloadBytes, byte_of(number));
    TxPacket packet{.to = &to, .header = {}, .payload = payload.data(), .tag = {}};
    packet.header.payload_bytes = kPayloadBytes;
    packet.header.chunk = number;
    return worker.tx_burst({&packet, 1}) == 1;
  }

  // Returns the packets that reach the box, in order, until there are `count`, `done` is true, or
  // the patience is over.
  std::vector<uint32_t> receive(size_t count, const std::function<bool()>& done = {}) {
    std::vector<uint32_t> numbers;
    std::vector<RxPacket> packets(4);
    const uint64_t end_ns = monotonic_ns() + kPatienceNs;
    while (numbers.size() < count && !(done && done()) && monotonic_ns() < end_ns) {
      worker.rx_burst(packets);
      const size_t received = box.rx_burst(packets);
      for (const RxPacket& packet : std::span(packets).first(received)) {
        wire::Header header;
        std::memcpy(&header, packet.data, sizeof(header));
        CHECK(packet.bytes == limits::kPacketOverheadBytes + kPayloadBytes);
        CHECK(packet.data[limits::kHeaderBytes] == byte_of(header.chunk));
        CHECK(packet.data[limits::kHeaderBytes + kPayloadBytes - 1] == byte_of(header.chunk));
        numbers.push_back(header.chunk);
      }
    }
    return numbers;
  }

  uint64_t bad() const { return box.counters().get(PortCounter::kBadImmediates); }

  RdmaQueue box = open_queue("rxe0", 2 * kRing, 8);
  RdmaQueue worker = open_queue("rxe1", 0, 8);
  std::vector<wire::LandingRing> rings;
  std::vector<Endpoint> ends;  // the box's
};

std::vector<uint32_t> count_to(uint32_t end) {
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; number < end; ++number) numbers.push_back(number);
  return numbers;
}

}  // namespace

TEST_CASE("a peer that sends faster than its ring is read waits, and loses nothing", "[landing]") {
  {
    Rack rack;
    const Endpoint box = rack.join(1);
    REQUIRE(rack.rings[0].slots == kRing);
    for (uint32_t number = 0; number < 50; ++number) REQUIRE(rack.send(box, number));
    CHECK(rack.receive(50) == count_to(50));
    CHECK(rack.box.counters().get(PortCounter::kLandedPackets) == 50);
    CHECK(rack.bad() == 0);
    CHECK(!rack.worker.is_broken(box));
  }
  CHECK(verbs_objects() == 0);
}

TEST_CASE("a packet that names another slot than the next is dropped, and later ones are read",
          "[landing]") {
  Rack rack;
  // The worker is told one slot too few, so from the fifth packet on it begins again too early.
  const Endpoint box = rack.join(1, [](wire::LandingRing& ring) { --ring.slots; });
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0; number < 25; ++number) {
    const uint64_t bad = rack.bad();
    REQUIRE(rack.send(box, number));
    for (const uint32_t each : rack.receive(1, [&] { return rack.bad() > bad; })) {
      numbers.push_back(each);
    }
  }
  // Both are at slot 0 again after 4 * 5 packets.
  CHECK(numbers == std::vector<uint32_t>{0, 1, 2, 3, 20, 21, 22, 23});
  CHECK(rack.bad() == 17);
  CHECK(!rack.box.is_broken(rack.ends[0]));
}

TEST_CASE("a peer can write to its own ring and nowhere else, and others go on", "[landing]") {
  {
    Rack rack;
    const Endpoint honest = rack.join(1);
    const wire::LandingRing ring = rack.rings[0];
    const auto change = GENERATE(0, 1, 2, 3);
    const Endpoint rogue = rack.join(2, [&](wire::LandingRing& told) {
      if (change == 0) told = ring;  // another peer's ring, with that one's key
      if (change == 1) told.address += uint64_t{told.slots} * told.slot_bytes;  // beyond its own
      if (change == 2) told.address = ring.address;  // another peer's ring, with its own key
      if (change == 3) told.key = ring.key;
    });
    REQUIRE(rack.send(rogue, 99));
    CHECK(rack.receive(1, [&] { return rack.worker.is_broken(rogue); }).empty());
    CHECK(rack.worker.is_broken(rogue));
    CHECK(!rack.worker.is_broken(honest));
    for (uint32_t number = 0; number < 20; ++number) REQUIRE(rack.send(honest, number));
    CHECK(rack.receive(20) == count_to(20));
  }
  CHECK(verbs_objects() == 0);
}

TEST_CASE("a slot that is written again does not change the packet that was received from it",
          "[landing]") {
  Rack rack;
  // Each packet goes to slot 0, whatever the box reads.
  const Endpoint box = rack.join(1, [](wire::LandingRing& ring) { ring.slots = 1; });
  REQUIRE(rack.send(box, 1));
  std::vector<RxPacket> packets(4);
  const uint64_t end_ns = monotonic_ns() + kPatienceNs;
  size_t received = 0;
  while (received == 0 && monotonic_ns() < end_ns) received = rack.box.rx_burst(packets);
  REQUIRE(received == 1);
  const std::vector<std::byte> before(packets[0].data, packets[0].data + packets[0].bytes);
  REQUIRE(rack.send(box, 2));
  // The ring's memory shows when the device has carried out the second write.
  const auto* slot = reinterpret_cast<const volatile std::byte*>(rack.rings[0].address);
  while (slot[limits::kHeaderBytes] != byte_of(2) && monotonic_ns() < end_ns) {
  }
  REQUIRE(slot[limits::kHeaderBytes] == byte_of(2));
  CHECK(std::memcmp(packets[0].data, before.data(), before.size()) == 0);
}

TEST_CASE("rings go to peers while there are some, and come back with their queue pairs",
          "[landing]") {
  Rack rack;
  std::vector<RxPacket> packets(4);
  for (uint64_t cycle = 0; cycle < 3; ++cycle) {
    for (uint64_t peer = 1; peer <= 2; ++peer) rack.join(10 * cycle + peer);
    CHECK(rack.rings[3 * cycle].slots == kRing);
    CHECK(rack.rings[3 * cycle + 1].slots == kRing);
    // No ring is left, so this peer uses SEND.
    const Endpoint box = rack.join(10 * cycle + 3);
    CHECK(rack.rings[3 * cycle + 2].slots == 0);
    REQUIRE(rack.send(box, 7));
    CHECK(rack.receive(1) == std::vector<uint32_t>{7});
    for (uint64_t peer = 1; peer <= 3; ++peer) {
      CHECK(rack.box.close(10 * cycle + peer));
      CHECK(rack.worker.close(10 * cycle + peer));
    }
    do {
      rack.box.rx_burst(packets);
      rack.worker.rx_burst(packets);
    } while (rack.box.reap() + rack.worker.reap() > 0);
  }
}

}  // namespace pbox::nic::rdma_landing_test
