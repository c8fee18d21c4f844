#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "nic/rdma/held_packets.h"

namespace pbox::nic {
namespace {

constexpr uint32_t kPeers = 3;

TxPacket small_packet(uint32_t chunk, const std::vector<std::byte>& payload) {
  TxPacket packet;
  packet.header.chunk = chunk;
  packet.header.payload_bytes = static_cast<uint16_t>(payload.size());
  packet.payload = payload.data();
  return packet;
}

// Releases the packets of all peers but `full`. Returns the chunks in the order in which they left.
std::vector<uint32_t> release(HeldPackets& held, std::optional<uint32_t> full = std::nullopt) {
  std::vector<uint32_t> left;
  held.release([&](const HeldPackets::Packet& packet) {
    if (packet.peer == full) return false;
    left.push_back(packet.header.chunk);
    return true;
  });
  return left;
}

}  // namespace

TEST_CASE("held packets leave in their order, but none waits for another peer") {
  HeldPackets held(8, kPeers);
  const std::vector<std::byte> payload(8);
  for (uint32_t chunk = 0; chunk < 6; ++chunk) {
    REQUIRE(held.add(chunk % 2, small_packet(chunk, payload), nullptr));
  }
  CHECK(held.count(0) == 3);
  CHECK(release(held, 0) == std::vector<uint32_t>{1, 3, 5});
  CHECK(held.count(0) == 3);
  CHECK(held.count(1) == 0);
  CHECK(release(held) == std::vector<uint32_t>{0, 2, 4});
  CHECK(held.empty());
}

TEST_CASE("after a packet that stays, the later ones of its peer stay too") {
  HeldPackets held(8, kPeers);
  const std::vector<std::byte> payload(8);
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    REQUIRE(held.add(0, small_packet(chunk, payload), nullptr));
  }
  uint32_t asked = 0;
  held.release([&](const HeldPackets::Packet&) { return ++asked == 1; });
  CHECK(asked == 2);
  CHECK(release(held) == std::vector<uint32_t>{1, 2, 3});
}

TEST_CASE("a small payload is copied, and any other one is in flight until it has left") {
  HeldPackets held(8, kPeers);
  std::vector<std::byte> small(16, std::byte{7});
  REQUIRE(held.add(0, small_packet(0, small), nullptr));
  small.assign(small.size(), std::byte{9});

  std::vector<std::byte> memory(4096);
  PayloadMemory registered(1);
  REQUIRE(registered.add(memory.data(), memory.size()));
  PayloadMemory::Region* region = registered.find(memory.data(), memory.size());
  REQUIRE(region != nullptr);
  REQUIRE(held.add(1, small_packet(1, memory), region));
  CHECK_FALSE(registered.remove(memory.data()));

  held.release([&](const HeldPackets::Packet& packet) {
    const TxPacket to_send = packet.to_send();
    if (packet.peer == 0) CHECK(to_send.payload[0] == std::byte{7});
    if (packet.peer == 1) CHECK(to_send.payload == memory.data());
    CHECK(to_send.header.chunk == packet.peer);
    return true;
  });
  CHECK(registered.remove(memory.data()));
}

TEST_CASE("one peer cannot fill the queue, and what does not fit is refused") {
  HeldPackets held(HeldPackets::kPerPeerMax + 2, kPeers);
  const std::vector<std::byte> payload(8);
  for (uint32_t chunk = 0; chunk < HeldPackets::kPerPeerMax; ++chunk) {
    REQUIRE(held.add(0, small_packet(chunk, payload), nullptr));
  }
  CHECK_FALSE(held.add(0, small_packet(0, payload), nullptr));
  CHECK(held.add(1, small_packet(0, payload), nullptr));
  CHECK(held.add(2, small_packet(0, payload), nullptr));
  CHECK_FALSE(held.add(2, small_packet(1, payload), nullptr));
  HeldPackets none(0, kPeers);
  CHECK_FALSE(none.is_enabled());
  CHECK_FALSE(none.add(0, small_packet(0, payload), nullptr));
}

TEST_CASE("the packets of a peer that has gone are forgotten, and their memory is free") {
  HeldPackets held(8, kPeers);
  const std::vector<std::byte> small(8);
  std::vector<std::byte> memory(4096);
  PayloadMemory registered(1);
  REQUIRE(registered.add(memory.data(), memory.size()));
  REQUIRE(held.add(0, small_packet(0, memory), registered.find(memory.data(), memory.size())));
  REQUIRE(held.add(1, small_packet(1, small), nullptr));
  CHECK(held.drop(0) == 1);
  CHECK(held.drop(0) == 0);
  CHECK(registered.remove(memory.data()));
  CHECK(release(held) == std::vector<uint32_t>{1});
}

}  // namespace pbox::nic
