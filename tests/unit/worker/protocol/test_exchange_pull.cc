// Delivery by pull: announcements, and what is pulled when.
#include <catch2/catch.hpp>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test {
namespace {

using wire::Delivery;
using wire::PacketType;

std::vector<uint32_t> chunks_of(const std::vector<Pushed>& packets) {
  std::vector<uint32_t> chunks;
  for (const Pushed& packet : packets) {
    if (chunks.empty() || chunks.back() != packet.header.chunk) {
      chunks.push_back(packet.header.chunk);
    }
  }
  return chunks;
}

}  // namespace

TEST_CASE("a tensor's chunks are pulled when all of them are announced, and not before") {
  Shim shim({.tensor_chunks = {3}, .delivery = Delivery::kPull});
  shim.start(0);
  CHECK(shim.take_all(PacketType::kPush).size() == 12);
  shim.deliver(shim.announcement(2, 0));
  shim.deliver(shim.announcement(0, 0));
  shim.deliver(shim.announcement(0, 0));  // a repeated announcement counts once
  CHECK(shim.take_all().empty());
  shim.deliver(shim.announcement(1, 0));
  const auto pulls = shim.take_all();
  REQUIRE(pulls.size() == 3);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    CHECK(pulls[chunk].header.type() == PacketType::kPull);
    CHECK(pulls[chunk].header.chunk == chunk);
    CHECK(pulls[chunk].header.round == 0);
    CHECK(pulls[chunk].held_mask() == 0);
    shim.deliver_result(chunk, 0, 2.0f);
  }
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.buffer(0) == std::vector<float>(3 * kChunkBytes / sizeof(float), 2.0f));
  CHECK(shim.exchange.statistics().probes_sent == 0);
  CHECK(shim.exchange.statistics().bytes_pushed == 3 * kChunkBytes);
  shim.start(0);
  const auto next = shim.take_all(PacketType::kPush);
  REQUIRE(next.size() == 12);
  CHECK(next[0].header.round == 1);
}

TEST_CASE("pulls wait for the window, behind pushes that are queued already") {
  Shim shim(
      {.tensor_chunks = {2, 3}, .window_bytes = 2 * kChunkBytes, .delivery = Delivery::kPull});
  shim.start(0);
  shim.start(1);
  CHECK(chunks_of(shim.take_all()) == std::vector<uint32_t>{0, 1});
  shim.deliver(shim.announcement(0, 0));
  shim.deliver(shim.announcement(1, 0));
  CHECK(chunks_of(shim.take_all(PacketType::kPush)) == std::vector<uint32_t>{2, 3});
  shim.deliver(shim.announcement(2, 0));
  CHECK(chunks_of(shim.take_all(PacketType::kPush)) == std::vector<uint32_t>{4});
  shim.deliver(shim.announcement(3, 0));
  CHECK(chunks_of(shim.take_all(PacketType::kPull)) == std::vector<uint32_t>{0});
  shim.deliver_result(0, 0, 1.0f);
  CHECK(chunks_of(shim.take_all(PacketType::kPull)) == std::vector<uint32_t>{1});
  shim.deliver(shim.announcement(4, 0));
  CHECK(chunks_of(shim.take_all(PacketType::kPull)) == std::vector<uint32_t>{2});
  for (const uint32_t chunk : {1, 2}) shim.deliver_result(chunk, 0, 1.0f);
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(chunks_of(shim.take_all(PacketType::kPull)) == std::vector<uint32_t>{3, 4});
}

TEST_CASE("a lost announcement is replaced by a probe, whose answer is the result") {
  Shim shim({.tensor_chunks = {2}, .delivery = Delivery::kPull});
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.announcement(0, 0));
  shim.expire();
  const auto probes = shim.take_all(PacketType::kPull);
  REQUIRE(chunks_of(probes) == std::vector<uint32_t>{1});
  shim.deliver_result(1, 0, 3.0f);
  CHECK(shim.exchange.busy(0));
  CHECK(chunks_of(shim.take_all(PacketType::kPull)) == std::vector<uint32_t>{0});
  shim.deliver_result(0, 0, 3.0f);
  CHECK_FALSE(shim.exchange.busy(0));
}

TEST_CASE("a late STATUS from before the announcement does not delay a chunk") {
  Shim shim({.tensor_chunks = {1}, .delivery = Delivery::kPull});
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.announcement(0, 0));
  CHECK(shim.take_all(PacketType::kPull).size() == 1);
  SECTION("another rank is late") {
    shim.deliver(shim.status(0, 0, 0b1111, 1, 1));
    CHECK(shim.exchange.laggard(0, shim.now_ns).kind == worker::Laggard::Kind::kBox);
  }
  SECTION("fragments are missing") {
    shim.deliver(shim.status(0, 0, 0b0011));
    CHECK(shim.take_all(PacketType::kPush).empty());
  }
  CHECK(shim.expire() < 7'500'000);
  CHECK(shim.take_all(PacketType::kPull).size() == 1);
}

TEST_CASE("a missing result is pulled again, with a mask of what has arrived") {
  Shim shim({.tensor_chunks = {1}, .delivery = Delivery::kPull});
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.announcement(0, 0));
  CHECK(shim.take_all(PacketType::kPull).size() == 1);
  shim.deliver(shim.result(0, 0, 2, 1.0f));
  shim.deliver(shim.announcement(0, 0));  // late and not new
  shim.expire();
  const auto again = shim.take_all(PacketType::kPull);
  REQUIRE(again.size() == 1);
  CHECK(again[0].held_mask() == 0b0100);
  for (const uint32_t fragment : {0, 1, 3}) shim.deliver(shim.result(0, 0, fragment, 1.0f));
  CHECK_FALSE(shim.exchange.busy(0));
}

TEST_CASE("fragments that arrived before the announcement are not pulled again") {
  Shim shim({.tensor_chunks = {1}, .delivery = Delivery::kPull});
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.result(0, 0, 1, 1.0f));
  shim.deliver(shim.announcement(0, 0));
  const auto pulls = shim.take_all(PacketType::kPull);
  REQUIRE(pulls.size() == 1);
  CHECK(pulls[0].held_mask() == 0b0010);
}

TEST_CASE("a chunk that waits for other ranks is pulled once it is announced") {
  Shim shim({.tensor_chunks = {1}, .delivery = Delivery::kPull});
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0b1111, 1, 3));
  CHECK(shim.exchange.laggard(0, shim.now_ns).kind == worker::Laggard::Kind::kRank);
  shim.deliver(shim.announcement(0, 0));
  CHECK(shim.take_all(PacketType::kPull).size() == 1);
  CHECK(shim.exchange.laggard(0, shim.now_ns).kind == worker::Laggard::Kind::kBox);
}

TEST_CASE("after the loss of a session announced results are pulled, and restored if needed") {
  Shim shim({.tensor_chunks = {2}, .has_shadow = true, .delivery = Delivery::kPull});
  shim.start(0);
  shim.take_all();
  for (const uint32_t chunk : {0, 1}) shim.deliver(shim.announcement(chunk, 0));
  shim.take_all();
  shim.deliver_result(0, 0, 2.0f);
  // Another box has neither result. Chunk 0's is restored from here, chunk 1 is pushed again.
  REQUIRE(shim.resume({0, 0}, {0}).ok());
  const auto sent = shim.take_all();
  CHECK(chunks_of(sent) == std::vector<uint32_t>{0, 1});
  CHECK(sent[0].header.type() == PacketType::kState);
  CHECK(sent.back().header.type() == PacketType::kPull);  // asks whether the box has the push
  shim.deliver(shim.status(1, 0, 0, 2, 0));
  CHECK(shim.take_all(PacketType::kPush).size() == 4);
  shim.deliver(shim.announcement(0, 0));
  CHECK(shim.take_all().empty());  // the box has the result that this worker restored
  shim.deliver(shim.announcement(1, 0));
  CHECK(chunks_of(shim.take_all(PacketType::kPull)) == std::vector<uint32_t>{1});
  shim.deliver_result(1, 0, 2.0f);
  CHECK_FALSE(shim.exchange.busy(0));
}

TEST_CASE("if results are ignored an operation is done when all of it is announced") {
  Shim shim({.tensor_chunks = {2}, .delivery = Delivery::kPull, .ignores_results = true});
  for (const uint32_t round : {0u, 1u}) {
    shim.start(0);
    const auto before = shim.buffer(0);
    CHECK(shim.take_all(PacketType::kPush).size() == 8);
    shim.deliver(shim.announcement(1, round));
    CHECK(shim.exchange.busy(0));
    // the other chunk's announcement was lost: the probe asks for it, but for no result
    shim.expire();
    const auto probes = shim.take_all(PacketType::kPull);
    REQUIRE(chunks_of(probes) == std::vector<uint32_t>{0});
    CHECK(probes[0].held_mask() == 0b1111);
    shim.deliver(shim.announcement(0, round));
    CHECK_FALSE(shim.exchange.busy(0));
    CHECK(shim.take_all().empty());
    CHECK(shim.buffer(0) == before);
  }
  CHECK(shim.exchange.statistics().bytes_pulled == 0);
}

}  // namespace pbox::test
