// Chunks whose sums go to an upper box: when the lanes may use their memory, and what the ranks
// get. The test stands in for the lanes and the upper box.
#include <catch2/catch.hpp>

#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_relay_test {
namespace {

using pipeline::Chunk;
using pipeline::JobShard;
using pipeline::Reduction;
using pipeline::Uplink;
using wire::PacketType;

JobOptions relayed(uint32_t lanes = 1) {
  JobOptions options;
  options.relayed = true;
  options.chunks = lanes;
  options.uplink_lanes = lanes;
  return options;
}

JobShard& admit(Box& box, const JobOptions& options) {
  JobShard& shard = box.admit(options);
  for (const auto& uplink : shard.uplinks) uplink->open(-1);
  return shard;
}

void push_all(Box& box, const JobOptions& options, float value, uint32_t round,
              uint32_t chunk = 0) {
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    box.push_chunk(options, rank, value, round, chunk);
  }
}

Uplink::Sum take_sum(JobShard& shard, uint32_t lane = 0) {
  Uplink::Sum sum;
  REQUIRE(shard.uplinks[lane]->next(sum));
  return sum;
}

// Gives the sum's chunk back, with `value` as the upper box's result.
void give_back(Box& box, JobShard& shard, const Uplink::Sum& sum, float value) {
  const Chunk& chunk = *shard.find(sum.chunk);
  std::fill_n(sum.result, chunk.elements, value);
  shard.uplinks[chunk.up.lane]->give_back(sum.chunk);
  CHECK(box.engine.finish_waiting(box.now_ns));
}

std::vector<Sent> of_type(const std::vector<Sent>& sent, PacketType type) {
  std::vector<Sent> found;
  for (const Sent& one : sent) {
    if (one.header.type() == type) found.push_back(one);
  }
  return found;
}

}  // namespace

TEST_CASE("each chunk's sum goes to its lane, and the upper box's result to every rank") {
  Box box;
  const JobOptions options = relayed(2);
  JobShard& shard = admit(box, options);
  for (const uint32_t chunk : {0u, 1u}) {
    push_all(box, options, 3, 0, chunk);
    CHECK(box.take_all().empty());
    Uplink::Sum none;
    CHECK_FALSE(shard.uplinks[1 - chunk]->next(none));
    const Uplink::Sum sum = take_sum(shard, chunk);
    CHECK(sum.chunk == chunk);
    CHECK(sum.values[0] == 6);
    CHECK(sum.values != sum.result);
    give_back(box, shard, sum, 17);
    const auto sent = of_type(box.take_all(), PacketType::kResult);
    REQUIRE(sent.size() == 6);
    for (const Sent& one : sent) CHECK(one.value() == 17);
  }
}

TEST_CASE("ranks get the upper box's result, which stays as it came, in every dtype") {
  for (const wire::Dtype dtype : {wire::Dtype::kF32, wire::Dtype::kF16}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
      CAPTURE(dtype, reduction);
      Box box;
      JobOptions options = relayed();
      options.dtype = dtype;
      options.reduction = reduction;
      JobShard& shard = admit(box, options);
      for (uint32_t round = 0; round < 3; ++round) {
        push_all(box, options, 1, round);
        const Uplink::Sum sum = take_sum(shard);
        CHECK(sum.values[0] == 2);
        give_back(box, shard, sum, 20);
        CHECK(sum.result[0] == 20);
        CHECK(shard.find(0)->up.result[round & 1] == sum.result);
        const auto sent = of_type(box.take_all(), PacketType::kResult);
        REQUIRE_FALSE(sent.empty());
        for (const Sent& one : sent) {
          float value = 0;
          reduce::kernels().store[static_cast<size_t>(dtype)](&value, one.payload.data(), 1,
                                                              FLT_MAX);
          CHECK(value == 20);
        }
      }
    }
  }
}

TEST_CASE("in mode optimize rank 0's weights go up first, then sums, and weights come back") {
  for (const wire::Dtype dtype : {wire::Dtype::kF32, wire::Dtype::kBf16}) {
    Box box;
    JobOptions options = relayed();
    options.dtype = dtype;
    options.mode = pipeline::Mode::kOptimize;
    options.optimizer.kind = optimizer::OptimizerKind::kAdam;
    JobShard& shard = admit(box, options);
    box.push_chunk(options, 1, 7, 0);
    box.push_chunk(options, 0, 4, 0);
    const Uplink::Sum weights = take_sum(shard);
    CHECK(weights.values[0] == 4);
    give_back(box, shard, weights, 2);  // rank 0 is of another rack
    box.take_all();
    push_all(box, options, 3, 1);
    const Uplink::Sum sum = take_sum(shard);
    CHECK(sum.values[0] == 6);
    CHECK(sum.result != weights.result);
    CHECK(weights.result[0] == 2);  // kept until the next weights are whole
    give_back(box, shard, sum, 1.5f);
    const auto sent = of_type(box.take_all(), PacketType::kResult);
    REQUIRE_FALSE(sent.empty());
    float value = 0;
    reduce::kernels().store[static_cast<size_t>(dtype)](&value, sent[0].payload.data(), 1, FLT_MAX);
    CHECK(value == 1.5f);
  }
}

TEST_CASE("while a sum is with the upper box, no result is sent from memory that it replaces") {
  Box box;
  const JobOptions options = relayed();
  JobShard& shard = admit(box, options);
  push_all(box, options, 1, 0);
  give_back(box, shard, take_sum(shard), 9);
  box.take_all();
  // Until the next round is complete, a rank that asks gets the last result.
  box.deliver(box.pull(options, 0, 0));
  CHECK(of_type(box.take_all(), PacketType::kResult).size() == 3);
  box.deliver(box.pull(options, 1, 0));  // queued, and overtaken by the round
  push_all(box, options, 2, 1);
  const Uplink::Sum sum = take_sum(shard);
  std::fill_n(sum.result, options.chunk_elements, -1.0f);  // half of a result has arrived
  CHECK(of_type(box.take_all(), PacketType::kResult).empty());
  // A new process in a rank's place asks for the newest result.
  box.deliver(box.pull(options, 1, 0));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == PacketType::kStatus);
  CHECK(sent[0].status().finished_round == 1);
  give_back(box, shard, sum, 11);
  const auto results = of_type(box.take_all(), PacketType::kResult);
  REQUIRE(results.size() == 6);
  for (const Sent& one : results) {
    CHECK(one.header.round == 1);
    CHECK(one.value() == 11);
  }
}

}  // namespace pbox::test::engine_relay_test
