// A snapshot's cut of a shard, and a job that begins with it.
#include <catch2/catch.hpp>

#include "pipeline/state/chunk_state.h"
#include "pipeline/state/state_cut.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::state_cut_test {
namespace {

using optimizer::OptimizerKind;
using pipeline::ChunkState;
using pipeline::CommandKind;
using pipeline::JobShard;
using pipeline::StateCut;

constexpr uint32_t kCut = 3;

JobOptions job_of(OptimizerKind kind, wire::Dtype dtype = wire::Dtype::kF32, uint32_t chunks = 3) {
  JobOptions job{.workers = 2, .chunks = chunks, .dtype = dtype, .mode = pipeline::Mode::kOptimize};
  job.reduction = pipeline::Reduction::kMean;
  job.optimizer = {.kind = kind, .learning_rate = 0.3f, .momentum = 0.9f, .weight_decay = 0.01f};
  return job;
}

void finish_round(Box& box, const JobOptions& job, uint32_t round, uint32_t chunk) {
  for (const uint32_t rank : {0u, 1u}) {
    const float value = 1.5f * static_cast<float>(rank + 1) - 0.7f * static_cast<float>(round);
    box.push_chunk(job, rank, value, round, chunk);
  }
  box.take_all();
}

void finish_rounds(Box& box, const JobOptions& job, uint32_t first, uint32_t end) {
  for (uint32_t round = first; round < end; ++round) {
    for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) finish_round(box, job, round, chunk);
  }
}

void look(Box& box, JobShard& shard, StateCut* cut) {
  box.engine.execute({.kind = CommandKind::kCut, .shard = &shard, .cut = cut});
}

std::vector<ChunkState> states(const StateCut& cut) {
  std::vector<ChunkState> states;
  for (const pipeline::StateView& copy : cut.copies()) {
    CHECK(copy.rounds_finished == kCut);
    states.push_back(to_chunk_state(copy));
  }
  return states;
}

// Compares the cut with the same job, stopped at the cut.
void check_is_cut(const StateCut& cut, const JobOptions& job) {
  Box still;
  JobShard& shard = still.admit(job);
  finish_rounds(still, job, 0, kCut);
  const auto copies = states(cut);
  REQUIRE(copies.size() == job.chunks);
  for (const ChunkState& copy : copies) {
    const auto expected = pipeline::state_of(shard, *shard.find(copy.chunk));
    CHECK(copy.values == expected->values);
    CHECK(copy.steps == kCut - 1);
  }
}

}  // namespace

TEST_CASE("a cut has all chunks at one round, though they are at different rounds when it begins") {
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdam}) {
    const JobOptions job = job_of(kind);
    Box box;
    JobShard& shard = box.admit(job);
    finish_rounds(box, job, 0, kCut - 1);
    finish_round(box, job, kCut - 1, 1);  // chunk 1 rests at the cut, the others are before it
    const auto cut = std::move(*StateCut::create(shard, kCut));
    look(box, shard, cut.get());
    CHECK(cut->copied() == 1);
    finish_round(box, job, kCut, 1);  // passes the cut
    CHECK(cut->copied() == 1);
    for (const uint32_t chunk : {0u, 2u}) {
      for (const uint32_t round : {kCut - 1, kCut}) finish_round(box, job, round, chunk);
    }
    CHECK(cut->copied() == 3);  // before they passed the cut
    finish_rounds(box, job, kCut + 1, kCut + 3);
    look(box, shard, nullptr);
    CHECK(cut->missed() == 0);
    check_is_cut(*cut, job);
  }
}

TEST_CASE("chunks that rest at a cut are copied two megabytes at a time") {
  const JobOptions job = job_of(OptimizerKind::kAdam, wire::Dtype::kBf16, 500);
  Box box;
  JobShard& shard = box.admit(job);
  finish_rounds(box, job, 0, kCut);
  const auto cut = std::move(*StateCut::create(shard, kCut));
  CHECK(cut->bytes() >= StateCut::bytes_of(shard));
  std::vector<uint32_t> copied;
  while (cut->copied() < cut->chunk_count()) {
    look(box, shard, cut.get());
    copied.push_back(cut->copied());
  }
  const size_t each = StateCut::bytes_of(shard) / job.chunks;
  const auto at_once = static_cast<uint32_t>((StateCut::kCopiedBytesMax + each - 1) / each);
  CHECK(copied == std::vector<uint32_t>{at_once, 2 * at_once, 500});
  finish_rounds(box, job, kCut, kCut + 1);
  look(box, shard, nullptr);
  check_is_cut(*cut, job);
}

TEST_CASE("a chunk that has passed the cut counts as missed") {
  const JobOptions job = job_of(OptimizerKind::kMomentum);
  Box box;
  JobShard& shard = box.admit(job);
  finish_rounds(box, job, 0, kCut);
  finish_round(box, job, kCut, 2);
  const auto cut = std::move(*StateCut::create(shard, kCut));
  for (int times = 0; times < 3; ++times) look(box, shard, cut.get());
  CHECK(cut->copied() == 2);
  CHECK(cut->missed() == 1);
}

TEST_CASE("a job that begins with a cut continues as the job that it was made from") {
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kNesterov, OptimizerKind::kAdamW}) {
    for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16}) {
      const JobOptions job = job_of(kind, dtype);
      Box undisturbed, second;
      JobShard& shard = undisturbed.admit(job);
      finish_rounds(undisturbed, job, 0, kCut);
      const auto cut = std::move(*StateCut::create(shard, kCut));
      look(undisturbed, shard, cut.get());

      JobShard& begun = second.admit(job);
      second.engine.execute({.kind = CommandKind::kRemove, .shard = &begun});
      for (const ChunkState& state : states(*cut)) pipeline::begin_from_snapshot(begun, state);
      second.engine.execute({.kind = CommandKind::kInstall, .shard = &begun});
      for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
        second.push_chunk(job, 1, 77.0f, 0, chunk);  // a training script's own initial weights
        second.push_chunk(job, 0, 55.0f, 0, chunk);
        const auto sent = second.take_all();
        REQUIRE(!sent.empty());
        if (dtype == wire::Dtype::kF32) {
          CHECK(sent[0].value() == shard.chunks()[chunk].weights[0]);
        }
      }
      for (uint32_t step = 0; step < 4; ++step) {
        for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
          for (const uint32_t rank : {0u, 1u}) {
            const float value = static_cast<float>(rank) - 0.3f * static_cast<float>(step);
            undisturbed.push_chunk(job, rank, value, kCut + step, chunk);
            second.push_chunk(job, rank, value, 1 + step, chunk);
          }
        }
        undisturbed.take_all();
        second.take_all();
      }
      for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
        const auto expected = pipeline::state_of(shard, shard.chunks()[chunk]);
        const auto found = pipeline::state_of(begun, begun.chunks()[chunk]);
        CHECK(found->values == expected->values);
        CHECK(found->steps == expected->steps);
      }
    }
  }
}

namespace {

// Both ranks push each chunk once.
void push_all(Box& box, const JobOptions& job, uint32_t round) {
  for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) finish_round(box, job, round, chunk);
}

std::vector<float> weights_of(const JobShard& shard, uint32_t chunk) {
  const pipeline::Chunk& held = shard.chunks()[chunk];
  return {held.weights, held.weights + held.elements};
}

}  // namespace

TEST_CASE("where pushes are applied on arrival, a chunk rests at the cut with the slowest rank") {
  JobOptions job = job_of(OptimizerKind::kAdam, wire::Dtype::kF32, 1);
  job.sync = {.model = wire::SyncModel::kSsp, .staleness = 2};
  Box box;
  JobShard& shard = box.admit(job);
  for (uint32_t round = 0; round < kCut - 1; ++round) push_all(box, job, round);
  const auto cut = std::move(*StateCut::create(shard, kCut));
  box.push_chunk(job, 0, 1.0f, kCut - 1, 0);
  box.push_chunk(job, 0, 2.0f, kCut, 0);
  look(box, shard, cut.get());
  CHECK(cut->copied() == 0);  // the slowest rank is before the cut
  box.push_chunk(job, 1, 3.0f, kCut - 1, 0);
  const auto at_cut = weights_of(shard, 0);
  CHECK(cut->copied() == 0);
  box.push_chunk(job, 1, 4.0f, kCut, 0);  // its push takes the slowest past the cut
  CHECK(cut->copied() == 1);
  CHECK(cut->missed() == 0);
  const pipeline::StateView& copy = cut->copies()[0];
  CHECK(copy.rounds_finished == kCut);
  CHECK(copy.steps == 6);  // both ranks, rounds 1 to 3
  const std::vector<float> copied(copy.weights.begin(), copy.weights.end());
  CHECK(copied == weights_of(shard, 0));
  CHECK(copied != at_cut);
}

TEST_CASE("a job with other fragments or another model begins with the cut of a relaxed job") {
  for (const auto kind : {OptimizerKind::kMomentum, OptimizerKind::kAdam}) {
    JobOptions job = job_of(kind);
    job.sync = {.model = wire::SyncModel::kAsp};
    Box undisturbed;
    JobShard& shard = undisturbed.admit(job);
    for (uint32_t round = 0; round < kCut; ++round) push_all(undisturbed, job, round);
    const auto cut = std::move(*StateCut::create(shard, kCut));
    look(undisturbed, shard, cut.get());
    JobOptions other = job;
    other.fragment_bytes = GENERATE(256, 1024);
    const bool has_model = GENERATE(false, true);
    if (!has_model) other.sync = {};
    Box second;
    JobShard& begun = second.admit(other);
    second.engine.execute({.kind = CommandKind::kRemove, .shard = &begun});
    for (const ChunkState& state : states(*cut)) pipeline::begin_from_snapshot(begun, state);
    second.engine.execute({.kind = CommandKind::kInstall, .shard = &begun});
    push_all(second, other, 0);
    for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
      CHECK(weights_of(begun, chunk) == weights_of(shard, chunk));
    }
    // The undisturbed job gets the same gradients, in a round with a different number.
    for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
      for (const uint32_t rank : {0u, 1u}) {
        undisturbed.push_chunk(job, rank, static_cast<float>(rank) - 0.3f, kCut, chunk);
        second.push_chunk(other, rank, static_cast<float>(rank) - 0.3f, 1, chunk);
      }
    }
    undisturbed.take_all();
    second.take_all();
    for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
      if (has_model) CHECK(weights_of(begun, chunk) == weights_of(shard, chunk));
      if (!has_model) CHECK(begun.chunks()[chunk].steps() == cut->copies()[chunk].steps + 1);
    }
  }
}

}  // namespace pbox::test::state_cut_test
