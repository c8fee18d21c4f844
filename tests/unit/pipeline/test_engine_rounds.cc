#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_rounds_test {

using pipeline::Counter;
using wire::PacketType;

TEST_CASE("a round finishes with its last fragment and every worker gets the sum at once") {
  Box box;
  const JobOptions job{.workers = 3};
  box.admit(job);
  box.push_chunk(job, 0, 1.0f);
  box.push_chunk(job, 1, 2.0f);
  for (const uint32_t fragment : {2u, 0u}) box.deliver(box.push(job, 2, fragment, 4.0f));
  CHECK(box.take_all().empty());
  box.deliver(box.push(job, 2, 1, 4.0f));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 9);
  std::set<std::pair<uint32_t, uint16_t>> copies;
  for (const Sent& packet : sent) {
    CHECK(packet.header.type() == PacketType::kResult);
    CHECK(packet.header.round == 0);
    CHECK(packet.header.epoch == 10);
    CHECK(packet.header.generation == 20);
    CHECK(packet.header.credit == job.credit_bytes / limits::kCreditUnitBytes);
    CHECK(((packet.header.flags & wire::flag::kLast) != 0) == (packet.header.fragment == 2));
    const uint32_t rank = packet.header.spi & 63;
    CHECK(packet.header.spi == (spi_of(0, rank) | wire::kSpiToWorker));
    CHECK(packet.to == address_of(0, rank));
    REQUIRE(packet.payload.size() == 1024);
    for (size_t index = 0; index < 256; ++index) REQUIRE(packet.value(index) == 7.0f);
    copies.insert({rank, packet.header.fragment});
  }
  CHECK(copies.size() == 9);
  CHECK(box.count(Counter::kRoundsFinished) == 1);
}

namespace {

// Returns the result of a round whose ranks push in this order, with their fragments interleaved.
std::vector<float> result_of(const JobOptions& job, const std::vector<uint32_t>& order) {
  constexpr float kValues[] = {3e7f, 1.0f, -3e7f, 0.7f};  // every order gives another sum
  Box box;
  box.admit(job);
  for (uint32_t fragment = 0; fragment < 3; ++fragment) {
    for (size_t index = 0; index < order.size(); ++index) {
      const uint32_t rank = order[(index + fragment) % order.size()];
      box.deliver(box.push(job, rank, fragment, kValues[rank]));
    }
  }
  std::vector<float> values(3);
  for (const Sent& packet : box.take_all()) values[packet.header.fragment] = packet.value();
  return values;
}

}  // namespace

TEST_CASE("with numerics ordered a sum is bit-identical for every order of arrival") {
  JobOptions job{.workers = 4, .numerics = wire::Numerics::kOrdered};
  const float in_order = ((3e7f + 1.0f) + -3e7f) + 0.7f;
  std::vector<uint32_t> order = {0, 1, 2, 3};
  std::set<std::vector<float>> fast;
  do {
    CHECK(result_of(job, order) == std::vector<float>(3, in_order));
    job.numerics = wire::Numerics::kFast;
    fast.insert(result_of(job, order));
    job.numerics = wire::Numerics::kOrdered;
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(fast.size() > 1);  // with numerics fast the order matters
}

TEST_CASE("sum and mean come back rounded once in each dtype") {
  const auto numerics = GENERATE(wire::Numerics::kFast, wire::Numerics::kOrdered);
  for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16}) {
    for (const auto reduction : {pipeline::Reduction::kSum, pipeline::Reduction::kMean}) {
      Box box;
      JobOptions job{.workers = 4, .dtype = dtype, .reduction = reduction, .numerics = numerics};
      box.admit(job);
      for (uint32_t rank = 0; rank < 4; ++rank) {
        box.push_chunk(job, rank, 0.5f * static_cast<float>(rank));
      }
      const auto sent = box.take_all();
      REQUIRE_FALSE(sent.empty());
      std::vector<float> values(256);
      const size_t count = sent[0].payload.size() / wire::dtype_bytes(dtype);
      values.resize(count);
      reduce::store(dtype, values.data(), sent[0].payload.data(), count);
      CHECK(values[0] == (reduction == pipeline::Reduction::kSum ? 3.0f : 0.75f));
      CHECK(values[count - 1] == values[0]);
    }
  }
}

TEST_CASE("a duplicate in the open round is counted and added once") {
  Box box;
  const JobOptions job;
  box.admit(job);
  const Packet first = box.push(job, 0, 0, 1.0f);
  box.deliver(first);
  box.deliver(first);                        // duplicated by the network
  box.deliver(box.push(job, 0, 0, 500.0f));  // a retransmission: not added, even with another value
  CHECK(box.count(Counter::kDuplicate) == 2);
  for (const uint32_t fragment : {1u, 2u}) box.deliver(box.push(job, 0, fragment, 1.0f));
  box.push_chunk(job, 1, 2.0f);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 6);
  for (const Sent& packet : sent) CHECK(packet.value() == 3.0f);
}

TEST_CASE("a new round starts from zero in either slot") {
  Box box;
  const JobOptions job;
  box.admit(job);
  for (uint32_t round = 0; round < 5; ++round) {
    box.push_chunk(job, 0, static_cast<float>(round), round);
    box.push_chunk(job, 1, 10.0f, round);
    const auto sent = box.take_all();
    REQUIRE(sent.size() == 6);
    for (const Sent& packet : sent) {
      REQUIRE(packet.header.round == round);
      REQUIRE(packet.value() == 10.0f + static_cast<float>(round));
    }
  }
}

TEST_CASE(
    "rounds continue across the wrap of 32 bits, and duplicates and stale packets are told apart") {
  Box box;
  const JobOptions job;
  auto& chunk = box.admit(job).chunks()[0];
  chunk.rounds_finished = chunk.fanned_out_rounds = 0xfffffffe;
  for (const uint32_t round : {0xfffffffeu, 0xffffffffu, 0u, 1u}) {
    INFO("round " << round);
    const auto sent = box.run_round(job, round);
    REQUIRE(sent.size() == 6);
    CHECK(sent[0].header.round == round);
    CHECK(sent[0].value() == 2.0f);
    CHECK(chunk.open_round() == round + 1);
    box.deliver(box.push(job, 0, 1, 1.0f, round));  // finished: the result leaves again
    const auto again = box.take_all();
    REQUIRE(again.size() == 1);
    CHECK(again[0].header.round == round);
    CounterChange change(box.engine);
    box.deliver(box.push(job, 0, 1, 1.0f, round - 1));
    CHECK(change.moved() == std::vector<Counter>{Counter::kStale});
    CounterChange change_ahead(box.engine);
    box.deliver(box.push(job, 0, 1, 1.0f, round + 2));
    CHECK(change_ahead.moved() == std::vector<Counter>{Counter::kRejectRound});
  }
}

TEST_CASE("a round does not finish before the last result has left for every rank") {
  // A worker that keeps the protocol cannot push that far ahead. One that does not must neither
  // grow the egress queue beyond its bound nor change a result that has not left yet.
  Box box;
  const JobOptions job{.workers = 1};
  auto& shard = box.admit(job);
  for (uint32_t round = 0; round < 10; ++round) {
    box.push_chunk(job, 0, static_cast<float>(round + 1), round);
  }
  CHECK(shard.chunks()[0].open_round() == 1);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 3);
  for (const Sent& packet : sent) CHECK(packet.value() == 1.0f);
  box.deliver(box.push(job, 0, 2, 2.0f, 1));  // the rejected fragment again
  CHECK(box.take_all().size() == 3);
}

TEST_CASE("the highest priority leaves first, and of equals the first finished") {
  Box box;
  const JobOptions job{.workers = 1, .chunks = 4};
  auto& shard = box.admit(job);
  const int32_t priorities[] = {1, 9, 1, 9};
  for (uint32_t id = 0; id < 4; ++id) shard.chunks()[id].priority = priorities[id];
  for (uint32_t id = 0; id < 4; ++id) box.push_chunk(job, 0, 1.0f, 0, id);
  std::vector<uint32_t> order;
  for (const Sent& packet : box.take_all()) {
    if (packet.header.fragment == 0) order.push_back(packet.header.chunk);
  }
  CHECK(order == std::vector<uint32_t>{1, 3, 0, 2});
}

TEST_CASE("in optimize mode rank 0 sets the weights and later rounds step them") {
  Box box;
  JobOptions job{
      .workers = 2, .mode = pipeline::Mode::kOptimize, .reduction = pipeline::Reduction::kMean};
  job.optimizer = {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 0.5f};
  auto& shard = box.admit(job);
  box.push_chunk(job, 1, 77.0f);  // rank 1 takes part, but its weights do not count
  box.push_chunk(job, 0, 8.0f);
  for (const Sent& packet : box.take_all()) CHECK(packet.value() == 8.0f);
  box.push_chunk(job, 0, 1.0f, 1);
  box.push_chunk(job, 1, 3.0f, 1);
  for (const Sent& packet : box.take_all()) CHECK(packet.value() == 7.0f);  // 8 - 0.5 * 2
  box.engine.execute(
      {.kind = pipeline::CommandKind::kSetLearningRate, .shard = &shard, .learning_rate = 2.0f});
  box.push_chunk(job, 0, 1.0f, 2);
  box.push_chunk(job, 1, 1.0f, 2);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 6);
  for (const Sent& packet : sent) CHECK(packet.value() == 5.0f);
}

TEST_CASE("in optimize mode only the first round sets the weights, also after rounds wrap") {
  Box box;
  JobOptions job{.workers = 1, .mode = pipeline::Mode::kOptimize};
  job.optimizer = {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1.0f};
  auto& chunk = box.admit(job).chunks()[0];
  box.push_chunk(job, 0, 8.0f);
  box.take_all();
  chunk.rounds_finished = chunk.fanned_out_rounds = 0xffffffff;
  float weight = 8.0f;
  for (const uint32_t round : {0xffffffffu, 0u, 1u}) {
    INFO("round " << round);
    box.push_chunk(job, 0, 1.0f, round);
    weight -= 1.0f;
    const auto sent = box.take_all();
    REQUIRE(sent.size() == 3);
    for (const Sent& packet : sent) CHECK(packet.value() == weight);
  }
}

TEST_CASE("no packet number is used twice in a session, whatever the type of packet") {
  Box box;
  const JobOptions job;
  auto& shard = box.admit(job);
  std::vector<Sent> sent;
  const auto collect = [&](const std::vector<Sent>& more) {
    sent.insert(sent.end(), more.begin(), more.end());
  };
  for (uint32_t round = 0; round < 4; ++round) {
    collect(box.run_round(job, round));
    box.deliver(box.pull(job, 0, round));
    box.deliver(box.pull(job, 1, round + 1));
    box.engine.execute(
        {.kind = pipeline::CommandKind::kSetCredit, .shard = &shard, .credit_bytes = 32768});
    collect(box.take_all());
  }
  std::set<std::pair<uint32_t, uint64_t>> used;
  for (const Sent& packet : sent) used.insert({packet.header.spi, packet.header.packet_number});
  CHECK(sent.size() == 4 * (6 + 3 + 1 + 2));
  CHECK(used.size() == sent.size());
}

}  // namespace pbox::test::engine_rounds_test
