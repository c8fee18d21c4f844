// Weighted means: each push has a weight, and the box divides by the sum of the weights.
#include <catch2/catch.hpp>

#include "nic/wire/push_weight.h"
#include "tests/unit/pipeline/box.h"
#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test::engine_weights_test {
namespace {

using pipeline::Counter;

JobOptions weighted_job() {
  JobOptions job;
  job.reduction = pipeline::Reduction::kMean;
  job.weighted = true;
  return job;
}

// Gives a push this weight, and multiplies its values by it, as a worker does. With 0 the push has
// no weight.
Packet weighed(Packet packet, uint64_t weight, const JobOptions& job) {
  const uint16_t code = weight == 0 ? uint16_t{0} : *wire::nearest_weight_code(double(weight));
  REQUIRE((weight == 0 || wire::push_weight(code) == weight));
  wire::set_weight_code(code, packet.header);
  std::vector<float> values(packet.payload.size() / wire::dtype_bytes(job.dtype));
  REQUIRE(job.dtype == wire::Dtype::kF32);
  std::memcpy(values.data(), packet.payload.data(), packet.payload.size());
  for (float& value : values) value *= static_cast<float>(weight == 0 ? 1 : weight);
  std::memcpy(packet.payload.data(), values.data(), packet.payload.size());
  return packet;
}

void push_weighed(Box& box, const JobOptions& job, uint32_t rank, float value, uint64_t weight,
                  uint32_t round = 0) {
  for (const uint32_t fragment : {0u, 1u, 2u}) {
    box.deliver(weighed(box.push(job, rank, fragment, value, round), weight, job));
  }
}

void require_results(const std::vector<Sent>& sent, float value) {
  REQUIRE(!sent.empty());
  for (const Sent& each : sent) {
    REQUIRE(each.header.type() == wire::PacketType::kResult);
    REQUIRE(each.value() == value);
  }
}

}  // namespace

TEST_CASE("a mean is divided by the sum of the weights") {
  for (const auto numerics : {wire::Numerics::kFast, wire::Numerics::kOrdered}) {
    Box box;
    JobOptions job = weighted_job();
    job.numerics = numerics;
    box.admit(job);
    push_weighed(box, job, 0, 8, 3);
    push_weighed(box, job, 1, 16, 1);
    require_results(box.take_all(), 10);
    // The weights of a round do not count in the next one.
    push_weighed(box, job, 1, 6, 1, 1);
    push_weighed(box, job, 0, 2, 1, 1);
    require_results(box.take_all(), 4);
  }
}

TEST_CASE("a push without a weight counts once") {
  Box box;
  const JobOptions job = weighted_job();
  box.admit(job);
  push_weighed(box, job, 0, 8, 0);
  push_weighed(box, job, 1, 2, 2);
  require_results(box.take_all(), 4);
}

TEST_CASE("each fragment is divided by the weights of the pushes that are in it") {
  Box box;
  JobOptions job = weighted_job();
  job.partial = true;
  pipeline::JobShard& shard = box.admit(job);
  box.deliver(weighed(box.push(job, 1, 1, 16), 3, job));
  box.engine.execute(
      {.kind = pipeline::CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 20});
  push_weighed(box, job, 0, 8, 1);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 3);
  for (const Sent& each : sent) {
    const bool has_both = each.header.fragment == 1;
    CHECK(each.value() == (has_both ? 14 : 8));
    CHECK(each.header.contributors() == (has_both ? 0 : 1));  // 0: all
  }
}

TEST_CASE("a repeated push does not weigh twice") {
  Box box;
  const JobOptions job = weighted_job();
  box.admit(job);
  push_weighed(box, job, 0, 8, 3);
  push_weighed(box, job, 0, 8, 3);
  CHECK(box.count(Counter::kDuplicate) == 3);
  push_weighed(box, job, 1, 16, 1);
  require_results(box.take_all(), 10);
}

TEST_CASE("named zeros weigh as much as pushed ones") {
  Box box;
  JobOptions job = weighted_job();
  job.takes_zeros = true;
  box.admit(job);
  Packet zeros = box.zeros(job, 0, 0b101);
  wire::set_weight_code(*wire::nearest_weight_code(3), zeros.header);
  box.deliver(zeros);
  box.deliver(weighed(box.push(job, 0, 1, 8), 3, job));
  push_weighed(box, job, 1, 16, 1);
  for (const Sent& each : box.take_all()) {
    CHECK(each.value() == (each.header.fragment == 1 ? 10 : 4));
  }
}

TEST_CASE("a late push weighs in the round in which it counts") {
  SyncJob job({.model = wire::SyncModel::kDrop, .quorum = 1, .counts_late = true}, 2);
  job.options.reduction = pipeline::Reduction::kMean;
  job.options.weighted = true;
  job.begin();
  push_weighed(job.box, job.options, 0, 4, 7, 1);
  CHECK(job.box.take_all()[0].value() == kInitialWeight - 4);
  push_weighed(job.box, job.options, 1, 8, 3, 1);  // late: it is in round 2
  CHECK(job.box.take_all()[0].value() == kInitialWeight - 4);
  push_weighed(job.box, job.options, 0, 16, 1, 2);
  CHECK(job.box.take_all()[0].value() == kInitialWeight - 4 - 10);
}

TEST_CASE("the norm of a rank's gradient is that before it was multiplied") {
  Box box;
  const JobOptions job = weighted_job();
  const pipeline::JobShard& shard = box.admit(job);
  for (const uint32_t round : {0u, 1u}) {
    push_weighed(box, job, 0, 2, 5, round);
    push_weighed(box, job, 1, 2, 1, round);
  }
  for (const pipeline::Session& session : shard.sessions()) {
    CHECK(session.squares.newest() == 4.0 * job.chunk_elements);
  }
}

TEST_CASE("clipping and weights go together") {
  Box box;
  JobOptions job = weighted_job();
  job.mode = pipeline::Mode::kOptimize;
  job.optimizer = {.kind = optimizer::OptimizerKind::kSgd, .learning_rate = 1};
  job.gated = true;
  pipeline::JobShard& shard = box.admit(job);
  box.push_chunk(job, 0, kInitialWeight);
  box.push_chunk(job, 1, kInitialWeight);
  box.take_all();
  push_weighed(box, job, 0, 8, 3, 1);
  push_weighed(box, job, 1, 16, 1, 1);
  box.take_all();
  CHECK(shard.gate->reported()->squares == 100.0 * job.chunk_elements);
}

TEST_CASE("a job without weights refuses a push that has one") {
  Box box;
  JobOptions job = weighted_job();
  job.weighted = false;
  box.admit(job);
  const CounterChange change(box.engine);
  box.deliver(weighed(box.push(job, 0, 0, 1), 2, job));
  CHECK(change.moved() == std::vector{Counter::kRejectDtype});
  JobOptions other = weighted_job();
  other.job = 1;
  box.admit(other);
  Packet packet = weighed(box.push(other, 0, 0, 1), 2, other);
  packet.header.dtype_scale |= static_cast<uint16_t>(wire::Dtype::kBf16);  // not the chunk's type
  box.deliver(packet);
  CHECK(box.count(Counter::kRejectDtype) == 2);
}

}  // namespace pbox::test::engine_weights_test
