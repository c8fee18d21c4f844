// Replicated chunks: no result leaves before the backup box has the copy, and the copy equals the
// chunk after its round.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "pipeline/state/chunk_state.h"
#include "pipeline/state/state_cut.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::replicated_chunk_test {
namespace {

using optimizer::OptimizerKind;
using pipeline::ChunkState;
using pipeline::Counter;
using pipeline::JobShard;
using pipeline::StateLayout;
using pipeline::Uplink;

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kMomentum,
                                    OptimizerKind::kAdam};

JobOptions job_of(OptimizerKind kind, bool replicated, wire::Dtype dtype = wire::Dtype::kF32) {
  JobOptions job{.chunks = 2, .dtype = dtype, .mode = pipeline::Mode::kOptimize};
  job.reduction = pipeline::Reduction::kMean;
  job.optimizer = {.kind = kind, .learning_rate = 0.3f, .momentum = 0.9f, .weight_decay = 0.01f};
  job.replicated = replicated;
  return job;
}

void push_round(Box& box, const JobOptions& job, uint32_t round) {
  for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
    for (const uint32_t rank : {0u, 1u}) {
      const float value = 1.5f * static_cast<float>(rank + 1) - 0.7f * static_cast<float>(round);
      box.push_chunk(job, rank, value, round, chunk);
    }
  }
}

// Acts as the relay and the backup box: takes the blocks that were sent, and gives them back.
std::vector<ChunkState> take_copies(JobShard& shard, const JobOptions& job) {
  std::vector<ChunkState> copies;
  const StateLayout layout = StateLayout::block(job.optimizer.kind, job.chunk_elements);
  Uplink::Sum sum;
  while (shard.uplinks[0]->next(sum)) {
    auto copy = pipeline::decode_block({sum.values, layout.floats}, sum.chunk);
    REQUIRE(copy);
    copies.push_back(std::move(*copy));
    shard.uplinks[0]->give_back(sum.chunk);
  }
  return copies;
}

// Finishes a round: the copy is made and the results leave.
void finish_round(Box& box, JobShard& shard, const JobOptions& job, uint32_t round) {
  push_round(box, job, round);
  take_copies(shard, job);
  box.engine.finish_waiting(box.now_ns);
  box.take_all();
}

void check_equal(const ChunkState& one, const ChunkState& other) {
  CHECK(one.chunk == other.chunk);
  CHECK(one.rounds_finished == other.rounds_finished);
  CHECK(one.steps == other.steps);
  CHECK(one.values == other.values);
}

bool has_results(const std::vector<Sent>& sent) {
  return std::any_of(sent.begin(), sent.end(), [](const Sent& one) {
    return one.header.type() == wire::PacketType::kResult;
  });
}

}  // namespace

TEST_CASE("results leave once the copy is made, and equal those of a job without a backup") {
  for (const auto kind : kKinds) {
    for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kBf16}) {
      const JobOptions plain = job_of(kind, false, dtype), copied = job_of(kind, true, dtype);
      Box alone, box;
      JobShard& still = alone.admit(plain);
      JobShard& shard = box.admit(copied);
      for (uint32_t round = 0; round < 4; ++round) {
        push_round(alone, plain, round);
        push_round(box, copied, round);
        CHECK_FALSE(has_results(box.take_all()));
        CHECK_FALSE(box.engine.finish_waiting(box.now_ns));
        const auto copies = take_copies(shard, copied);
        REQUIRE(copies.size() == 2);
        for (const ChunkState& copy : copies) {
          check_equal(copy, *pipeline::state_of(still, *still.find(copy.chunk)));
        }
        CHECK(box.engine.finish_waiting(box.now_ns));
        const auto expected = alone.take_all(), sent = box.take_all();
        REQUIRE(sent.size() == expected.size());
        for (size_t index = 0; index < sent.size(); ++index) {
          CHECK(sent[index].payload == expected[index].payload);
        }
      }
    }
  }
}

TEST_CASE("a chunk whose copy is in flight has the state after its round") {
  const JobOptions job = job_of(OptimizerKind::kAdam, true);
  Box box;
  JobShard& shard = box.admit(job);
  push_round(box, job, 0);
  // The initial weights: no step was applied.
  CHECK(pipeline::state_of(shard, *shard.find(0))->rounds_finished == 1);
  CHECK(pipeline::state_of(shard, *shard.find(0))->steps == 0);
  take_copies(shard, job);
  box.engine.finish_waiting(box.now_ns);
  box.take_all();
  push_round(box, job, 1);
  const auto state = pipeline::state_of(shard, *shard.find(1));
  CHECK(state->rounds_finished == 2);
  CHECK(state->steps == 1);
  CHECK(shard.find(1)->rounds_finished == 1);
  check_equal(*state, take_copies(shard, job).at(1));
}

TEST_CASE("while the copy is in flight the round stays open and no result can be asked for") {
  const JobOptions job = job_of(OptimizerKind::kSgd, true);
  Box box;
  JobShard& shard = box.admit(job);
  finish_round(box, shard, job, 0);
  push_round(box, job, 1);
  const uint64_t duplicates = box.count(Counter::kDuplicate);
  box.deliver(box.push(job, 0, 0, 1, 1));
  CHECK(box.count(Counter::kDuplicate) == duplicates + 1);
  for (const uint32_t round : {0u, 1u}) {  // round 0's result was replaced
    box.deliver(box.pull(job, 1, round));
    const auto sent = box.take_all();
    CHECK_FALSE(has_results(sent));
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].header.type() == wire::PacketType::kStatus);
  }
  take_copies(shard, job);
  box.engine.finish_waiting(box.now_ns);
  CHECK(has_results(box.take_all()));
  box.deliver(box.pull(job, 1, 1));
  CHECK(has_results(box.take_all()));
}

TEST_CASE("a chunk that passed a snapshot's cut with its copy in flight counts as missed") {
  const JobOptions job = job_of(OptimizerKind::kMomentum, true);
  for (const bool in_time : {true, false}) {
    Box box;
    JobShard& shard = box.admit(job);
    finish_round(box, shard, job, 0);
    const auto cut = std::move(*pipeline::StateCut::create(shard, 1));
    const auto look = [&] {
      box.engine.execute({.kind = pipeline::CommandKind::kCut, .shard = &shard, .cut = cut.get()});
    };
    if (in_time) look();
    push_round(box, job, 1);
    look();
    CHECK(cut->copied() == (in_time ? 2 : 0));
    CHECK(cut->missed() == (in_time ? 0 : 2));
  }
}

TEST_CASE("a part that continues from a copy gives the same results as one that was never lost") {
  for (const auto kind : kKinds) {
    const JobOptions job = job_of(kind, true), plain = job_of(kind, false);
    Box alone, box, next;
    JobShard& still = alone.admit(plain);
    JobShard& shard = box.admit(job);
    std::vector<ChunkState> copies;
    for (uint32_t round = 0; round < 5; ++round) {
      push_round(alone, plain, round);
      alone.take_all();
      if (round > 2) continue;
      push_round(box, job, round);
      copies = take_copies(shard, job);
      box.engine.finish_waiting(box.now_ns);
      box.take_all();
    }
    JobShard& successor = next.admit(plain);
    next.engine.execute({.kind = pipeline::CommandKind::kRemove, .shard = &successor});
    for (const ChunkState& copy : copies) {
      const auto block =
          pipeline::encode_block(copy, kind, job.chunk_elements);  // the form in which it travels
      pipeline::restore(successor, *pipeline::decode_block(block, copy.chunk));
    }
    next.engine.execute({.kind = pipeline::CommandKind::kInstall, .shard = &successor});
    for (const uint32_t round : {3u, 4u}) {
      push_round(next, plain, round);
      next.take_all();
    }
    for (const uint32_t chunk : {0u, 1u}) {
      check_equal(*pipeline::state_of(successor, *successor.find(chunk)),
                  *pipeline::state_of(still, *still.find(chunk)));
    }
  }
}

TEST_CASE("counters of any size survive, and an invalid block is rejected") {
  const ChunkState state{.chunk = 7,
                         .rounds_finished = 0x123456789abcdef0,
                         .steps = 0xfedcba9876543210,
                         .values = std::vector<float>(3 * 100, 2.5f),
                         .contributors = {}};
  auto block = pipeline::encode_block(state, OptimizerKind::kAdam, 100);
  check_equal(*pipeline::decode_block(block, 7), state);
  const size_t counts = StateLayout::block(OptimizerKind::kAdam, 100).counters;
  CHECK_FALSE(pipeline::decode_block({block.data(), block.size() - 1}, 7));
  CHECK_FALSE(pipeline::decode_block({block.data(), 3}, 7));
  for (const float broken : {-1.0f, 65536.0f, std::nanf(""), 9.0f}) {
    auto other = block;
    other[counts + 9] = broken;  // the upper half of the number of elements
    CHECK_FALSE(pipeline::decode_block(other, 7));
  }
  std::fill(block.begin(), block.end(), 0.0f);
  CHECK_FALSE(pipeline::decode_block(block, 7));
}

}  // namespace pbox::test::replicated_chunk_test
