// A chunk of a job whose model is not BSP moves to another box: every update counts once, and
// parked reads stay parked.
#include <catch2/catch.hpp>

#include "pipeline/state/chunk_state.h"
#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test {
namespace {

using pipeline::CommandKind;
using pipeline::Counter;
using wire::PacketType;
using wire::SyncModel;

using Ranks = std::vector<uint32_t>;

std::vector<pipeline::ChunkState> take(SyncJob& job) {
  job.box.engine.execute({.kind = CommandKind::kRemove, .shard = job.shard});
  std::vector<pipeline::ChunkState> states;
  for (const pipeline::Chunk& chunk : job.shard->chunks()) {
    auto state = pipeline::state_of(*job.shard, chunk);
    REQUIRE(state);
    REQUIRE(pipeline::has_valid_clocks(*state, job.options.sync.model, job.options.workers,
                                       chunk.dtype, chunk.elements));
    states.push_back(std::move(*state));
  }
  return states;
}

// Moves the job's chunks from the first box to the second.
void hand_over(SyncJob& from, SyncJob& to) {
  const auto states = take(from);
  to.shard = &to.box.admit(to.options);
  to.box.engine.execute({.kind = CommandKind::kRemove, .shard = to.shard});
  for (const auto& state : states) pipeline::restore(*to.shard, state);
  to.box.engine.execute({.kind = CommandKind::kInstall, .shard = to.shard});
}

constexpr wire::SyncSpec kSsp{.model = SyncModel::kSsp, .staleness = 2};

// Rank 0's read waits for rank 2. Rank 1 has pushed part of a round whose read would wait too.
void begin_to_wait(SyncJob& job) {
  job.begin();
  for (const uint32_t round : {1u, 2u}) {
    for (const uint32_t rank : {0u, 1u}) job.push(rank, round);
  }
  CHECK(job.push(0, 3).empty());
  job.box.deliver(job.box.push(job.options, 1, 1, 1.0f, 3));
}

}  // namespace

TEST_CASE("after a move a parked read stays parked, and pushed fragments are not added again") {
  SyncJob first(kSsp), second(kSsp);
  begin_to_wait(first);
  hand_over(first, second);
  CHECK(second.shard->parked_count == 1);
  CHECK(second.shard->chunks()[0].next_round(0) == 4);
  CHECK(second.shard->chunks()[0].next_round(1) == 3);
  CHECK(second.shard->chunks()[0].next_round(2) == 1);

  const auto status = second.pull(0, 3);
  REQUIRE(status.size() == 1);
  CHECK(status[0].status().received_mask == 7);
  CHECK(status[0].status().missing_workers == 1);
  CHECK(status[0].status().first_missing_rank == 2);
  CHECK(second.pull(1, 3)[0].status().received_mask == 2);
  CHECK(second.push(0, 3).empty());
  CHECK(second.box.count(Counter::kDuplicate) == 3);
  CHECK(second.push(1, 3).empty());
  CHECK(second.box.count(Counter::kDuplicate) == 4);
  CHECK(second.shard->parked_count == 2);

  const auto sent = second.push(2, 1);
  CHECK(served(sent) == Ranks{0, 1, 2});
  for (const Sent& packet : sent) {
    CHECK(packet.value() == kInitialWeight - 7);
    CHECK(packet.header.round == 1);
    CHECK(packet.header.applied() == (rank_of(packet) == 2 ? 2 : 4));
  }
  CHECK(second.shard->parked_count == 0);
}

TEST_CASE("a rank whose reply was pending when the chunk moved asks again, and is answered") {
  SyncJob first({.model = SyncModel::kAsp}), second({.model = SyncModel::kAsp});
  first.begin();
  first.box.push_chunk(first.options, 1, 1.0f, 1);  // its reply never leaves
  hand_over(first, second);
  const auto sent = second.pull(1, 1);
  CHECK(served(sent) == Ranks{1});
  CHECK(sent[0].value() == kInitialWeight - 1);
  CHECK(sent[0].header.applied() == 2);
}

TEST_CASE("after a move no rank waits for a rank that did not come along") {
  SyncJob first(kSsp), second(kSsp);
  begin_to_wait(first);
  const auto states = take(first);
  auto spec = spec_of(second.options);
  spec.sessions[2].present = false;
  auto shard = pipeline::JobShard::create(spec);
  REQUIRE(shard.ok());
  second.shard = shard->get();
  pipeline::restore(*second.shard, states[0]);
  CHECK(second.shard->chunks()[0].open_round() == 3);
  CHECK(second.shard->parked_count == 0);
  second.box.engine.execute({.kind = CommandKind::kInstall, .shard = second.shard});
  const auto sent = second.pull(0, 3);
  CHECK(served(sent) == Ranks{0});
  CHECK(sent[0].header.round == 2);
  second.box.engine.execute({.kind = CommandKind::kRemove, .shard = second.shard});
}

TEST_CASE(
    "after a move the optimizer continues counting by fragment, and weights are as without it") {
  for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16}) {
    const wire::SyncSpec asp{.model = SyncModel::kAsp};
    SyncJob undisturbed(asp, 2), first(asp, 2), second(asp, 2);
    for (SyncJob* job : {&undisturbed, &first, &second}) {
      job->options.dtype = dtype;
      job->options.optimizer = {.kind = optimizer::OptimizerKind::kAdam, .learning_rate = 0.3f};
    }
    for (SyncJob* job : {&undisturbed, &first}) {
      job->begin();
      for (const uint32_t round : {1u, 2u}) job->push(0, round, 0.5f);
      job->box.deliver(job->box.push(job->options, 0, 0, -2.0f, 3));
    }
    hand_over(first, second);
    for (const uint32_t round : {3u, 4u}) {
      const auto expected = undisturbed.push(0, round, -2.0f);
      const auto sent = second.push(0, round, -2.0f);
      REQUIRE(sent.size() == expected.size());
      REQUIRE_FALSE(sent.empty());
      for (size_t index = 0; index < sent.size(); ++index) {
        CHECK(sent[index].payload == expected[index].payload);
      }
    }
  }
}

TEST_CASE("after a move cached reads keep exact labels, and an advance is sent") {
  const wire::SyncSpec essp{.model = SyncModel::kEssp, .staleness = 1};
  SyncJob first(essp, 2), second(essp, 2);
  first.begin();
  first.push(0, 1);
  first.box.deliver(first.box.push(first.options, 0, 2, 1.0f, 2));
  hand_over(first, second);
  second.pull(0, 2);  // so that its address is known
  const auto sent = second.push(1, 1);
  REQUIRE(sent.size() >= 6);
  for (const Sent& packet : sent) {
    if (packet.header.type() != PacketType::kResult || rank_of(packet) != 0) continue;
    CHECK(packet.header.round == 1);
    CHECK(packet.header.applied() == (packet.header.fragment == 2 ? 3 : 2));
  }
}

TEST_CASE("after a move late fragments stay dropped, and fragments in time stay counted") {
  const wire::SyncSpec drop{.model = SyncModel::kDrop, .quorum = 1};
  SyncJob first(drop, 2), second(drop, 2);
  first.begin();
  first.box.deliver(first.box.push(first.options, 1, 1, 1.0f, 1));
  CHECK(served(first.push(0, 1)) == Ranks{0, 1});
  hand_over(first, second);
  second.box.deliver(second.box.push(second.options, 1, 1, 1.0f, 1));
  CHECK(second.box.count(Counter::kDuplicate) == 1);
  for (const uint32_t fragment : {0u, 2u}) {
    second.box.deliver(second.box.push(second.options, 1, fragment, 1.0f, 1));
  }
  CHECK(second.box.count(Counter::kDropped) == 2);
  const auto sent = second.box.take_all();
  CHECK(served(sent) == Ranks{1});
  CHECK(sent[0].value() == kInitialWeight - 1);
  CHECK(sent[1].value() == kInitialWeight - 2);
  for (const Sent& packet : sent) CHECK(packet.header.round == 1);
  CHECK(served(second.push(0, 2)) == Ranks{0});
}

TEST_CASE("clocks that no box can have are rejected") {
  SyncJob job(kSsp);
  begin_to_wait(job);
  const uint32_t elements = job.shard->chunks()[0].elements;
  const pipeline::ChunkState state = take(job)[0];
  const auto fit = [&](const pipeline::ChunkState& one, SyncModel model = SyncModel::kSsp) {
    return pipeline::has_valid_clocks(one, model, 3, wire::Dtype::kF32, elements);
  };
  CHECK(fit(state));
  CHECK_FALSE(fit(state, SyncModel::kBsp));
  CHECK_FALSE(fit(state, SyncModel::kDrop));
  CHECK_FALSE(pipeline::has_valid_clocks(state, SyncModel::kSsp, 4, wire::Dtype::kF32, elements));
  const auto changed = [&](void (*change)(pipeline::ChunkState&)) {
    pipeline::ChunkState other = state;
    change(other);
    return fit(other);
  };
  CHECK_FALSE(changed([](auto& one) { one.clocks.pop_back(); }));
  CHECK_FALSE(changed([](auto& one) { one.clocks.clear(); }));
  CHECK_FALSE(changed([](auto& one) { one.fragment_bytes = 0; }));
  CHECK_FALSE(changed([](auto& one) { one.fragment_bytes = 8; }));  // more than a mask has bits
  CHECK_FALSE(changed([](auto& one) { one.clocks[0] = 0; }));       // before the weights
  CHECK_FALSE(changed([](auto& one) { one.clocks[1] = 8; }));       // a fragment too many
  CHECK_FALSE(changed([](auto& one) { one.clocks[1] = 7; }));       // its round would be over
  CHECK_FALSE(changed([](auto& one) { one.clocks[2] = 2; }));
}

}  // namespace pbox::test
