// Models whose pushes are applied on arrival and answered with fresh weights.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "pipeline/optimizer/reference.h"
#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test::engine_sync_test {

using pipeline::Counter;
using wire::PacketType;
using wire::Release;
using wire::SyncModel;

namespace {

using Ranks = std::vector<uint32_t>;

constexpr wire::SyncSpec ssp(uint32_t staleness, Release release = Release::kSoft) {
  return {.model = SyncModel::kSsp, .staleness = staleness, .release = release};
}

}  // namespace

TEST_CASE("the initial weights are a barrier in every model, and their label says one round") {
  for (const auto model :
       {SyncModel::kAsp, SyncModel::kSsp, SyncModel::kEssp, SyncModel::kPssp, SyncModel::kDpssp}) {
    SyncJob job({.model = model, .staleness = 2});
    job.shard = &job.box.admit(job.options);
    job.box.push_chunk(job.options, 2, 7.0f);
    job.box.push_chunk(job.options, 0, kInitialWeight);
    CHECK(job.push(0, 1).empty());
    CHECK(job.box.count(Counter::kRejectRound) == 3);
    const auto sent = job.push(1, 0, 9.0f);
    REQUIRE(sent.size() == 9);
    for (const Sent& packet : sent) {
      CHECK(packet.value() == kInitialWeight);
      CHECK(packet.header.round == 0);
      CHECK(packet.header.applied() == 1);
    }
  }
}

TEST_CASE("ASP answers each rank at once, with all that was pushed until then") {
  SyncJob job({.model = SyncModel::kAsp});
  CHECK(job.begin().size() == 9);
  for (uint32_t round = 1; round <= 20; ++round) {
    const auto sent = job.push(1, round);
    CHECK(served(sent) == Ranks{1});
    for (const Sent& packet : sent) {
      CHECK(packet.value() == kInitialWeight - static_cast<float>(round));
      CHECK(packet.header.round == 0);  // the others have pushed nothing
      CHECK(packet.header.applied() == round + 1);
    }
  }
  const auto sent = job.push(0, 1);
  CHECK(served(sent) == Ranks{0});
  CHECK(sent[0].value() == kInitialWeight - 21);
  CHECK(sent[0].header.applied() == 2);
  CHECK(job.push(2, 1)[0].header.round == 1);  // V has advanced to 2
  CHECK(job.shard->chunks()[0].open_round() == 2);
  CHECK(job.shard->pulls.get() == 22);
  CHECK(job.shard->pulls_delayed.get() == 0);
  CHECK(job.shard->lead_rounds.get() == 20);
}

TEST_CASE(
    "SSP parks the fastest rank at the staleness bound, and releases it one round at a time") {
  SyncJob job(ssp(2));
  job.begin();
  for (const uint32_t round : {1u, 2u}) {
    CHECK(served(job.push(0, round)) == Ranks{0});
    CHECK(served(job.push(1, round)) == Ranks{1});
  }
  CHECK(job.push(0, 3).empty());  // i = 3, V = 1
  CHECK(job.shard->pulls_delayed.get() == 1);
  const auto status = job.pull(0, 3);
  REQUIRE(status.size() == 1);
  CHECK(status[0].header.type() == PacketType::kStatus);
  CHECK(status[0].status().received_mask == 7);
  CHECK(status[0].status().missing_workers == 1);
  CHECK(status[0].status().first_missing_rank == 2);
  CHECK(status[0].status().finished_round == 1);

  const auto sent = job.push(2, 1);
  CHECK(served(sent) == Ranks{0, 2});
  for (const Sent& packet : sent) {
    CHECK(packet.value() == kInitialWeight - 6);  // the value now, not when the read was parked
    CHECK(packet.header.round == 1);
    CHECK(packet.header.applied() == (rank_of(packet) == 0 ? 4 : 2));
  }
  CHECK(job.push(0, 4).empty());
  CHECK(job.shard->pulls_delayed.get() == 2);
}

TEST_CASE("lazy release holds a rank until all have pushed its own round") {
  SyncJob job(ssp(3, Release::kLazy), 2);
  job.begin();
  for (const uint32_t round : {1u, 2u, 3u}) CHECK(served(job.push(0, round)) == Ranks{0});
  CHECK(job.push(0, 4).empty());
  for (const uint32_t round : {1u, 2u, 3u}) CHECK(served(job.push(1, round)) == Ranks{1});
  const auto sent = job.push(1, 4);
  CHECK(served(sent) == Ranks{0, 1});
  CHECK(sent[0].header.round == 4);
  CHECK(job.shard->pulls_delayed.get() == 1);
}

TEST_CASE("PSSP delays only the fastest, with its probability, alike on all chunks") {
  SyncJob job({.model = SyncModel::kPssp, .staleness = 1, .probability = 0.25f}, 2);
  job.options.chunks = 2;
  job.shard = &job.box.admit(job.options);
  for (const uint32_t chunk : {0u, 1u}) job.box.run_round(job.options, 0, chunk);
  uint32_t delayed = 0;
  constexpr uint32_t kRounds = 2000;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    size_t answers[2] = {};
    for (const uint32_t chunk : {0u, 1u}) {
      job.box.push_chunk(job.options, 0, 0, round, chunk);
      answers[chunk] = job.box.take_all().size();
    }
    REQUIRE(answers[0] == answers[1]);
    delayed += answers[0] == 0 ? 1 : 0;
    if (answers[0] > 0) continue;
    for (const uint32_t chunk : {0u, 1u}) {  // the slowest advances, and is never delayed
      const auto next = job.shard->chunks()[chunk].open_round();
      job.box.push_chunk(job.options, 1, 0, next, chunk);
      REQUIRE(job.box.take_all().size() == 6);
    }
  }
  CHECK(std::abs(static_cast<double>(delayed) / kRounds - 0.25) < 0.03);
}

TEST_CASE("PSSP delays the same iterations of a rank in all parts of a job, on whichever box") {
  constexpr uint32_t kRounds = 500;
  std::vector<std::vector<bool>> delayed;
  for (const uint32_t part : {0u, 1u, 2u}) {  // each part has an epoch of its own
    SyncJob job({.model = SyncModel::kPssp, .staleness = 1, .probability = 0.25f}, 2);
    job.options.job = part;
    job.options.name = "bert";
    job.begin();
    std::vector<bool>& of_part = delayed.emplace_back();
    for (uint32_t round = 1; round <= kRounds; ++round) {
      of_part.push_back(job.push(0, round, 0).empty());
      if (of_part.back()) job.push(1, job.shard->chunks()[0].open_round(), 0);
    }
  }
  CHECK(delayed[1] == delayed[0]);
  CHECK(delayed[2] == delayed[0]);
  CHECK(std::count(delayed[0].begin(), delayed[0].end(), true) > kRounds / 8);
}

TEST_CASE("a push claims each fragment once, and only in its own round") {
  SyncJob job({.model = SyncModel::kAsp});
  job.begin();
  const Packet packet = job.box.push(job.options, 0, 1, 1.0f, 1);
  job.box.deliver(packet);
  job.box.deliver(packet);
  CHECK(job.box.count(Counter::kDuplicate) == 1);
  job.box.deliver(job.box.push(job.options, 0, 1, 1.0f, 2));
  CHECK(job.box.count(Counter::kRejectRound) == 1);
  const auto status = job.pull(0, 1);
  REQUIRE(status.size() == 1);
  CHECK(status[0].status().received_mask == 2);
  for (const uint32_t fragment : {0u, 2u}) {
    job.box.deliver(job.box.push(job.options, 0, fragment, 1.0f, 1));
  }
  for (const Sent& sent : job.box.take_all()) CHECK(sent.value() == kInitialWeight - 1);
  job.box.deliver(job.box.push(job.options, 0, 0, 500.0f, 1));
  job.box.deliver(job.box.push(job.options, 0, 0, 500.0f, 0));
  CHECK(job.box.count(Counter::kDuplicate) == 3);
  CHECK(job.box.take_all().empty());
  CHECK(job.pull(0, 1, 0)[0].value() == kInitialWeight - 1);

  Packet state = job.box.push(job.options, 0, 0, 1.0f, 2);
  state.header.set_type(PacketType::kState);
  const CounterChange change(job.box.engine);
  job.box.deliver(state);
  CHECK(change.moved() == std::vector<Counter>{Counter::kRejectType});
}

TEST_CASE("a rank that lost its answer gets the fragments it lacks, as they are now") {
  SyncJob job({.model = SyncModel::kAsp});
  job.begin();
  CHECK(job.push(0, 1).size() == 3);
  job.push(1, 1);
  const auto again = job.pull(0, 1, 0b101);
  REQUIRE(again.size() == 1);
  CHECK(again[0].header.fragment == 1);
  CHECK(again[0].header.applied() == 2);
  CHECK(again[0].value() == kInitialWeight - 2);
  CHECK((again[0].header.flags & wire::flag::kRetransmission) != 0);
  CHECK(job.pull(0, 1).size() == 3);
  CHECK(job.pull(0, 0)[0].header.type() == PacketType::kStatus);  // finished long ago
  job.pull(0, 3);
  CHECK(job.box.count(Counter::kRejectRound) == 1);
  // The answers are bounded: repeated PULLs cause no flood.
  size_t sent = 0;
  for (uint32_t times = 0; times < 1000; ++times) sent += job.pull(0, 1).size();
  CHECK(sent < 1000 + 4 * 64 + 8);
}

TEST_CASE("no late answer releases a parked read") {
  SyncJob job(ssp(1), 2);
  job.begin();
  CHECK(job.push(0, 1).size() == 3);
  // The rank asks again, for all fragments and for some. Before they leave, it has pushed the next
  // round, and its read is parked.
  job.box.deliver(job.box.pull(job.options, 0, 1, 0b001));
  job.box.deliver(job.box.pull(job.options, 0, 1));
  const auto sent = job.push(0, 2);
  CHECK(job.shard->parked_count == 1);
  for (const Sent& packet : sent) CHECK(packet.header.applied() == 2);  // does not answer round 2
  // An answer that a full port has held back does not release the read either.
  job.push(1, 1);
  job.push(1, 2);
  job.box.push_chunk(job.options, 0, 1, 3);
  CHECK(job.box.engine.to_send().size() == 3);
  job.box.engine.sent(1);
  job.box.push_chunk(job.options, 0, 1, 4);
  CHECK(job.shard->parked_count == 1);
  const auto late = job.box.take_all();
  REQUIRE(late.size() == 2);
  for (const Sent& packet : late) CHECK(packet.header.applied() == 4);
}

TEST_CASE("a push from a rank whose own read is parked is rejected") {
  SyncJob job(ssp(1), 2);
  job.begin();
  job.push(0, 1);
  job.push(0, 2);
  const CounterChange change(job.box.engine);
  CHECK(job.push(0, 3).empty());
  CHECK(change.moved() == std::vector<Counter>{Counter::kRejectRound});
  CHECK(job.shard->lead_rounds.get() == 2);
  CHECK(job.push(1, 1).size() == 6);
  job.push(0, 3);
  CHECK(job.box.count(Counter::kRejectRound) == 3);
}

TEST_CASE("packets that a full port refused carry the weights as they are when they leave") {
  SyncJob job({.model = SyncModel::kAsp}, 2);
  job.begin();
  job.box.push_chunk(job.options, 0, 1, 1);
  CHECK(job.box.engine.to_send().size() == 3);
  job.box.engine.sent(1);
  job.box.push_chunk(job.options, 1, 1, 1);  // meanwhile
  const auto sent = job.box.take_all();      // checks the tags
  REQUIRE(sent.size() == 5);
  for (const Sent& packet : sent) {
    CHECK(packet.value() == kInitialWeight - 2);
    CHECK(packet.header.round == 1);
    CHECK(packet.header.applied() == 2);
  }
}

TEST_CASE("an excluded rank holds no other back") {
  SyncJob job(ssp(0));
  job.begin();
  job.push(0, 1);
  job.push(1, 1);
  CHECK(job.shard->parked_count == 2);
  job.box.deliver(job.box.push(job.options, 2, 0, 1.0f, 1));  // one fragment
  job.exclude(2);
  const auto sent = job.box.take_all();
  CHECK(served(sent) == Ranks{0, 1});
  CHECK(sent[0].value() == kInitialWeight - 3);
  CHECK(sent[1].value() == kInitialWeight - 2);
  CHECK(job.shard->chunks()[0].open_round() == 2);
  CHECK(job.push(0, 2).empty());
  job.exclude(0);
  CHECK(job.shard->parked_count == 0);
  CHECK(served(job.push(1, 2)) == Ranks{1});
}

TEST_CASE("the time of parked reads is counted") {
  SyncJob job(ssp(0));
  job.begin();
  job.push(0, 1);
  job.box.now_ns += 5'000'000;
  job.push(1, 1);
  job.box.now_ns += 1'000'000;
  job.push(2, 1);
  CHECK(job.shard->parked_ns.get() == 7'000'000);
  CHECK(job.shard->pulls_delayed.get() == 2);
  CHECK(job.shard->parked_count == 0);
}

TEST_CASE("each optimizer steps a fragment independently, once per push") {
  using optimizer::OptimizerKind;
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kNesterov,
                          OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    for (const auto reduction : {pipeline::Reduction::kSum, pipeline::Reduction::kMean}) {
      SyncJob job({.model = SyncModel::kAsp}, 2);
      job.options.reduction = reduction;
      job.options.optimizer = {.kind = kind, .learning_rate = 0.1f, .momentum = 0.9f};
      job.begin();
      // The second rank pushes its last fragment late.
      const std::vector<std::pair<uint32_t, uint32_t>> pushes = {
          {0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}};
      std::vector<float> weight(3, kInitialWeight), state(6, 0);
      std::vector<uint64_t> steps(3, 0);
      for (const auto& [rank, fragment] : pushes) {
        const float gradient = 1.0f + static_cast<float>(rank + fragment);
        job.box.deliver(job.box.push(job.options, rank, fragment, gradient, 1));
        const auto parameters = optimizer::step_parameters(
            job.options.optimizer, 1, 0, reduction == pipeline::Reduction::kMean ? 0.5f : 1.0f,
            ++steps[fragment]);
        optimizer::reference::step(kind,
                                   optimizer::step_coefficients(job.options.optimizer, parameters),
                                   &weight[fragment], &state[2 * fragment], &gradient, 1);
      }
      const auto sent = job.box.take_all();
      REQUIRE(sent.size() == 3);
      for (uint32_t fragment = 0; fragment < 3; ++fragment) {
        for (const size_t index : {0u, 255u}) {
          CHECK(sent[fragment].value(index) == weight[fragment]);
        }
      }
    }
  }
}

TEST_CASE("weights of a narrow type are stepped in f32 and rounded when they leave") {
  for (const auto dtype : {wire::Dtype::kF16, wire::Dtype::kBf16}) {
    SyncJob job({.model = SyncModel::kAsp}, 1);
    job.options.dtype = dtype;
    job.options.optimizer.learning_rate = 1.0f / 1024;
    job.begin();
    std::vector<Sent> sent;
    for (uint32_t round = 1; round <= 1024; ++round) sent = job.push(0, round);
    REQUIRE_FALSE(sent.empty());
    float value = 0;
    reduce::store(dtype, &value, sent[0].payload.data(), 1);
    CHECK(value == kInitialWeight - 1);  // one step is less than half a unit in the last place
  }
}

TEST_CASE("rounds of a model without barriers continue across the wrap of 32 bits") {
  SyncJob job(ssp(1), 1);
  job.begin();
  auto& chunk = job.shard->chunks()[0];
  chunk.sync->progress.begin({chunk.sync->next, 1}, 0xfffffffe);
  chunk.rounds_finished = chunk.fanned_out_rounds = 0xfffffffe;
  for (const uint32_t round : {0xfffffffeu, 0xffffffffu, 0u, 1u}) {
    const auto sent = job.push(0, round);
    CHECK(served(sent) == Ranks{0});
    CHECK(sent[0].header.round == round);
    CHECK(sent[0].header.applied() == round + 1);
    const CounterChange change(job.box.engine);
    job.box.deliver(job.box.push(job.options, 0, 0, 1, round));
    CHECK(change.moved() == std::vector<Counter>{Counter::kDuplicate});
  }
}

}  // namespace pbox::test::engine_sync_test
