// From one session to the next: what is pushed again, pulled or restored, and what is refused.
#include <catch2/catch.hpp>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_resume_test {
namespace {

using Catch::Contains;
using wire::PacketType;

constexpr size_t kChunkFloats = kChunkBytes / sizeof(float);

float first_value(const Pushed& packet) {
  float value = 0;
  std::memcpy(&value, packet.payload.data(), sizeof(value));
  return value;
}

// Runs one round of every tensor whose result is `value`.
void run_round(Shim& shim, uint32_t tensors, uint32_t chunks, uint32_t round, float value) {
  for (uint32_t tensor = 0; tensor < tensors; ++tensor) shim.start(tensor);
  shim.take_all();
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) shim.deliver_result(chunk, round, value);
  REQUIRE(shim.exchange.take_completed().size() == tensors);
}

}  // namespace

TEST_CASE("with a shadow an in-place input stays unchanged until the chunk's result is complete") {
  Shim shim({.tensor_chunks = {2}, .has_shadow = true});
  CHECK(shim.exchange.statistics().shadow_bytes == 2 * kChunkBytes);
  shim.start(0, 1.0f);
  shim.take_all();
  for (const uint32_t fragment : {0u, 1u, 3u}) shim.deliver(shim.result(0, 0, fragment, 5.0f));
  CHECK(shim.buffer(0) == std::vector<float>(2 * kChunkFloats, 1.0f));
  shim.deliver(shim.result(0, 0, 2, 5.0f));
  CHECK(shim.buffer(0)[0] == 5.0f);
  CHECK(shim.buffer(0)[kChunkFloats - 1] == 5.0f);
  CHECK(shim.buffer(0)[kChunkFloats] == 1.0f);
  shim.deliver_result(1, 0, 6.0f);
  CHECK(shim.buffer(0)[kChunkFloats] == 6.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
}

TEST_CASE("with two shadows one is complete while the next result arrives in the other") {
  for (const uint32_t shadows : {1u, 2u}) {
    Shim shim({.tensor_chunks = {1}, .has_shadow = true, .shadows = shadows});
    CHECK(shim.exchange.statistics().shadow_bytes == shadows * kChunkBytes);
    run_round(shim, 1, 1, 0, 5.0f);
    shim.start(0, 1.0f);
    shim.take_all();
    shim.deliver(shim.result(0, 1, 0, 6.0f));
    CHECK(shim.exchange.lacks_result(0) == (shadows == 1));
    if (shadows == 1) continue;
    REQUIRE(shim.resume({0}, {0}).ok());
    const auto given = shim.take_all();
    REQUIRE(given.size() == 4);
    for (const Pushed& packet : given) {
      CHECK(packet.header.type() == PacketType::kState);
      CHECK(packet.header.round == 0);
      CHECK(first_value(packet) == 5.0f);
    }
    CHECK(shim.buffer(0)[0] == 1.0f);  // it will be pushed again
  }
}

TEST_CASE("a suspended exchange sends and accepts nothing, and operations stay pending") {
  Shim shim({.tensor_chunks = {2, 1}, .has_shadow = true});
  shim.start(0, 1.0f);
  REQUIRE(shim.exchange.to_send(0, shim.now_ns).size() == 8);  // built and not taken
  shim.exchange.sent(0, 4);
  shim.deliver(shim.result(0, 0, 0, 9.0f));
  shim.exchange.suspend();
  shim.start(1, 2.0f);
  CHECK(shim.exchange.to_send(0, shim.now_ns).empty());
  CHECK(shim.exchange.next_deadline_ns() == UINT64_MAX);
  shim.exchange.on_timer(shim.now_ns + 1'000'000'000);
  const auto before = shim.exchange.statistics();
  shim.deliver_result(0, 0, 9.0f);
  CHECK(shim.exchange.statistics().rejected_packets == before.rejected_packets + 4);
  CHECK(shim.exchange.statistics().bytes_pulled == before.bytes_pulled);
  CHECK(shim.exchange.to_send(0, shim.now_ns).empty());
  CHECK(shim.buffer(0) == std::vector<float>(2 * kChunkFloats, 1.0f));
  CHECK(shim.exchange.busy(0));
  CHECK(shim.exchange.busy(1));
  CHECK(shim.exchange.consumed_rounds() == std::vector<uint32_t>{0, 0, 0});
}

TEST_CASE(
    "after a resumption chunks that may have been pushed are pulled first, others are pushed") {
  Shim shim({.tensor_chunks = {2, 1}, .window_bytes = kChunkBytes, .has_shadow = true});
  shim.start(0, 4.0f);
  CHECK(shim.take_all().size() == 4);        // chunk 0; the window has no room for chunk 1
  shim.deliver(shim.result(0, 0, 1, 9.0f));  // from the session that has ended
  REQUIRE(shim.resume({0, 0, 0}).ok());
  shim.start(1, 5.0f);
  auto sent = shim.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == PacketType::kPull);
  CHECK(sent[0].held_mask() == 0);
  CHECK(sent[0].header.epoch == 6);
  CHECK(sent[0].header.spi == kSpi + (1u << 20));
  shim.deliver(shim.status(0, 0, 0b0010));
  sent = shim.take_all();
  REQUIRE(sent.size() == 3);
  for (const Pushed& packet : sent) {
    CHECK(packet.header.type() == PacketType::kPush);
    CHECK(first_value(packet) == 4.0f);
  }
  shim.deliver_result(0, 0, 8.0f);
  sent = shim.take_all();
  REQUIRE(sent.size() == 4);
  CHECK(sent[0].header.chunk == 1);
  CHECK(sent[0].header.type() == PacketType::kPush);
  shim.deliver_result(1, 0, 8.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(shim.exchange.statistics().smoothed_rtt_us == 0);  // a probed chunk is not a sample
  CHECK(shim.take_all().size() == 4);                      // tensor 1
}

TEST_CASE("a result that the box finished meanwhile is pulled, and nothing is pushed again") {
  Shim shim({.has_shadow = true});
  shim.start(0);
  shim.take_all();
  REQUIRE(shim.resume({1}).ok());
  const auto sent = shim.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == PacketType::kPull);
  CHECK(sent[0].header.round == 0);
  shim.deliver_result(0, 0, 3.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(shim.buffer(0)[0] == 3.0f);
}

TEST_CASE("a result is restored from the shadow even if the caller's buffer has changed") {
  Shim shim({.tensor_chunks = {2}, .has_shadow = true});
  run_round(shim, 1, 2, 0, 7.0f);
  std::fill(shim.buffer(0).begin(), shim.buffer(0).end(), -1.0f);
  CHECK(shim.exchange.consumed_rounds() == std::vector<uint32_t>{1, 1});
  REQUIRE(shim.resume({1, 0}, {1}).ok());
  const auto given = shim.take_all();
  REQUIRE(given.size() == 4);
  for (uint32_t index = 0; index < 4; ++index) {
    const wire::Header& header = given[index].header;
    CHECK(header.type() == PacketType::kState);
    CHECK(header.chunk == 1);
    CHECK(header.round == 0);
    CHECK(header.fragment == index);
    CHECK(header.dtype_scale == 0);
    CHECK(first_value(given[index]) == 7.0f);
  }
  shim.deliver(shim.status(1, 0, 0b0111));  // one fragment was lost
  const auto again = shim.take_all();
  REQUIRE(again.size() == 1);
  CHECK(again[0].header.type() == PacketType::kState);
  CHECK(again[0].header.fragment == 3);
  const uint64_t pulled = shim.exchange.statistics().bytes_pulled;
  shim.deliver_result(1, 0, 7.0f);
  CHECK(shim.exchange.statistics().bytes_pulled == pulled);
  CHECK(shim.buffer(0)[kChunkFloats] == -1.0f);  // it is delivered nowhere
  CHECK(shim.exchange.take_completed().empty());
  run_round(shim, 1, 2, 1, 8.0f);
}

TEST_CASE("results that the caller keeps are restored from where they are, without a shadow") {
  Shim shim({.tensor_chunks = {1}, .caller_keeps_results = true});
  CHECK(shim.exchange.statistics().shadow_bytes == 0);
  run_round(shim, 1, 1, 0, 7.0f);
  CHECK(shim.kept(0)[0] == 7.0f);
  CHECK_FALSE(shim.exchange.lacks_result(0));
  shim.start(0, 2.0f);  // the next round, whose push the lost box may or may not have
  shim.take_all();
  REQUIRE(shim.resume({0}, {0}).ok());
  const auto given = shim.take_all();
  REQUIRE(given.size() == 4);
  for (const Pushed& packet : given) {
    CHECK(packet.header.type() == PacketType::kState);
    CHECK(packet.header.round == 0);
    CHECK(first_value(packet) == 7.0f);
  }
  shim.deliver_result(0, 0, 7.0f);
  const auto pushed = shim.take_all();
  REQUIRE_FALSE(pushed.empty());
  for (const Pushed& packet : pushed) CHECK(packet.header.round == 1);
  // Part of the next result proves that no rank needs the last one.
  shim.deliver(shim.result(0, 1, 0, 8.0f));
  CHECK(shim.exchange.lacks_result(0));
  CHECK(shim.buffer(0) == std::vector<float>(kChunkFloats, 2.0f));  // it can be pushed again
  REQUIRE(shim.resume({1}).ok());
  shim.take_all();
  shim.deliver_result(0, 1, 8.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(shim.kept(0) == std::vector<float>(kChunkFloats, 8.0f));
}

TEST_CASE("outputs that alternate keep the last result until the next one is whole") {
  Shim shim({.tensor_chunks = {1}, .caller_keeps_results = true, .optimizes = true});
  run_round(shim, 1, 1, 0, 5.0f);
  run_round(shim, 1, 1, 1, 6.0f);
  shim.start(0, 1.0f);
  shim.take_all();
  shim.deliver(shim.result(0, 2, 0, 7.0f));
  CHECK_FALSE(shim.exchange.lacks_result(0));
  CHECK(shim.kept(0, 0)[0] == 7.0f);
  REQUIRE(shim.resume({1}, {0}).ok());
  const auto given = shim.take_all();
  REQUIRE(given.size() == 4);
  for (const Pushed& packet : given) {
    CHECK(packet.header.type() == PacketType::kState);
    CHECK(packet.header.round == 1);
    CHECK(first_value(packet) == 6.0f);
  }
}

TEST_CASE("a chunk that was restored continues with the operation that waits for it") {
  for (const bool starts_before : {true, false}) {
    INFO(starts_before);
    Shim shim({.has_shadow = true});
    run_round(shim, 1, 1, 0, 7.0f);
    if (starts_before) shim.start(0, 2.0f);
    REQUIRE(shim.resume({0}, {0}).ok());
    if (!starts_before) shim.start(0, 2.0f);
    CHECK(shim.take_all(PacketType::kState).size() == 4);
    shim.deliver_result(0, 0, 7.0f);
    const auto pushed = shim.take_all(PacketType::kPush);
    REQUIRE(pushed.size() == 4);
    CHECK(pushed[0].header.round == 1);
    CHECK(first_value(pushed[0]) == 2.0f);
    shim.deliver_result(0, 1, 9.0f);
    CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
    CHECK(shim.buffer(0)[0] == 9.0f);
  }
}

TEST_CASE("chunks of one tensor may be in different rounds when the box is lost") {
  Shim shim({.tensor_chunks = {3}, .has_shadow = true});
  shim.start(0, 4.0f);
  shim.take_all();
  shim.deliver_result(0, 0, 7.0f);
  shim.deliver(shim.result(1, 0, 0, 7.0f));
  CHECK(shim.exchange.consumed_rounds() == std::vector<uint32_t>{1, 0, 0});
  REQUIRE(shim.resume({0, 0, 0}, {0}).ok());
  CHECK(shim.take_all(PacketType::kState).size() == 4);
  shim.deliver_result(0, 0, 7.0f);
  for (const uint32_t chunk : {1u, 2u}) {
    shim.deliver(shim.status(chunk, 0, 0));
    const auto pushed = shim.take_all(PacketType::kPush);
    REQUIRE(pushed.size() == 4);
    CHECK(first_value(pushed[0]) == 4.0f);  // the input as it was before the partial result
    shim.deliver_result(chunk, 0, 8.0f);
  }
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(shim.exchange.round(0) == 1);
  CHECK(shim.buffer(0)[0] == 7.0f);
  CHECK(shim.buffer(0)[2 * kChunkFloats] == 8.0f);
}

TEST_CASE("a rank that is not asked to restore its result waits for another rank to do it") {
  Shim shim({.has_shadow = true});
  run_round(shim, 1, 1, 0, 7.0f);
  shim.start(0, 2.0f);
  REQUIRE(shim.resume({0}).ok());  // another rank restores round 0
  // the box drops it, because round 1 is not open
  CHECK(shim.take_all(PacketType::kPull).size() == 1);
  shim.expire();
  const auto probes = shim.take_all(PacketType::kPull);
  REQUIRE(probes.size() == 1);
  CHECK(probes[0].header.round == 1);
  shim.deliver(shim.status(0, 1, 0));
  CHECK(shim.take_all(PacketType::kPush).size() == 4);
}

TEST_CASE("an impossible resumption is refused with an error and changes nothing") {
  const auto refused = [](Shim& shim, const std::vector<uint32_t>& rounds,
                          const std::vector<uint32_t>& give, const char* text) {
    const Status status = shim.resume(rounds, give);
    REQUIRE_FALSE(status.ok());
    CHECK_THAT(status.error().message, Contains(text));
    CHECK(shim.take_all().empty());
  };
  Shim shim({.has_shadow = true});
  for (uint32_t round = 0; round < 3; ++round) run_round(shim, 1, 1, round, 7.0f);
  refused(shim, {5}, {}, "left behind");
  refused(shim, {1}, {}, "left behind");
  refused(shim, {3, 3}, {}, "chunks");
  refused(shim, {3}, {0}, "no longer has");  // no rank needs that round
  refused(shim, {2}, {1}, "no longer has");
  shim.start(0);
  REQUIRE(shim.resume({3}).ok());
  shim.take_all();
  // proves that all ranks have consumed the previous result
  shim.deliver(shim.result(0, 3, 0, 9.0f));
  refused(shim, {2}, {0}, "no longer has");
  Shim bare;
  run_round(bare, 1, 1, 0, 7.0f);
  refused(bare, {0}, {0}, "no longer has");
}

TEST_CASE("rounds are compared correctly when they wrap around") {
  Shim shim({.has_shadow = true, .open_rounds = {UINT32_MAX}});
  CHECK(shim.exchange.round(0) == UINT32_MAX);
  run_round(shim, 1, 1, UINT32_MAX, 7.0f);
  CHECK(shim.exchange.consumed_rounds() == std::vector<uint32_t>{0});
  REQUIRE(shim.resume({UINT32_MAX}, {0}).ok());
  const auto given = shim.take_all(PacketType::kState);
  REQUIRE(given.size() == 4);
  CHECK(given[0].header.round == UINT32_MAX);
}

TEST_CASE("a worker that joins a running job continues at the lowest open round of each tensor") {
  Shim shim({.tensor_chunks = {2, 1}, .open_rounds = {8, 7, 3}});
  CHECK(shim.exchange.round(0) == 7);
  CHECK(shim.exchange.round(1) == 3);
  shim.start(0);
  shim.start(1);
  auto sent = shim.take_all();
  REQUIRE(sent.size() == 9);
  CHECK(sent[0].header.type() == PacketType::kPull);  // the box already has that result
  CHECK(sent[0].header.round == 7);
  CHECK(sent[1].header.type() == PacketType::kPush);
  CHECK(sent[1].header.chunk == 1);
  CHECK(sent[1].header.round == 7);
  CHECK(sent[5].header.round == 3);
  shim.deliver_result(0, 7, 1.0f);
  shim.deliver_result(1, 7, 2.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(shim.exchange.round(0) == 8);
}

TEST_CASE("a fetch gets the box's result without a push, also if a chunk is one round ahead") {
  Shim shim({.tensor_chunks = {2}, .open_rounds = {8, 7}});
  std::vector<float> weights(2 * kChunkFloats);
  shim.exchange.start(
      {.tensor = 0, .output = reinterpret_cast<std::byte*>(weights.data()), .fetch = true});
  auto sent = shim.take_all();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].header.type() == PacketType::kPull);
  CHECK(sent[0].header.round == 7);
  CHECK(sent[1].header.round == 6);
  shim.deliver(shim.status(1, 6, 0));  // not even if the box claims to have nothing
  CHECK(shim.take_all().empty());
  shim.deliver_result(0, 7, 1.0f);
  shim.deliver_result(1, 6, 2.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(weights[0] == 1.0f);
  CHECK(weights[kChunkFloats] == 2.0f);
  CHECK(shim.exchange.round(0) == 7);
  shim.start(0);
  sent = shim.take_all();
  REQUIRE(sent.size() == 5);
  for (const Pushed& packet : sent) CHECK(packet.header.round == 7);
}

TEST_CASE("a fetch that other ranks have overtaken gets the newest result") {
  Shim shim({.tensor_chunks = {1}, .open_rounds = {7}});
  std::vector<float> weights(kChunkFloats);
  shim.exchange.start(
      {.tensor = 0, .output = reinterpret_cast<std::byte*>(weights.data()), .fetch = true});
  auto sent = shim.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.round == 6);
  Answer answer = shim.status(0, 6, UINT64_MAX);
  wire::StatusPayload status{.received_mask = UINT64_MAX, .finished_round = 8};
  std::memcpy(answer.payload.data(), &status, sizeof(status));
  shim.deliver(answer);
  sent = shim.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == PacketType::kPull);
  CHECK(sent[0].header.round == 7);
  shim.deliver_result(0, 7, 3.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(weights[0] == 3.0f);
}

TEST_CASE("a fetch that a resumption interrupts is repeated") {
  Shim shim({.tensor_chunks = {2}, .open_rounds = {7, 7}});
  std::vector<float> weights(2 * kChunkFloats);
  shim.exchange.start(
      {.tensor = 0, .output = reinterpret_cast<std::byte*>(weights.data()), .fetch = true});
  shim.take_all();
  shim.deliver_result(0, 6, 1.0f);
  REQUIRE(shim.resume({7, 7}).ok());
  const auto sent = shim.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.chunk == 1);
  CHECK(sent[0].header.round == 6);
  shim.deliver_result(1, 6, 2.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
}

TEST_CASE("a new generation is on all packets sent from then on, and is the only one accepted") {
  Shim shim({.tensor_chunks = {1, 1}});
  shim.start(0);
  REQUIRE(shim.exchange.to_send(0, shim.now_ns).size() == 4);
  const Answer old = shim.result(0, 0, 0, 9.0f);
  shim.exchange.set_generation(7);
  shim.session.generation = 7;
  for (const Pushed& packet : shim.take_all()) CHECK(packet.header.generation == 7);
  shim.deliver(old);
  CHECK(shim.exchange.statistics().rejected_packets == 1);
  shim.deliver_result(0, 0, 2.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
}

TEST_CASE("a partial result states its contributors, and the minimum over its fragments counts") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  const auto part = [&](uint32_t fragment, uint8_t flags, uint32_t contributors) {
    Answer answer = shim.result(0, 0, fragment, 3.0f);
    answer.header.flags = flags;
    answer.header.dtype_scale = static_cast<uint16_t>(contributors << 4);
    shim.deliver(answer);
  };
  part(0, wire::flag::kPartial, 0);
  part(0, 0, 3);
  CHECK(shim.exchange.statistics().rejected_packets == 2);
  part(0, wire::flag::kPartial, 3);
  part(1, wire::flag::kPartial, 2);
  part(2, wire::flag::kPartial, 4);
  part(3, 0, 0);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(shim.exchange.contributors(0) == 2);
  run_round(shim, 1, 1, 1, 1.0f);
  CHECK(shim.exchange.contributors(0) == UINT16_MAX);
}

}  // namespace pbox::test::exchange_resume_test
