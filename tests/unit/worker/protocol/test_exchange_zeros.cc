// Fragments that are zero: the worker names them in one packet, and takes results that do so.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_zeros_test {
namespace {

using wire::PacketType;

constexpr uint32_t kFragmentFloats = kFragmentBytes / sizeof(float);

// Starts tensor 0 with zeros in these fragments, counted modulo 64, and ones in the others.
void start(Shim& shim, uint64_t zeros) {
  auto& buffer = shim.buffer(0);
  for (size_t index = 0; index < buffer.size(); ++index) {
    const size_t fragment = index / kFragmentFloats % limits::kFragmentCountMax;
    buffer[index] = (zeros >> fragment & 1) != 0 ? 0.0f : 1.0f;
  }
  auto* data = reinterpret_cast<std::byte*>(buffer.data());
  shim.exchange.start({.tensor = 0, .input = data, .output = data});
}

float at(Shim& shim, uint32_t fragment) {
  return shim.buffer(0)[fragment * kFragmentFloats];
}

}  // namespace

TEST_CASE("fragments that are zero are named in one packet, behind the others") {
  Shim shim({.takes_zeros = true});
  start(shim, 0b1010);
  const auto pushed = shim.take_all();
  REQUIRE(pushed.size() == 3);
  CHECK(pushed[0].header.type() == PacketType::kPush);
  CHECK(pushed[0].header.fragment == 0);
  CHECK(pushed[1].header.type() == PacketType::kPush);
  CHECK(pushed[1].header.fragment == 2);
  const wire::Header& header = pushed[2].header;
  CHECK(header.type() == PacketType::kZeros);
  CHECK(header.fragment == 1);
  CHECK(header.round == 0);
  CHECK(header.epoch == 5);
  CHECK(header.generation == 6);
  CHECK(header.dtype_scale == 0);
  CHECK(header.flags == wire::flag::kLast);
  REQUIRE(pushed[2].payload.size() == 8);
  CHECK(pushed[2].held_mask() == 0b1010);
  CHECK(shim.exchange.statistics().bytes_pushed == 2 * kFragmentBytes + 8);
  CHECK(shim.exchange.statistics().zero_fragments == 2);
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
}

TEST_CASE("a box that does not know the packet is sent zeros as they are") {
  Shim shim;
  start(shim, 0b1111);
  CHECK(shim.take_all(PacketType::kPush).size() == 4);
  CHECK(shim.exchange.statistics().zero_fragments == 0);
  shim.deliver(shim.zeros(0, 0, 0b1111));
  CHECK(shim.exchange.statistics().rejected_packets == 1);
  CHECK(shim.exchange.take_completed().empty());
}

TEST_CASE("a fragment with one value that is not zero, or with -0, is sent") {
  Shim shim({.takes_zeros = true});
  auto& buffer = shim.buffer(0);
  buffer[2 * kFragmentFloats - 1] = 1e-45f;
  buffer[2 * kFragmentFloats] = -0.0f;
  auto* data = reinterpret_cast<std::byte*>(buffer.data());
  shim.exchange.start({.tensor = 0, .input = data, .output = data});
  const auto pushed = shim.take_all();
  REQUIRE(pushed.size() == 3);
  CHECK(pushed[0].header.fragment == 1);
  CHECK(pushed[1].header.fragment == 2);
  CHECK(pushed[2].held_mask() == 0b1001);
}

TEST_CASE("a chunk that is zero takes one packet each way") {
  Shim shim({.tensor_chunks = {2}, .takes_zeros = true});
  start(shim, 0b1111'1111);
  auto pushed = shim.take_all();
  REQUIRE(pushed.size() == 2);
  CHECK(pushed[0].held_mask() == 0b1111);
  CHECK(pushed[1].header.chunk == 1);
  std::fill(shim.buffer(0).begin(), shim.buffer(0).end(), 7.0f);  // as if it were the output's
  shim.deliver(shim.zeros(0, 0, 0b1111));
  CHECK(shim.exchange.take_completed().empty());
  shim.deliver(shim.zeros(1, 0, 0b1111));
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(std::count(shim.buffer(0).begin(), shim.buffer(0).end(), 0.0f) == 2048);
  CHECK(shim.exchange.statistics().bytes_pulled == 16);
  CHECK(shim.exchange.round(0) == 1);
}

TEST_CASE("zeros of a result go where its bytes would, with a shadow too") {
  const bool has_shadow = GENERATE(false, true);
  Shim shim({.has_shadow = has_shadow, .takes_zeros = true});
  for (uint32_t round = 0; round < 3; ++round) {
    start(shim, 0);
    CHECK(shim.take_all().size() == 4);
    shim.deliver(shim.result(0, round, 3, 5.0f));
    shim.deliver(shim.zeros(0, round, 0b0101));
    shim.deliver(shim.zeros(0, round, 0b1101));  // all of them are here
    CHECK(shim.exchange.take_completed().empty());
    shim.deliver(shim.result(0, round, 1, 4.0f));
    CHECK(shim.exchange.take_completed().size() == 1);
    CHECK(at(shim, 0) == 0.0f);
    CHECK(at(shim, 1) == 4.0f);
    CHECK(at(shim, 2) == 0.0f);
    CHECK(at(shim, 3) == 5.0f);
  }
  CHECK(shim.exchange.statistics().stale_packets == 3);
  CHECK(shim.exchange.statistics().rejected_packets == 0);
}

TEST_CASE("zeros of a result do not overwrite a fragment that has come with its bytes") {
  Shim shim({.takes_zeros = true});
  start(shim, 0);
  shim.take_all();
  shim.deliver(shim.result(0, 0, 1, 4.0f));
  shim.deliver(shim.zeros(0, 0, 0b1111));
  CHECK(shim.exchange.take_completed().size() == 1);
  CHECK(at(shim, 1) == 4.0f);
  CHECK(at(shim, 3) == 0.0f);
}

TEST_CASE("a result names no fragments beyond its chunk, and none of another round") {
  Shim shim({.takes_zeros = true});
  start(shim, 0);
  shim.take_all();
  shim.deliver(shim.zeros(0, 0, 0b11000));
  auto spoilt = shim.zeros(0, 0, 0b110);
  spoilt.header.fragment = 0;
  shim.deliver(spoilt);
  spoilt = shim.zeros(0, 0, 0b1);
  spoilt.header.dtype_scale = 1;
  shim.deliver(spoilt);
  CHECK(shim.exchange.statistics().rejected_packets == 3);
  shim.deliver(shim.zeros(0, 1, 0b1111));
  CHECK(shim.exchange.statistics().stale_packets == 1);
  CHECK(shim.exchange.take_completed().empty());
  CHECK(at(shim, 0) == 1.0f);
}

TEST_CASE("zeros that were lost are named again, and nothing else is sent again") {
  Shim shim({.takes_zeros = true});
  start(shim, 0b0110);
  CHECK(shim.take_all().size() == 3);
  shim.expire();
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0b1001));
  auto again = shim.take_all();
  std::erase_if(again, [](const Pushed& one) { return one.header.type() == PacketType::kPull; });
  REQUIRE(again.size() == 1);
  CHECK(again[0].header.type() == PacketType::kZeros);
  CHECK(again[0].held_mask() == 0b0110);
  CHECK((again[0].header.flags & wire::flag::kRetransmission) != 0);
  CHECK(shim.exchange.statistics().retransmitted_fragments == 1);
  CHECK(shim.exchange.statistics().zero_fragments == 2);  // counted once
  shim.expire();
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0b0110));
  again = shim.take_all(PacketType::kPush);
  REQUIRE(again.size() == 2);
  CHECK(again[0].header.fragment == 0);
  CHECK(again[1].header.fragment == 3);
}

TEST_CASE("after a loss of the box zeros are found anew") {
  Shim shim({.has_shadow = true, .takes_zeros = true});
  start(shim, 0b0110);
  CHECK(shim.take_all().size() == 3);
  REQUIRE(shim.resume({0}));
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0));
  const auto again = shim.take_all();
  REQUIRE(again.size() == 3);
  CHECK(again[2].header.type() == PacketType::kZeros);
  CHECK(again[2].held_mask() == 0b0110);
}

TEST_CASE("a result that is given back is sent whole") {
  Shim shim({.has_shadow = true, .takes_zeros = true});
  start(shim, 0b1111);
  shim.take_all();
  shim.deliver(shim.zeros(0, 0, 0b1111));
  CHECK(shim.exchange.take_completed().size() == 1);
  REQUIRE(shim.resume({0}, {0}));
  const auto given = shim.take_all();
  REQUIRE(given.size() == 4);
  for (const Pushed& packet : given) CHECK(packet.header.type() == PacketType::kState);
}

TEST_CASE("chunks that are zero both ways make room for more in the window") {
  Shim shim({.tensor_chunks = {20}, .credit_bytes = 2 * kChunkBytes, .takes_zeros = true});
  start(shim, ~uint64_t{0});
  for (auto& value : shim.buffer(0)) value = 0;
  auto pushed = shim.take_all();
  CHECK(pushed.size() == 2);  // results may have all of their bytes
  for (uint32_t chunk = 0; chunk < 20; ++chunk) {
    shim.deliver(shim.zeros(chunk, 0, 0b1111));
    shim.take_all();
  }
  REQUIRE(shim.exchange.take_completed().size() == 1);
  start(shim, ~uint64_t{0});
  for (auto& value : shim.buffer(0)) value = 0;
  pushed = shim.take_all();
  // One packet each, but the last has room for a whole chunk.
  CHECK(pushed.size() == 5);
}

TEST_CASE("compressed fragments that are zero are named too") {
  Shim shim({.has_shadow = true, .takes_zeros = true, .compression = wire::Compression::kQ8});
  start(shim, 0b1111);
  const auto pushed = shim.take_all();
  REQUIRE(pushed.size() == 1);
  CHECK(pushed[0].header.type() == PacketType::kZeros);
  CHECK(pushed[0].header.dtype_scale == static_cast<uint16_t>(wire::Dtype::kQ8));
  CHECK(pushed[0].held_mask() == 0b11);
  std::fill(shim.buffer(0).begin(), shim.buffer(0).end(), 7.0f);
  auto answer = shim.zeros(0, 0, 0b11);
  answer.header.dtype_scale = static_cast<uint16_t>(wire::Dtype::kQ8);
  shim.deliver(answer);
  CHECK(shim.exchange.take_completed().size() == 1);
  CHECK(std::count(shim.buffer(0).begin(), shim.buffer(0).end(), 0.0f) == 1024);
}

TEST_CASE("relaxed jobs and tables are sent zeros as they are") {
  Shim relaxed({.takes_zeros = true, .sync = {.model = wire::SyncModel::kAsp}});
  start(relaxed, 0b1111);
  CHECK(relaxed.take_all(PacketType::kPush).size() == 4);
  Shim table({.takes_zeros = true, .row_elements = 64});
  start(table, 0b1111);
  CHECK(table.take_all(PacketType::kPush).size() == 4);
}

}  // namespace pbox::test::exchange_zeros_test
