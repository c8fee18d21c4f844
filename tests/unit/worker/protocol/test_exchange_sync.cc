// Results that answer a push in jobs that do not wait for every rank: fresh reads, and dropped
// rounds.
#include <array>
#include <catch2/catch.hpp>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_sync_test {
namespace {

using wire::PacketType;
using wire::SyncModel;

constexpr uint64_t kAllFragments = 0xf;

// A worker with one chunk whose initial weights have arrived; the next round is 1.
Shim relaxed(SyncModel model) {
  Shim shim({.sync = {.model = model, .staleness = 2, .quorum = 1}});
  shim.start(0);
  shim.take_all();
  shim.deliver_result(0, 0, 100.0f);
  REQUIRE(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  return shim;
}

// A worker of two chunks that has taken a lost rank's place and fetched the weights. The former
// process has pushed round 1 of chunk 0. `delayed`: answers to the fetch, of which the newest has
// arrived.
Shim with_fetched_weights(std::vector<Answer>& delayed) {
  Shim shim({.tensor_chunks = {2}, .open_rounds = {2, 1}, .sync = {.model = SyncModel::kAsp}});
  auto* data = reinterpret_cast<std::byte*>(shim.buffer(0).data());
  shim.exchange.start({.tensor = 0, .output = data, .fetch = true});
  REQUIRE(shim.take_all(PacketType::kPull).size() == 2);
  shim.deliver_relaxed(1, 1, 1, 60.0f);
  for (const uint32_t fragment : {0u, 1u, 2u, 3u}) {
    delayed.push_back(shim.relaxed_result(0, 1, 2, fragment, 50.0f));
  }
  shim.deliver(delayed[3]);
  for (const uint32_t fragment : {0u, 1u, 2u}) {
    shim.deliver(shim.relaxed_result(0, 1, 2, fragment, 60.0f));
  }
  REQUIRE(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  REQUIRE(shim.exchange.round(0) == 1);
  return shim;
}

}  // namespace

TEST_CASE("with fresh reads a result answers a push if it includes it, whatever other ranks did") {
  const auto model =
      GENERATE(SyncModel::kAsp, SyncModel::kSsp, SyncModel::kPssp, SyncModel::kDpssp);
  Shim shim = relaxed(model);
  shim.start(0, 7.0f);
  CHECK(shim.take_all(PacketType::kPush).size() == 4);
  shim.deliver_relaxed(0, 1, 1, 50.0f);  // a late answer to the initial weights
  CHECK(shim.exchange.statistics().stale_packets == 4);
  CHECK(shim.buffer(0)[0] == 7.0f);
  shim.deliver_relaxed(0, 1, 3, 50.0f);  // includes rounds that were never pushed
  shim.deliver_relaxed(0, 3, 2, 50.0f);  // a clock that this worker has not reached
  CHECK(shim.exchange.busy(0));
  CHECK(shim.buffer(0)[0] == 7.0f);
  shim.deliver_relaxed(0, 1, 2, 60.0f);
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.buffer(0) == std::vector<float>(kChunkBytes / sizeof(float), 60.0f));
  CHECK(shim.exchange.round(0) == 2);
  shim.start(0);
  CHECK(shim.take_all(PacketType::kPush).at(0).header.round == 2);
}

TEST_CASE("a process in a lost rank's place reads nothing older than the weights that it fetched") {
  std::vector<Answer> delayed;
  Shim shim = with_fetched_weights(delayed);
  shim.start(0, 7.0f);
  CHECK(shim.take_all(PacketType::kPush).size() == 4);  // only the other chunk is pushed
  for (const Answer& answer : delayed) shim.deliver(answer);
  CHECK(shim.exchange.statistics().stale_packets == 4);
  CHECK(shim.buffer(0)[0] == 7.0f);
  shim.deliver_relaxed(0, 1, 2, 70.0f);
  CHECK(shim.buffer(0)[0] == 70.0f);
  shim.deliver_relaxed(1, 1, 2, 70.0f);
  CHECK_FALSE(shim.exchange.busy(0));
}

TEST_CASE("after a fetch a new session may begin with any packet number") {
  std::vector<Answer> delayed;
  Shim shim = with_fetched_weights(delayed);
  shim.start(0);
  REQUIRE(shim.resume({2, 1}).ok());
  shim.take_all();
  for (uint32_t fragment = 0; fragment < 4; ++fragment) {
    Answer answer = shim.relaxed_result(0, 1, 2, fragment, 70.0f);
    answer.header.packet_number = fragment + 1;
    shim.deliver(answer);
  }
  CHECK(shim.buffer(0)[0] == 70.0f);
}

TEST_CASE("a tensor is as old as its oldest fragment, and each read is counted") {
  Shim shim({.tensor_chunks = {2}, .sync = {.model = SyncModel::kAsp}});
  shim.start(0);
  shim.take_all();
  for (const uint32_t chunk : {0u, 1u}) shim.deliver_result(chunk, 0, 1.0f);
  const auto exchange = [&](uint32_t round, uint32_t clock, uint32_t oldest_clock) {
    shim.start(0);
    shim.take_all();
    shim.deliver_relaxed(0, clock, round + 1, 1.0f);
    for (uint32_t fragment = 0; fragment < 4; ++fragment) {
      shim.deliver(
          shim.relaxed_result(1, fragment == 2 ? oldest_clock : clock, round + 1, fragment, 1.0f));
    }
    REQUIRE_FALSE(shim.exchange.busy(0));
  };
  exchange(1, 2, 2);
  exchange(2, 3, 1);
  exchange(3, 2, 1);
  for (uint32_t round = 4; round < 30; ++round) exchange(round, 1, 1);
  const worker::StalenessCounts counts = shim.exchange.statistics().staleness;
  CHECK(counts.reads == 30);
  CHECK(counts.by_staleness[0] == 2);
  CHECK(counts.by_staleness[2] == 1);
  CHECK(counts.by_staleness[3] == 1);
  CHECK(counts.by_staleness[14] == 1);
  CHECK(counts.by_staleness[15] == 15);  // 15 to 29
  int64_t sum = -2 - 3;
  uint64_t square_sum = 4 + 9;
  for (int64_t age = 4; age < 30; ++age) {
    sum -= age;
    square_sum += static_cast<uint64_t>(age * age);
  }
  CHECK(counts.sum == sum);
  CHECK(counts.square_sum == square_sum);
}

TEST_CASE("reads in BSP have staleness 0") {
  Shim shim;
  for (uint32_t round = 0; round < 5; ++round) {
    shim.start(0);
    shim.take_all();
    shim.deliver_result(0, round, 1.0f);
  }
  const worker::StalenessCounts counts = shim.exchange.statistics().staleness;
  CHECK(counts.reads == 5);
  CHECK(counts.by_staleness[0] == 5);
  CHECK(counts.sum == 0);
}

TEST_CASE("a worker that the box holds back polls slowly and names the rank it waits for") {
  Shim shim = relaxed(SyncModel::kSsp);
  shim.start(0, 7.0f);
  shim.take_all();
  shim.expire();
  const auto probe = shim.take_all();
  REQUIRE(probe.size() == 1);
  CHECK(probe[0].header.type() == PacketType::kPull);
  CHECK(probe[0].header.round == 1);
  CHECK(probe[0].held_mask() == 0);
  shim.deliver(shim.status(0, 1, kAllFragments, 2, 5));
  const auto laggard = shim.exchange.laggard(0, shim.now_ns);
  CHECK(laggard.kind == worker::Laggard::Kind::kRank);
  CHECK(laggard.rank == 5);
  CHECK(laggard.missing_workers == 2);
  CHECK(shim.expire() >= 7'500'000);
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
  shim.deliver_relaxed(0, 1, 2, 60.0f);
  CHECK_FALSE(shim.exchange.busy(0));
}

TEST_CASE("lost fragments are pushed again with every consistency model") {
  const auto model = GENERATE(SyncModel::kAsp, SyncModel::kSsp, SyncModel::kEssp, SyncModel::kDrop);
  Shim shim = relaxed(model);
  shim.start(0, 7.0f);
  shim.take_all();
  shim.expire();
  shim.take_all();
  shim.deliver(shim.status(0, 1, 0b0101));
  const auto again = shim.take_all();
  REQUIRE(again.size() == 2);
  for (const uint32_t index : {0u, 1u}) {
    CHECK(again[index].header.type() == PacketType::kPush);
    CHECK(again[index].header.fragment == 2 * index + 1);
    float first = 0;
    std::memcpy(&first, again[index].payload.data(), sizeof(first));
    CHECK(first == 7.0f);
  }
}

TEST_CASE("a rank whose push was dropped takes the newest result and continues from there") {
  Shim shim = relaxed(SyncModel::kDrop);
  shim.start(0, 7.0f);
  shim.take_all();
  shim.deliver_result(0, 0, 50.0f);  // older
  CHECK(shim.exchange.statistics().stale_packets == 4);
  shim.deliver_result(0, 4, 60.0f);
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.buffer(0)[0] == 60.0f);
  CHECK(shim.exchange.round(0) == 2);  // counts operations, not rounds
  shim.start(0);
  const auto pushed = shim.take_all();
  REQUIRE(pushed.size() == 4);
  CHECK(pushed[0].header.round == 5);
  CHECK(shim.exchange.statistics().staleness.by_staleness[0] == 3 - 1);
}

TEST_CASE("a rank whose push was dropped continues with the oldest open round in all tensors") {
  Shim shim({.tensor_chunks = {1, 2}, .sync = {.model = SyncModel::kDrop, .quorum = 1}});
  const auto start = [&] {
    for (const uint32_t tensor : {0u, 1u}) shim.start(tensor);
    return shim.take_all(PacketType::kPush);
  };
  const auto deliver = [&](const std::array<uint32_t, 3>& rounds) {
    for (const uint32_t chunk : {0u, 1u, 2u}) shim.deliver_result(chunk, rounds[chunk], 50.0f);
    for (const uint32_t tensor : {0u, 1u}) REQUIRE_FALSE(shim.exchange.busy(tensor));
  };
  start();
  deliver({0, 0, 0});
  start();
  deliver({6, 7, 4});
  const auto pushed = start();
  CHECK(pushed.size() == 12);
  for (const Pushed& packet : pushed) CHECK(packet.header.round == 5);
  // Chunk 0 is known to have closed that round, so nothing older than what was read is accepted.
  const uint64_t stale = shim.exchange.statistics().stale_packets;
  shim.deliver_result(0, 5, 40.0f);
  CHECK(shim.exchange.statistics().stale_packets == stale + 4);
  deliver({6, 7, 5});
  for (const Pushed& packet : start()) CHECK(packet.header.round == 6);
}

TEST_CASE("a tensor that is behind pushes to the same rounds as the other tensors") {
  Shim shim({.tensor_chunks = {1, 1}, .sync = {.model = SyncModel::kDrop, .quorum = 1}});
  const auto exchange = [&](uint32_t tensor, uint32_t round) {
    shim.start(tensor);
    const auto pushed = shim.take_all(PacketType::kPush);
    shim.deliver_result(tensor, round, 50.0f);
    REQUIRE_FALSE(shim.exchange.busy(tensor));
    return pushed.at(0).header.round;
  };
  for (const uint32_t tensor : {0u, 1u}) exchange(tensor, 0);
  CHECK(exchange(0, 9) == 1);
  CHECK(exchange(0, 9) == 2);  // tensor 1 has only seen round 0
  CHECK(exchange(1, 5) == 1);
  CHECK(exchange(0, 9) == 6);
  CHECK(exchange(0, 9) == 7);
  CHECK(exchange(1, 9) == 2);
  CHECK(exchange(1, 9) == 6);
  CHECK(exchange(1, 9) == 7);
  CHECK(exchange(1, 10) == 10);
  CHECK(exchange(0, 10) == 10);
}

TEST_CASE("a chunk is complete only with fragments of one round") {
  Shim shim = relaxed(SyncModel::kDrop);
  shim.start(0, 7.0f);
  shim.take_all();
  for (const uint32_t fragment : {0u, 1u, 3u}) shim.deliver(shim.result(0, 1, fragment, 50.0f));
  shim.deliver(shim.result(0, 3, 2, 60.0f));  // starts the result again
  for (const uint32_t fragment : {0u, 1u}) shim.deliver(shim.result(0, 3, fragment, 60.0f));
  shim.deliver(shim.result(0, 1, 3, 50.0f));  // too late
  CHECK(shim.exchange.busy(0));
  shim.expire();
  const auto probe = shim.take_all();
  REQUIRE(probe.size() == 1);
  CHECK(probe[0].header.round == 3);
  CHECK(probe[0].held_mask() == 0b0111);
  shim.deliver(shim.result(0, 3, 3, 60.0f));
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.buffer(0) == std::vector<float>(kChunkBytes / sizeof(float), 60.0f));
}

TEST_CASE("an operation counts as dropped if its result lacks a part of its gradient") {
  Shim shim = relaxed(SyncModel::kDrop);
  const auto exchange = [&](uint32_t pushed, uint32_t round, uint32_t applied_to_last) {
    shim.start(0);
    REQUIRE(shim.take_all(PacketType::kPush).at(0).header.round == pushed);
    for (uint32_t fragment = 0; fragment < 4; ++fragment) {
      const uint32_t applied = fragment == 3 ? applied_to_last : pushed + 1;
      shim.deliver(shim.relaxed_result(0, round + 1, applied, fragment, 50.0f));
    }
    REQUIRE_FALSE(shim.exchange.busy(0));
    return shim.exchange.statistics().dropped_rounds;
  };
  const uint64_t before = shim.exchange.statistics().dropped_rounds;
  CHECK(exchange(1, 1, 2) == before);
  CHECK(exchange(2, 2, 2) == before + 1);
  CHECK(exchange(3, 3, 4) == before + 1);
  CHECK(exchange(4, 7, 5) == before + 1);  // other ranks were faster but did not drop it
  CHECK(exchange(8, 8, 1) == before + 2);
}

TEST_CASE("fragments that a superseded result lacked do not count as dropped") {
  Shim shim = relaxed(SyncModel::kDrop);
  const uint64_t before = shim.exchange.statistics().dropped_rounds;
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.relaxed_result(0, 2, 0, 0, 50.0f));
  for (uint32_t fragment = 0; fragment < 4; ++fragment) {
    shim.deliver(shim.relaxed_result(0, 3, 2, fragment, 50.0f));
  }
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.exchange.statistics().dropped_rounds == before);
}

TEST_CASE("the number of contributors to a quorum's result is reported") {
  Shim shim = relaxed(SyncModel::kDrop);
  shim.start(0, 7.0f);
  shim.take_all();
  for (uint32_t fragment = 0; fragment < 4; ++fragment) {
    Answer answer = shim.result(0, 1, fragment, 50.0f);
    answer.header.flags |= wire::flag::kPartial;
    answer.header.dtype_scale = static_cast<uint16_t>((fragment == 1 ? 2 : 3) << 4);
    shim.deliver(answer);
  }
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.exchange.contributors(0) == 2);
}

}  // namespace pbox::test::exchange_sync_test
