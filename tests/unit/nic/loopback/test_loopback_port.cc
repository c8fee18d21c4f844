#include <catch2/catch.hpp>
#include <cstring>
#include <thread>
#include <vector>

#include "nic/loopback/port.h"

namespace pbox::nic {
namespace {

using Bytes = std::vector<std::byte>;

const Endpoint kBox = *parse_endpoint("10.0.0.1", 1);
const Endpoint kWorker = *parse_endpoint("10.0.0.2", 2);

TxPacket packet_of(uint64_t number, const Bytes& payload) {
  TxPacket packet;
  packet.to = &kBox;
  packet.header.packet_number = number;
  packet.header.payload_bytes = static_cast<uint16_t>(payload.size());
  packet.payload = payload.data();
  packet.tag.fill(std::byte{0xee});
  return packet;
}

void send(LoopbackPort& port, uint64_t count) {
  const Bytes payload(64, std::byte{0x55});
  for (uint64_t number = 0; number < count; ++number) {
    const TxPacket packet = packet_of(number, payload);
    REQUIRE(port.tx_burst({&packet, 1}) == 1);
  }
}

std::vector<Bytes> receive_all(LoopbackPort& port) {
  std::vector<Bytes> received;
  std::array<RxPacket, 16> burst;
  while (const size_t count = port.rx_burst(burst)) {
    for (size_t index = 0; index < count; ++index) {
      received.emplace_back(burst[index].data, burst[index].data + burst[index].bytes);
    }
  }
  return received;
}

std::vector<uint64_t> numbers(const std::vector<Bytes>& packets) {
  std::vector<uint64_t> values;
  for (const Bytes& packet : packets) {
    uint64_t number = 0;
    std::memcpy(&number, packet.data() + 8, sizeof(number));
    values.push_back(number);
  }
  return values;
}

struct Run {
  std::vector<Bytes> packets;
  FaultCounts counts;
};

Run run(const FaultPlan& plan, uint64_t count = 1000) {
  LoopbackNetwork network(plan);
  LoopbackPort worker(network, kWorker);
  LoopbackPort box(network, kBox);
  send(worker, count);
  network.advance_to(1'000'000'000);
  return {receive_all(box), network.counts()};
}

}  // namespace

TEST_CASE("a packet arrives once, whole, with its sender's address") {
  LoopbackNetwork network({});
  LoopbackPort worker(network, kWorker);
  LoopbackPort box(network, kBox);
  const Bytes payload = {std::byte{1}, std::byte{2}, std::byte{3}};
  const TxPacket packet = packet_of(9, payload);
  REQUIRE(worker.tx_burst({&packet, 1}) == 1);
  std::array<RxPacket, 4> burst;
  CHECK(worker.rx_burst(burst) == 0);
  REQUIRE(box.rx_burst(burst) == 1);
  CHECK(burst[0].from == kWorker);
  Bytes expected(limits::kPacketOverheadBytes + 3);
  std::memcpy(expected.data(), &packet.header, sizeof(packet.header));
  std::memcpy(expected.data() + 40, payload.data(), 3);
  std::memcpy(expected.data() + 43, packet.tag.data(), 16);
  CHECK(Bytes(burst[0].data, burst[0].data + burst[0].bytes) == expected);
  CHECK(box.rx_burst(burst) == 0);
}

TEST_CASE("a connected port sends to its peer and ignores the packet's destination") {
  LoopbackNetwork network({});
  LoopbackPort worker(network, kWorker, kBox);
  LoopbackPort box(network, kBox);
  TxPacket packet = packet_of(1, {});
  const Endpoint elsewhere = *parse_endpoint("10.9.9.9", 9);
  packet.to = &elsewhere;
  worker.tx_burst({&packet, 1});
  CHECK(receive_all(box).size() == 1);
}

TEST_CASE("without faults every packet arrives in order") {
  const auto result = run({});
  const auto order = numbers(result.packets);
  REQUIRE(order.size() == 1000);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("about the configured share of packets is lost, and the counter has their number") {
  const auto result = run({.loss = 0.1});
  CHECK(result.counts.lost > 60);
  CHECK(result.counts.lost < 150);
  CHECK(result.packets.size() == 1000 - result.counts.lost);
  CHECK(result.counts.sent == 1000);
}

TEST_CASE("duplication delivers the same bytes twice") {
  const auto result = run({.duplication = 0.1});
  CHECK(result.counts.duplicated > 60);
  CHECK(result.packets.size() == 1000 + result.counts.duplicated);
  const auto order = numbers(result.packets);
  uint64_t twins = 0;
  for (size_t index = 1; index < order.size(); ++index) {
    if (order[index] != order[index - 1]) continue;
    ++twins;
    CHECK(result.packets[index] == result.packets[index - 1]);
  }
  CHECK(twins == result.counts.duplicated);
}

TEST_CASE("reordering changes the order of packets and loses none") {
  const auto result = run({.reordering = 0.2, .delay_max_ns = 1'000'000});
  auto order = numbers(result.packets);
  CHECK(result.counts.reordered > 100);
  REQUIRE(order.size() == 1000);
  CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (uint64_t number = 0; number < 1000; ++number) REQUIRE(order[number] == number);
}

TEST_CASE("truncation shortens and a bit flip changes exactly one bit") {
  const auto shortened = run({.truncation = 0.1});
  uint64_t shorter = 0;
  for (const Bytes& packet : shortened.packets) shorter += packet.size() < 120;
  CHECK(shorter == shortened.counts.truncated);
  CHECK(shorter > 60);

  const auto clean = run({});
  const auto flipped = run({.bit_flip = 0.1});
  REQUIRE(flipped.packets.size() == clean.packets.size());
  uint64_t bits = 0;
  for (size_t index = 0; index < clean.packets.size(); ++index) {
    for (size_t at = 0; at < 120; ++at) {
      bits += static_cast<uint64_t>(__builtin_popcount(
          std::to_integer<unsigned>(clean.packets[index][at] ^ flipped.packets[index][at])));
    }
  }
  CHECK(bits == flipped.counts.flipped);
  CHECK(bits > 60);
}

TEST_CASE("a delayed packet waits for the clock, and the network reports until when") {
  LoopbackNetwork network({.delay_ns = 500});
  LoopbackPort worker(network, kWorker);
  LoopbackPort box(network, kBox);
  CHECK(network.next_due_ns() == UINT64_MAX);
  network.advance_to(1000);
  send(worker, 1);
  CHECK(network.next_due_ns() == 1500);
  network.advance_to(1499);
  CHECK(receive_all(box).empty());
  network.advance_to(100);  // time never goes back
  network.advance_to(1500);
  CHECK(receive_all(box).size() == 1);
}

TEST_CASE("the same seed repeats a run byte for byte and another seed does not") {
  const FaultPlan plan{.seed = 5,
                       .loss = 0.1,
                       .duplication = 0.1,
                       .reordering = 0.3,
                       .delay_max_ns = 1000,
                       .truncation = 0.05,
                       .bit_flip = 0.05};
  FaultPlan other = plan;
  other.seed = 6;
  CHECK(run(plan).packets == run(plan).packets);
  CHECK(run(plan).packets != run(other).packets);
}

TEST_CASE("received bytes do not change until the next burst, even while others send") {
  LoopbackNetwork network({});
  LoopbackPort worker(network, kWorker);
  LoopbackPort box(network, kBox);
  send(worker, 2);
  std::array<RxPacket, 2> burst;
  REQUIRE(box.rx_burst(burst) == 2);
  const Bytes before(burst[1].data, burst[1].data + burst[1].bytes);
  send(worker, 500);
  CHECK(Bytes(burst[1].data, burst[1].data + burst[1].bytes) == before);
}

TEST_CASE("ports of one network may live on different threads") {
  constexpr uint64_t kCount = 5000;
  LoopbackNetwork network({});
  std::vector<std::thread> senders;
  for (uint16_t id = 0; id < 3; ++id) {
    senders.emplace_back([&network, id] {
      LoopbackPort port(network, *parse_endpoint("10.0.1.1", id), kBox);
      for (uint64_t number = 0; number < kCount; ++number) {
        const TxPacket packet = packet_of(number, {});
        port.tx_burst({&packet, 1});
      }
    });
  }
  LoopbackPort box(network, kBox);
  std::array<uint64_t, 3> next{};
  std::array<RxPacket, 32> burst;
  uint64_t total = 0;
  uint64_t misplaced = 0;
  while (total < 3 * kCount) {
    const size_t count = box.rx_burst(burst);
    if (count == 0) std::this_thread::yield();
    for (size_t index = 0; index < count; ++index, ++total) {
      uint64_t number = 0;
      std::memcpy(&number, burst[index].data + 8, sizeof(number));
      misplaced += number != next[burst[index].from.port]++;
    }
  }
  for (auto& sender : senders) sender.join();
  CHECK(misplaced == 0);
  CHECK(network.counts().sent == 3 * kCount);
}

}  // namespace pbox::nic
