// A chunk in mode optimize that moves continues at the other box as if it had never moved.
#include <catch2/catch.hpp>
#include <map>

#include "pipeline/state/chunk_state.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::chunk_state_test {
namespace {

using optimizer::OptimizerKind;
using pipeline::ChunkState;
using pipeline::CommandKind;
using pipeline::JobShard;

constexpr uint32_t kCut = 3;  // rounds that the first box finishes

JobOptions job_of(OptimizerKind kind, wire::Dtype dtype) {
  JobOptions job{.workers = 2, .chunks = 2, .dtype = dtype, .mode = pipeline::Mode::kOptimize};
  job.reduction = pipeline::Reduction::kMean;
  job.optimizer = {.kind = kind, .learning_rate = 0.3f, .momentum = 0.9f, .weight_decay = 0.01f};
  return job;
}

using Payloads = std::map<std::pair<uint32_t, uint32_t>, std::vector<std::byte>>;

// Keeps rank 0's results, by chunk and fragment.
void keep_results(const std::vector<Sent>& sent, const JobOptions& job, Payloads& results) {
  for (const Sent& one : sent) {
    if (one.header.type() != wire::PacketType::kResult || one.to != address_of(job.job, 0))
      continue;
    results[{one.header.chunk, one.header.fragment}] = one.payload;
  }
}

void push_round(Box& box, const JobOptions& job, uint32_t round) {
  for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
    for (const uint32_t rank : {0u, 1u}) {
      const float value = 1.5f * static_cast<float>(rank + 1) - 0.7f * static_cast<float>(round);
      box.push_chunk(job, rank, value, round, chunk);
    }
  }
}

// Moves the job's chunks from the first box to the second.
JobShard& move(Box& from, JobShard& shard, Box& to, const JobOptions& job) {
  from.engine.execute({.kind = CommandKind::kRemove, .shard = &shard});
  JobShard& next = to.admit(job);
  to.engine.execute({.kind = CommandKind::kRemove, .shard = &next});
  for (const pipeline::Chunk& chunk : shard.chunks()) {
    const auto state = pipeline::state_of(shard, chunk);
    if (state) pipeline::restore(next, *state);
  }
  to.engine.execute({.kind = CommandKind::kInstall, .shard = &next});
  return next;
}

}  // namespace

TEST_CASE("a chunk that moves with its state gives the same weights as one that stays") {
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kNesterov,
                          OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16}) {
      const JobOptions job = job_of(kind, dtype);
      Box undisturbed, first, second;
      undisturbed.admit(job);
      JobShard& shard = first.admit(job);
      for (uint32_t round = 0; round < kCut; ++round) {
        for (Box* box : {&undisturbed, &first}) {
          push_round(*box, job, round);
          box->take_all();
        }
      }
      first.deliver(first.push(job, 1, 0, 99.0f, kCut));  // lost with the box
      JobShard& moved = move(first, shard, second, job);
      CHECK(moved.chunks()[1].open_round() == kCut);
      for (uint32_t round = kCut; round < kCut + 3; ++round) {
        Payloads expected, results;
        for (Box* box : {&undisturbed, &second}) push_round(*box, job, round);
        keep_results(undisturbed.take_all(), job, expected);
        for (const uint32_t chunk : {0u, 1u}) second.deliver(second.pull(job, 0, round, 0, chunk));
        keep_results(second.take_all(), job, results);
        REQUIRE(expected.size() >= 2);
        CHECK(results == expected);
      }
    }
  }
}

TEST_CASE("after a move a worker can get the last result, and no older one") {
  const JobOptions job = job_of(OptimizerKind::kAdam, wire::Dtype::kBf16);
  Box first, second;
  JobShard& shard = first.admit(job);
  Payloads expected, results;
  for (uint32_t round = 0; round < kCut; ++round) {
    push_round(first, job, round);
    keep_results(first.take_all(), job, expected);
  }
  move(first, shard, second, job);
  for (const uint32_t chunk : {0u, 1u}) second.deliver(second.pull(job, 0, kCut - 2, 0, chunk));
  keep_results(second.take_all(), job, results);
  CHECK(results.empty());
  for (const uint32_t chunk : {0u, 1u}) second.deliver(second.pull(job, 0, kCut - 1, 0, chunk));
  keep_results(second.take_all(), job, results);
  CHECK(results == expected);
}

TEST_CASE("a chunk without weights has no state: in its first round, or while it expects a copy") {
  Box box;
  const JobOptions job = job_of(OptimizerKind::kMomentum, wire::Dtype::kF32);
  JobShard& shard = box.admit(job);
  CHECK_FALSE(pipeline::state_of(shard, shard.chunks()[0]));
  auto spec = spec_of(job);
  spec.chunks[1].first_round = 7;
  spec.chunks[1].copy_rank = 1;
  const auto copied = pipeline::JobShard::create(spec);
  REQUIRE(copied.ok());
  CHECK_FALSE(pipeline::state_of(**copied, (*copied)->chunks()[1]));
}

TEST_CASE("the number of workers in a result survives a move, also to other fragment sizes") {
  JobOptions job = job_of(OptimizerKind::kSgd, wire::Dtype::kF32);
  auto spec = spec_of(job);
  spec.partial = true;
  auto shard = pipeline::JobShard::create(spec);  // 3 fragments of 1024 bytes
  REQUIRE(shard.ok());
  ChunkState state{.chunk = 0,
                   .rounds_finished = 5,
                   .steps = 2,
                   .values = std::vector<float>(job.chunk_elements, 1.0f),
                   .contributors = {2, 1},
                   .fragment_bytes = 2048};
  pipeline::restore(**shard, state);
  const pipeline::Chunk& chunk = (*shard)->chunks()[0];
  const uint16_t* counts = chunk.contributors[0];
  CHECK(std::vector<uint16_t>(counts, counts + 3) == std::vector<uint16_t>{2, 2, 1});
  const auto again = pipeline::state_of(**shard, chunk);
  REQUIRE(again);
  CHECK(again->rounds_finished == 5);
  CHECK(again->steps == 2);
  CHECK(again->contributors == std::vector<uint16_t>{2, 2, 1});
}

}  // namespace pbox::test::chunk_state_test
