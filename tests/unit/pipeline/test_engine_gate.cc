// Rounds that wait for a verdict: gradients that are clipped, and rounds that are skipped.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_gate_test {
namespace {

using pipeline::Command;
using pipeline::CommandKind;
using pipeline::Counter;
using pipeline::JobShard;

const optimizer::OptimizerSpec kSgd{.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1};
const optimizer::OptimizerSpec kAdam{.kind = optimizer::OptimizerKind::kAdam};

JobOptions gated(optimizer::OptimizerSpec optimizer = kSgd) {
  return {.chunks = 3,
          .mode = pipeline::Mode::kOptimize,
          .reduction = pipeline::Reduction::kMean,
          .optimizer = optimizer,
          .gated = true};
}

void init_weights(Box& box, const JobOptions& options, float value) {
  for (uint32_t chunk = 0; chunk < options.chunks; ++chunk) {
    for (uint32_t rank = 0; rank < options.workers; ++rank) {
      box.push_chunk(options, rank, value, 0, chunk);
    }
  }
  box.take_all();
}

void push_all(Box& box, const JobOptions& options, float value, uint32_t round, uint32_t chunk) {
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    box.push_chunk(options, rank, value, round, chunk);
  }
}

void give(Box& box, JobShard& shard, const pipeline::StepVerdict& verdict) {
  box.engine.execute({.kind = CommandKind::kGiveVerdict, .shard = &shard, .verdict = verdict});
  while (box.engine.finish_waiting(box.now_ns)) {
  }
}

}  // namespace

TEST_CASE("a shard reports a round once all of its chunks are complete, and steps by the verdict") {
  Box box;
  const JobOptions options = gated();
  JobShard& shard = box.admit(options);
  init_weights(box, options, 10);
  CHECK_FALSE(shard.gate->reported().has_value());
  for (const uint32_t chunk : {2u, 0u}) push_all(box, options, 4, 1, chunk);
  CHECK(box.take_all().empty());
  CHECK_FALSE(shard.gate->reported().has_value());
  push_all(box, options, 4, 1, 1);
  CHECK(box.take_all().empty());
  const auto report = shard.gate->reported();
  REQUIRE(report.has_value());
  CHECK(report->round == 1);
  CHECK(report->squares == 3.0 * options.chunk_elements * 16);

  give(box, shard, {.round = 1, .factor = 0.5f});
  for (uint32_t chunk = 0; chunk < options.chunks; ++chunk) {
    CHECK(shard.find(chunk)->weights[0] == 8);
    CHECK(shard.find(chunk)->open_round() == 2);
  }
  CHECK(box.take_all().size() == 3 * 3 * options.workers);
}

TEST_CASE("squares are added in the order of chunks, whatever the order of arrival") {
  const JobOptions options = gated();
  double sums[2] = {};
  for (const bool reversed : {false, true}) {
    Box box;
    JobShard& shard = box.admit(options);
    init_weights(box, options, 0);
    for (uint32_t at = 0; at < options.chunks; ++at) {
      const uint32_t chunk = reversed ? options.chunks - 1 - at : at;
      push_all(box, options, 0.1f + 1e7f * static_cast<float>(chunk), 1, chunk);
    }
    sums[reversed ? 1 : 0] = shard.gate->reported()->squares;
  }
  CHECK(sums[0] == sums[1]);
}

TEST_CASE("a round that is skipped changes neither weights nor optimizer state nor step count") {
  Box box;
  const JobOptions options = gated(kAdam);
  JobShard& shard = box.admit(options);
  init_weights(box, options, 1);
  for (uint32_t chunk = 0; chunk < options.chunks; ++chunk) push_all(box, options, 1, 1, chunk);
  give(box, shard, {.round = 1});
  box.take_all();
  const pipeline::Chunk& chunk = *shard.find(0);
  const float weight = chunk.weights[5], first = chunk.optimizer_state[5];
  CHECK(weight < 1);
  CHECK(chunk.steps() == 1);

  const float infinity = std::numeric_limits<float>::infinity();
  push_all(box, options, infinity, 2, 0);
  push_all(box, options, 1, 2, 1);
  push_all(box, options, 1, 2, 2);
  CHECK_FALSE(std::isfinite(shard.gate->reported()->squares));
  give(box, shard, {.round = 2, .is_skip = true});
  CHECK(chunk.open_round() == 3);
  CHECK(chunk.weights[5] == weight);
  CHECK(chunk.optimizer_state[5] == first);
  CHECK(chunk.steps() == 1);
  CHECK(box.take_all().size() == 3 * 3 * options.workers);
}

TEST_CASE("a chunk that completes a round after its verdict is stepped at once") {
  Box box;
  const JobOptions options = gated();
  JobShard& shard = box.admit(options);
  init_weights(box, options, 10);
  push_all(box, options, 4, 1, 0);
  give(box, shard, {.round = 1, .factor = 0.25f});
  CHECK(shard.find(0)->weights[0] == 9);
  push_all(box, options, 4, 1, 1);
  CHECK(shard.find(1)->weights[0] == 9);
  CHECK(shard.find(2)->open_round() == 1);
  CHECK_FALSE(shard.gate->reported().has_value());
}

TEST_CASE("a rank that comes back while a round is held adds nothing to the measured sum") {
  Box box;
  JobOptions options = gated();
  options.chunks = 2;
  options.partial = true;
  JobShard& shard = box.admit(options);
  init_weights(box, options, 10);
  box.engine.execute({.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 21});
  const auto push_alone = [&](uint32_t rank, uint32_t chunk, uint16_t generation, uint32_t spi) {
    for (uint32_t fragment = 0; fragment < 3; ++fragment) {
      Packet packet = box.push(options, rank, fragment, 4, 1, chunk);
      packet.header.generation = generation;
      packet.header.spi = spi;
      box.deliver(packet);
    }
  };
  push_alone(0, 0, 21, spi_of(0, 0));
  const uint32_t spi = spi_of(0, 40);
  box.engine.execute({.kind = CommandKind::kAdmit,
                      .shard = &shard,
                      .credit_bytes = 65536,
                      .rank = 1,
                      .spi = spi,
                      .generation = 22});
  push_alone(1, 0, 22, spi);
  CHECK(box.count(Counter::kDuplicate) == 3);
  push_alone(1, 1, 22, spi);
  push_alone(0, 1, 22, spi_of(0, 0));
  REQUIRE(shard.gate->reported().has_value());
  give(box, shard, {.round = 1});
  CHECK(shard.find(0)->weights[0] == 6);
  CHECK(shard.find(0)->contributors[1][0] == 1);
  CHECK(shard.find(1)->weights[0] == 6);
  CHECK(shard.find(1)->contributors[1][0] == 2);
}

TEST_CASE("an exclusion does not end a round that is held") {
  Box box;
  JobOptions options = gated();
  options.partial = true;
  JobShard& shard = box.admit(options);
  init_weights(box, options, 10);
  push_all(box, options, 4, 1, 0);
  box.engine.execute({.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 21});
  CHECK(shard.find(0)->is_held);
  CHECK(shard.find(0)->open_round() == 1);
  give(box, shard, {.round = 1});
  CHECK(shard.find(0)->weights[0] == 6);
}

TEST_CASE("rounds that have waited for their verdict are stepped in bounded turns") {
  Box box;
  JobOptions options = gated();
  options.fragment_bytes = 8192;
  options.chunk_elements = 65'536;
  options.chunks = 20;
  JobShard& shard = box.admit(options);
  init_weights(box, options, 10);
  for (uint32_t chunk = 0; chunk < options.chunks; ++chunk) push_all(box, options, 4, 1, chunk);
  box.engine.execute({.kind = CommandKind::kGiveVerdict, .shard = &shard, .verdict = {.round = 1}});
  uint64_t before = box.count(Counter::kRoundsFinished), most = 0;
  while (box.engine.finish_waiting(box.now_ns)) {
    const uint64_t finished = box.count(Counter::kRoundsFinished);
    most = std::max(most, finished - before);
    before = finished;
  }
  CHECK(most > 0);
  CHECK(most <= 10);
  CHECK(before == 2 * options.chunks);
}

TEST_CASE("a replicated chunk goes to its backup after its verdict, with the steps it has taken") {
  Box box;
  JobOptions options = gated(kAdam);
  options.chunks = 1;
  options.replicated = true;
  JobShard& shard = box.admit(options);
  shard.uplinks[0]->open(-1);
  const auto round_trip = [&] {
    pipeline::Uplink::Sum sum;
    REQUIRE(shard.uplinks[0]->next(sum));
    shard.uplinks[0]->give_back(sum.chunk);
    CHECK(box.engine.finish_waiting(box.now_ns));
    box.take_all();
  };
  push_all(box, options, 1, 0, 0);
  round_trip();
  push_all(box, options, 1, 1, 0);
  pipeline::Uplink::Sum none;
  CHECK_FALSE(shard.uplinks[0]->next(none));
  give(box, shard, {.round = 1, .is_skip = true});
  CHECK(shard.find(0)->is_stepped);
  round_trip();
  CHECK(shard.find(0)->open_round() == 2);
  CHECK(shard.find(0)->steps() == 0);
  CHECK(shard.find(0)->weights[0] == 1);
}

}  // namespace pbox::test::engine_gate_test
