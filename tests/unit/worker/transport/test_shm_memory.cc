// Payloads that stay in the shared heap, or in the box's memory.
#include <catch2/catch.hpp>

#include "tests/unit/worker/transport/lane_box.h"

namespace pbox::worker {

TEST_CASE("inputs in the shared heap stay there, on every lane, and others are copied") {
  const auto heap = SharedHeap::make(1 << 20);
  REQUIRE(heap.ok());
  LaneBox box(2);
  box.heap = heap->get();
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  CHECK(transport.unread_memory().size() == 1 << 20);
  std::byte* const input = (*heap)->allocate(10'000);
  REQUIRE(input != nullptr);
  ShmBurst burst;
  for (uint32_t lane = 0; lane < 2; ++lane) {
    ShmPacket shared(1, 8192, kShmSpi + lane);
    std::memcpy(input, shared.payload.data(), shared.payload.size());
    shared.packet.payload = input;
    const ShmPacket own(2, 8192, kShmSpi + lane);
    const nic::TxPacket both[] = {shared.packet, own.packet};
    REQUIRE(transport.tx_burst(lane, both) == 2);
    REQUIRE(box.ports[lane].rx_burst(burst) == 2);
    CHECK(shared.is_same(burst[0]));
    CHECK(own.is_same(burst[1]));
    input[5000] ^= std::byte{0x55};
    CHECK(burst[0].payload[5000] == input[5000]);
    // A retransmission is copied. The box may have received the first packet, and then the memory
    // may change.
    shared.packet.header.flags = wire::flag::kRetransmission;
    REQUIRE(transport.tx_burst(lane, std::span(&shared.packet, 1)) == 1);
    REQUIRE(box.ports[lane].rx_burst(burst) == 1);
    input[5000] ^= std::byte{0x55};
    CHECK(burst[0].payload[5000] != input[5000]);
  }
  CHECK(transport.payload_counts().direct == 2);
  CHECK(transport.payload_counts().staged == 4);
}

TEST_CASE("a heap that the box does not read is of no use, and does no harm") {
  const auto heap = SharedHeap::make(1 << 20);
  REQUIRE(heap.ok());
  LaneBox box(1);
  box.heap = heap->get();
  box.memory_bytes_max = 4096;
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  CHECK(transport.unread_memory().empty());
  ShmPacket packet(1, 8192, kShmSpi);
  std::byte* const input = (*heap)->allocate(8192);
  std::memcpy(input, packet.payload.data(), packet.payload.size());
  packet.packet.payload = input;
  REQUIRE(transport.tx_burst(0, std::span(&packet.packet, 1)) == 1);
  ShmBurst burst;
  REQUIRE(box.ports[0].rx_burst(burst) == 1);
  CHECK(packet.is_same(burst[0]));
  CHECK(transport.payload_counts().direct == 0);
}

TEST_CASE("results that the box shows are read there") {
  auto arena = NumaArena::create(1 << 20, kAnyNumaNode, Hugepages::kNever, Sharing::kReadable);
  REQUIRE(arena.ok());
  LaneBox box(1);
  box.results = &*arena;
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  const nic::Endpoint from = introduce(transport, 0, box);
  ShmPacket packet(3, 8192, kShmSpi, &from);
  packet.packet.header.set_type(wire::PacketType::kResult);
  std::memcpy(arena->data(), packet.payload.data(), packet.payload.size());
  packet.packet.payload = arena->data();
  send_from_box(box.ports[0], packet);
  ShmBurst burst;
  REQUIRE(transport.rx_burst(0, burst) == 1);
  CHECK(packet.is_same(burst[0]));
  arena->data()[100] = std::byte{99};
  CHECK(burst[0].payload[100] == std::byte{99});
}

}  // namespace pbox::worker
