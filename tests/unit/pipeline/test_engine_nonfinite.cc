// Infinities and NaNs are attributed to a rank, chunk and round.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_nonfinite_test {

using pipeline::CommandKind;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("fragments with an infinity or a NaN count for the rank that pushed them") {
  const auto numerics = GENERATE(wire::Numerics::kFast, wire::Numerics::kOrdered);
  for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16}) {
    for (const float value : {kNan, kInfinity, -kInfinity}) {
      for (const uint32_t culprit : {0u, 1u, 2u}) {  // the first arrival is stored, not added
        Box box;
        const JobOptions job{.workers = 3, .chunks = 2, .dtype = dtype, .numerics = numerics};
        const auto& sessions = box.admit(job).sessions();
        box.run_round(job, 0, 1);
        box.now_ns += 5;
        for (uint32_t rank = 0; rank < 3; ++rank) {
          box.push_chunk(job, rank, rank == culprit ? value : 1.0f, 1, 1);
        }
        box.take_all();
        box.now_ns += 5;
        box.run_round(job, 2, 1);
        for (uint32_t rank = 0; rank < 3; ++rank) {
          INFO(wire::to_string(dtype) << " " << value << " rank " << rank << " of " << culprit);
          const uint64_t fragments = 3 * wire::dtype_bytes(dtype) / sizeof(float);
          const bool is_culprit = rank == culprit;
          CHECK((sessions[rank].nonfinite.get() >= fragments) == is_culprit);
          CHECK((sessions[rank].nonfinite.get() == 0) == !is_culprit);
          CHECK(sessions[rank].nonfinite_chunk_round.get() ==
                (is_culprit ? uint64_t{1} << 32 | 1 : 0));
          CHECK(sessions[rank].nonfinite_at_ns.get() == (is_culprit ? 1'000'000'005u : 0));
        }
      }
    }
  }
}

TEST_CASE("no rank is blamed for a sum that overflows") {
  Box box;
  const JobOptions job;
  const auto& sessions = box.admit(job).sessions();
  box.push_chunk(job, 0, std::numeric_limits<float>::max());
  box.push_chunk(job, 1, std::numeric_limits<float>::max());
  CHECK(box.take_all().at(0).value() == kInfinity);
  CHECK(sessions[0].nonfinite.get() == 0);
  CHECK(sessions[1].nonfinite.get() == 0);
}

TEST_CASE("gradients that are applied on arrival are checked too") {
  Box box;
  const JobOptions job{.mode = pipeline::Mode::kOptimize,
                       .optimizer = {.kind = optimizer::OptimizerKind::kSgd},
                       .sync = {.model = wire::SyncModel::kAsp}};
  const auto& sessions = box.admit(job).sessions();
  box.run_round(job, 0);
  box.push_chunk(job, 1, kNan, 1);
  CHECK(sessions[0].nonfinite.get() == 0);
  CHECK(sessions[1].nonfinite.get() == 3);
}

}  // namespace pbox::test::engine_nonfinite_test
