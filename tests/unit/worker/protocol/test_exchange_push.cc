#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test {

using wire::PacketType;

TEST_CASE("a chunk is pushed as its fragments, in order, with complete headers") {
  Shim shim;
  CHECK(shim.take_all().empty());
  shim.start(0, 2.5f);
  const auto pushed = shim.take_all();
  REQUIRE(pushed.size() == 4);
  for (uint32_t index = 0; index < 4; ++index) {
    const wire::Header& header = pushed[index].header;
    CHECK(header.type() == PacketType::kPush);
    CHECK(header.spi == kSpi);
    CHECK(header.epoch == 5);
    CHECK(header.generation == 6);
    CHECK(header.chunk == 0);
    CHECK(header.round == 0);
    CHECK(header.fragment == index);
    CHECK(header.timestamp_us == kStartNs / 1000);
    CHECK(header.payload_bytes == kFragmentBytes);
    CHECK(header.flags == (index == 3 ? wire::flag::kLast : 0));
    float value = 0;
    std::memcpy(&value, pushed[index].payload.data(), sizeof(value));
    CHECK(value == 2.5f);
  }
  CHECK(shim.exchange.statistics().bytes_pushed == kChunkBytes);
  CHECK(shim.take_all().empty());
}

TEST_CASE("packet numbers continue from those used before the exchange was built") {
  Shim shim({.packets_before = 39});
  shim.start(0);
  uint64_t expected = 40;
  for (const auto& packet : shim.take_all()) CHECK(packet.header.packet_number == expected++);
  CHECK(expected == 44);
}

TEST_CASE("results are awaited from a chunk's first packet until the last result is complete") {
  Shim shim({.tensor_chunks = {2}});
  CHECK_FALSE(shim.exchange.awaits_results());
  shim.start(0);
  shim.take_all();
  CHECK(shim.exchange.awaits_results());
  shim.deliver_result(0, 0, 1.0f);
  CHECK(shim.exchange.awaits_results());
  shim.deliver_result(1, 0, 1.0f);
  CHECK_FALSE(shim.exchange.awaits_results());
  shim.start(0);
  shim.take_all();
  shim.exchange.abandon();
  CHECK_FALSE(shim.exchange.awaits_results());
}

TEST_CASE("no more chunks are outstanding than the window holds, and a result makes room") {
  for (const bool own_bound : {true, false}) {
    ShimOptions options{.tensor_chunks = {10}};
    (own_bound ? options.window_bytes : options.credit_bytes) = 3 * kChunkBytes + 1;
    Shim shim(options);
    shim.start(0);
    CHECK(shim.take_all().size() == 3 * 4);
    shim.deliver_result(1, 0, 1.0f);
    const auto next = shim.take_all();
    REQUIRE(next.size() == 4);
    CHECK(next[0].header.chunk == 3);
    shim.deliver(shim.result(0, 0, 0, 1.0f));  // a part of a result makes no room
    CHECK(shim.take_all().empty());
  }
}

TEST_CASE("a chunk larger than the window is pushed alone") {
  Shim shim({.tensor_chunks = {3}, .window_bytes = 100});
  shim.start(0);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    for (uint32_t fragment = 0; fragment < 4; ++fragment) {
      const auto pushed = shim.take_all(PacketType::kPush);
      REQUIRE(pushed.size() == 1);
      CHECK(pushed[0].header.chunk == chunk);
      CHECK(pushed[0].header.fragment == fragment);
      shim.deliver(shim.status(chunk, 0, (2u << fragment) - 1));
    }
    shim.deliver_result(chunk, 0, 1.0f);
  }
  CHECK_FALSE(shim.exchange.busy(0));
}

TEST_CASE("new credit opens and closes the window within the worker's own bound") {
  Shim shim({.tensor_chunks = {30}, .credit_bytes = kChunkBytes, .window_bytes = 6 * kChunkBytes});
  shim.start(0);
  CHECK(shim.take_all().size() == 4);
  const auto grant = [&](uint32_t bytes) {
    Answer answer = shim.status(0, 0, 0);
    answer.header.set_type(PacketType::kGrant);
    answer.header.payload_bytes = 0;
    answer.payload.clear();
    answer.header.credit = static_cast<uint16_t>(bytes / limits::kCreditUnitBytes);
    shim.deliver(answer);
    shim.credit_bytes = bytes;
    return shim.take_all().size() / 4;
  };
  CHECK(grant(3 * kChunkBytes) == 2);
  CHECK(grant(100 * kChunkBytes) == 3);
  CHECK(grant(kChunkBytes) == 0);
  for (uint32_t chunk = 0; chunk < 5; ++chunk) {
    shim.deliver_result(chunk, 0, 1.0f);
    CHECK(shim.take_all().empty());
  }
  shim.deliver_result(5, 0, 1.0f);
  CHECK(shim.take_all().size() == 4);
}

TEST_CASE("an urgent chunk overtakes all queued chunks within one chunk's time") {
  Shim shim({.tensor_chunks = {20, 1}, .window_bytes = 2 * kChunkBytes});
  shim.start(0, 1.0f, 0);
  CHECK(shim.take_all().size() == 8);
  shim.start(1, 1.0f, 5);  // chunk 20
  shim.deliver_result(0, 0, 1.0f);
  auto next = shim.take_all();
  REQUIRE(next.size() == 4);
  CHECK(next[0].header.chunk == 20);
  shim.deliver_result(1, 0, 1.0f);
  next = shim.take_all();
  REQUIRE(next.size() == 4);
  CHECK(next[0].header.chunk == 2);
}

TEST_CASE("an urgent chunk overtakes retransmissions and half-pushed chunks") {
  Shim shim({.tensor_chunks = {40, 1}, .credit_bytes = 41 * kChunkBytes});
  const auto next_chunks = [&] {
    std::vector<uint32_t> order;
    for (const auto& packet : shim.take_burst()) {
      if (order.empty() || order.back() != packet.header.chunk) {
        order.push_back(packet.header.chunk);
      }
    }
    order.resize(4);
    return order;
  };
  shim.start(0, 1.0f, 0);
  CHECK(next_chunks() == std::vector<uint32_t>{0, 1, 2, 3});  // up to chunk 15
  shim.deliver(shim.status(3, 0, 0b0111));
  shim.deliver(shim.status(1, 0, 0b1110));
  CHECK(next_chunks() == std::vector<uint32_t>{1, 3, 16, 17});  // up to half of chunk 31
  shim.deliver(shim.status(2, 0, 0b1110));
  shim.start(1, 1.0f, 5);  // chunk 40
  CHECK(next_chunks() == std::vector<uint32_t>{40, 2, 31, 32});
}

TEST_CASE("packets that a port did not take are offered again, unchanged") {
  Shim shim;
  shim.start(0);
  const auto offered = shim.exchange.to_send(0, shim.now_ns);
  REQUIRE(offered.size() == 4);
  const uint64_t second = offered[1].header.packet_number;
  shim.exchange.sent(0, 1);
  CHECK(shim.exchange.has_unsent(0));
  const auto rest = shim.exchange.to_send(0, shim.now_ns);
  REQUIRE(rest.size() == 3);
  CHECK(rest[0].header.packet_number == second);
  shim.exchange.sent(0, 3);
  CHECK_FALSE(shim.exchange.has_unsent(0));
}

TEST_CASE("no packet number is used twice, in pushes, retransmissions and probes") {
  Shim shim({.tensor_chunks = {3}});
  for (uint32_t round = 0; round < 3; ++round) {
    shim.start(0);
    shim.take_all();
    for (int count = 0; count < 4; ++count) {
      shim.expire();
      shim.take_all();
      shim.deliver(shim.status(1, round, 0b0101));
      shim.take_all();
    }
    for (uint32_t chunk = 0; chunk < 3; ++chunk) shim.deliver_result(chunk, round, 1.0f);
    CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  }
  std::set<uint64_t> used;
  for (const Pushed& packet : shim.everything) used.insert(packet.header.packet_number);
  CHECK(shim.everything.size() > 3 * (12 + 4 + 8));
  CHECK(used.size() == shim.everything.size());
}

TEST_CASE("abandon stops everything: pushes, retransmissions, probes, completions") {
  Shim shim({.tensor_chunks = {40, 2}, .window_bytes = 20 * kChunkBytes});
  shim.start(0);
  shim.start(1);
  REQUIRE_FALSE(shim.exchange.to_send(0, shim.now_ns).empty());
  shim.exchange.sent(0, 5);  // some were built and not taken
  shim.deliver(shim.status(0, 0, 0b0001));
  shim.exchange.abandon();
  CHECK_FALSE(shim.exchange.has_unsent(0));
  CHECK(shim.take_all().empty());
  CHECK(shim.exchange.next_deadline_ns() == UINT64_MAX);
  shim.now_ns += 10'000'000'000;
  shim.exchange.on_timer(shim.now_ns);
  CHECK(shim.take_all().empty());
  const auto before = shim.buffer(0);
  shim.deliver_result(0, 0, 123.0f);
  shim.deliver(shim.status(1, 0, 0));
  CHECK(shim.buffer(0) == before);
  CHECK(shim.take_all().empty());
  CHECK(shim.exchange.take_completed().empty());
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK_FALSE(shim.exchange.busy(1));
}

}  // namespace pbox::test
