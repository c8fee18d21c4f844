// The numeric guard in an engine: what each policy does with an unsound value of one rank.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_guard_test {

using pipeline::CommandKind;
using pipeline::Counter;
using wire::Guard;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rank `culprit` pushes `value` in the chunk's last fragment, and 1 in all others, as every other
// rank does. The ranks push in their order.
void run_round_with(Box& box, const JobOptions& job, uint32_t culprit, float value,
                    uint32_t round = 0) {
  const uint32_t last = job.chunk_elements * wire::dtype_bytes(job.dtype) / job.fragment_bytes - 1;
  for (uint32_t rank = 0; rank < job.workers; ++rank) {
    for (uint32_t fragment = 0; fragment <= last; ++fragment) {
      const bool is_bad = rank == culprit && fragment == last;
      box.deliver(box.push(job, rank, fragment, is_bad ? value : 1.0f, round));
    }
  }
}

float value_of(wire::Dtype dtype, const Sent& sent) {
  float value = 0;
  reduce::store(dtype, &value, sent.payload.data(), 1);
  return value;
}

}  // namespace

TEST_CASE("guard zero: an unsound value counts as 0, whoever pushed it and when") {
  const auto numerics = GENERATE(wire::Numerics::kFast, wire::Numerics::kOrdered);
  for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16}) {
    for (const float value : {kNan, kInfinity, -kInfinity, 101.0f, -101.0f}) {
      for (const uint32_t culprit : {0u, 1u, 2u}) {
        Box box;
        const JobOptions job{.workers = 3,
                             .chunk_elements = 1024,
                             .dtype = dtype,
                             .numerics = numerics,
                             .guard = {Guard::kZero, 100}};
        const auto& sessions = box.admit(job).sessions();
        run_round_with(box, job, culprit, value);
        const auto sent = box.take_all();
        INFO(wire::to_string(dtype) << " " << value << " of rank " << culprit);
        REQUIRE_FALSE(sent.empty());
        for (const Sent& result : sent) {
          if (result.header.type() != wire::PacketType::kResult) continue;
          const bool is_last = (result.header.flags & wire::flag::kLast) != 0;
          CHECK(value_of(dtype, result) == (is_last ? 2.0f : 3.0f));
        }
        for (uint32_t rank = 0; rank < 3; ++rank) {
          CHECK(sessions[rank].nonfinite.get() == (rank == culprit ? 1 : 0));
        }
      }
    }
  }
}

TEST_CASE("guard flag: values beyond the bound count, and the result has them") {
  Box box;
  const JobOptions job{.guard = {Guard::kFlag, 100}};
  const auto& sessions = box.admit(job).sessions();
  run_round_with(box, job, 1, 101);
  CHECK(box.take_all().at(0).value() == 2);
  CHECK(sessions[0].nonfinite.get() == 0);
  CHECK(sessions[1].nonfinite.get() == 1);
  run_round_with(box, job, 1, 100, 1);
  CHECK(sessions[1].nonfinite.get() == 1);
}

TEST_CASE("guard reject, mode aggregate: no result leaves, no packet is accepted any more") {
  const auto numerics = GENERATE(wire::Numerics::kFast, wire::Numerics::kOrdered);
  for (const uint32_t culprit : {0u, 1u, 2u}) {
    Box box;
    const JobOptions job{
        .workers = 3, .chunks = 2, .numerics = numerics, .guard = {Guard::kReject}};
    auto& shard = box.admit(job);
    box.run_round(job, 0, 1);
    CHECK(shard.rejected_rank() == pipeline::kNoRank);
    run_round_with(box, job, culprit, kNan);
    INFO("rank " << culprit);
    CHECK(box.take_all().empty());
    CHECK(shard.rejected_rank() == culprit);
    CHECK(shard.sessions()[culprit].nonfinite_chunk_round.get() == 0);
    CHECK(shard.chunks()[0].rounds_finished == 0);
    const uint64_t rejected = box.count(Counter::kRejectGeneration);
    box.run_round(job, 1, 1);
    CHECK(box.count(Counter::kRejectGeneration) == rejected + 9);
    // A rank's exclusion does not finish the round either.
    box.engine.execute({.kind = CommandKind::kExclude,
                        .shard = &shard,
                        .rank = (culprit + 1) % 3,
                        .generation = 21});
    CHECK(shard.chunks()[0].rounds_finished == 0);
    CHECK(shard.accepted_generation == pipeline::JobShard::kNoGeneration);
  }
}

TEST_CASE("guard reject, mode optimize: the sum of a round with an unsound value is infinite") {
  Box box;
  const JobOptions job{.mode = pipeline::Mode::kOptimize,
                       .optimizer = {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1},
                       .gated = true,
                       .guard = {Guard::kReject, 100}};
  auto& shard = box.admit(job);
  box.run_round(job, 0);
  run_round_with(box, job, 1, 101, 1);
  CHECK(shard.gate->reported()->round == 1);
  CHECK(std::isinf(shard.gate->reported()->squares));
  CHECK(box.take_all().empty());
  box.engine.execute({.kind = CommandKind::kGiveVerdict,
                      .shard = &shard,
                      .verdict = {.round = 1, .is_skip = true}});
  box.engine.finish_waiting(box.now_ns);
  CHECK(box.take_all().at(0).value() == 1);
  run_round_with(box, job, 1, 100, 2);
  CHECK(shard.gate->reported()->round == 2);
  CHECK(std::isfinite(shard.gate->reported()->squares));
}

TEST_CASE("guard zero: gradients that are applied on arrival are bounded too") {
  Box box;
  const JobOptions job{.mode = pipeline::Mode::kOptimize,
                       .optimizer = {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1},
                       .sync = {.model = wire::SyncModel::kAsp},
                       .guard = {Guard::kZero}};
  auto& shard = box.admit(job);
  box.run_round(job, 0);
  box.push_chunk(job, 1, kNan, 1);
  CHECK(shard.sessions()[1].nonfinite.get() == 3);
  CHECK(shard.chunks()[0].weights[0] == 1);
  box.push_chunk(job, 0, 0.25f, 1);
  CHECK(shard.chunks()[0].weights[0] == 0.75f);
}

TEST_CASE("initial weights are not bounded") {
  for (const Guard policy : {Guard::kZero, Guard::kReject}) {
    Box box;
    const JobOptions job{.mode = pipeline::Mode::kOptimize,
                         .optimizer = {.kind = optimizer::OptimizerKind::kSgd},
                         .gated = policy == Guard::kReject,
                         .guard = {policy, 0.5f}};
    const auto& sessions = box.admit(job).sessions();
    CHECK(box.run_round(job, 0).at(0).value() == 1);
    CHECK(sessions[0].nonfinite.get() == 0);
  }
}

TEST_CASE("a result that a rank gives back is neither bounded nor measured") {
  Box box;
  const JobOptions job{.guard = {Guard::kZero, 1.5f}};
  auto spec = spec_of(job);
  spec.chunks[0].copy_rank = 1;
  auto shard = pipeline::JobShard::create(spec);
  REQUIRE(shard);
  box.engine.execute({.kind = CommandKind::kInstall, .shard = shard->get()});
  for (uint32_t fragment = 0; fragment < 3; ++fragment) {
    Packet state = box.push(job, 1, fragment, 2.0f);  // each rank's 1.0 was sound
    state.header.set_type(wire::PacketType::kState);
    box.deliver(state);
  }
  CHECK(box.take_all().at(0).value() == 2);
  CHECK((*shard)->sessions()[1].nonfinite.get() == 0);
  CHECK_FALSE((*shard)->sessions()[1].squares.newest());
  box.engine.execute({.kind = CommandKind::kRemove, .shard = shard->get()});
}

TEST_CASE("the squares of each rank's gradient are measured, without infinities and NaNs") {
  const auto numerics = GENERATE(wire::Numerics::kFast, wire::Numerics::kOrdered);
  for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16}) {
    Box box;
    const JobOptions job{.chunk_elements = 1024, .dtype = dtype, .numerics = numerics};
    const auto& sessions = box.admit(job).sessions();
    box.push_chunk(job, 0, 3);
    const Packet again = box.push(job, 0, 0, 3);
    box.deliver(again);  // a duplicate is measured once, as it counts once
    CHECK(sessions[0].squares.newest() == 9.0 * 1024);
    CHECK_FALSE(sessions[1].squares.newest());
    const uint64_t in_last = job.fragment_bytes / wire::dtype_bytes(dtype);
    run_round_with(box, job, 1, kInfinity);
    CHECK(sessions[1].squares.newest() == static_cast<double>(1024 - in_last));
    box.take_all();
    for (uint32_t round = 1; round < 17; ++round) {
      box.run_round(job, round);
      box.take_all();
    }
    CHECK(sessions[0].squares.newest() == 1024);
    for (const uint32_t rank : {0u, 1u}) box.push_chunk(job, rank, 5, 17);
    CHECK(sessions[0].squares.newest() == 1024);  // a round that is not measured
  }
}

TEST_CASE("gradients that are applied on arrival are measured") {
  Box box;
  const JobOptions job{.mode = pipeline::Mode::kOptimize,
                       .optimizer = {.kind = optimizer::OptimizerKind::kSgd},
                       .sync = {.model = wire::SyncModel::kAsp}};
  const auto& sessions = box.admit(job).sessions();
  box.run_round(job, 0);
  CHECK_FALSE(sessions[0].squares.newest());  // weights
  box.push_chunk(job, 1, 2, 1);
  CHECK(sessions[1].squares.newest() == 4.0 * job.chunk_elements);
}

}  // namespace pbox::test::engine_guard_test
