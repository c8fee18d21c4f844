// Replicated chunks of model drop: ranks may still push, and lack the last result, while a round
// waits for the backup box.
#include "pipeline/state/chunk_state.h"
#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test::replicated_chunk_drop_test {
namespace {

using pipeline::ChunkState;
using pipeline::Counter;
using pipeline::JobShard;
using Ranks = std::vector<uint32_t>;

struct CopiedJob : SyncJob {
  explicit CopiedJob(wire::Dtype dtype = wire::Dtype::kF32, bool counts_late = false)
      : SyncJob({.model = wire::SyncModel::kDrop, .quorum = 1, .counts_late = counts_late}, 2) {
    options.replicated = true;
    options.dtype = dtype;
    begin();
    copy();
  }

  // Acts as the relay and the backup box: takes the newest block, and gives it back.
  ChunkState take_block() {
    pipeline::Uplink::Sum sum;
    REQUIRE(shard->uplinks[0]->next(sum));
    const auto layout = pipeline::block_layout_of(*shard, options.chunk_elements);
    auto state = pipeline::decode_block({sum.values, layout.floats}, sum.chunk);
    REQUIRE(state);
    shard->uplinks[0]->give_back(sum.chunk);
    return *state;
  }
  // Makes the copy. Returns the packets that leave.
  std::vector<Sent> copy() {
    copied = take_block();
    CHECK(box.engine.finish_waiting(box.now_ns));
    return box.take_all();
  }

  ChunkState copied;
};

// Another box continues the job from the copy.
struct Successor : SyncJob {
  explicit Successor(const CopiedJob& lost) : SyncJob(lost.options.sync, lost.options.workers) {
    options = lost.options;
    options.replicated = false;
    shard = &box.admit(options);
    box.engine.execute({.kind = pipeline::CommandKind::kRemove, .shard = shard});
    pipeline::restore(*shard, lost.copied);
    box.engine.execute({.kind = pipeline::CommandKind::kInstall, .shard = shard});
  }
};

}  // namespace

TEST_CASE("model drop: a chunk whose round waits for its copy takes no push and makes no reply") {
  for (const auto dtype : {wire::Dtype::kF32, wire::Dtype::kBf16}) {
    CopiedJob job(dtype);
    CHECK(job.push(0, 1).empty());  // the quorum is there
    const uint64_t refused = job.box.count(Counter::kRejectRound);
    CHECK(job.push(1, 1).empty());
    const uint32_t fragments = job.shard->chunks()[0].fragment_count;
    CHECK(job.box.count(Counter::kRejectRound) == refused + fragments);
    CHECK(job.shard->chunks()[0].open_round() == 1);
    for (const uint32_t round : {0u, 1u}) {
      const auto said = job.pull(1 - round, round);
      REQUIRE(said.size() == 1);
      CHECK(said[0].header.type() == wire::PacketType::kStatus);
    }
    const auto sent = job.copy();
    REQUIRE(sent.size() == fragments);
    for (const Sent& packet : sent) {
      CHECK(rank_of(packet) == 0);
      CHECK(packet.header.round == 1);
      if (dtype == wire::Dtype::kF32) CHECK(packet.value() == kInitialWeight - 1);
    }
    // The push that was refused is late now.
    const auto late = job.push(1, 1);
    REQUIRE(late.size() == fragments);
    CHECK(late[0].payload == sent[0].payload);
  }
}

TEST_CASE("model drop: a copy has what each rank has pushed, as its box does once the round ends") {
  CopiedJob job;
  job.box.deliver(job.box.push(job.options, 1, 2, 5.0f, 1));  // a part of its push
  CHECK(job.push(0, 1).empty());
  const auto in_flight = pipeline::state_of(*job.shard, job.shard->chunks()[0]);
  job.copy();
  const auto after = pipeline::state_of(*job.shard, job.shard->chunks()[0]);
  CHECK(job.copied.clocks == std::vector<uint64_t>{1, 7, 7, 1, 4, 4});
  CHECK(job.copied.contributors == std::vector<uint16_t>{1, 1, 2});
  CHECK(job.copied.fragment_bytes == job.options.fragment_bytes);
  for (const auto& state : {in_flight, after}) {
    REQUIRE(state);
    CHECK(state->rounds_finished == job.copied.rounds_finished);
    CHECK(state->steps == job.copied.steps);
    CHECK(state->values == job.copied.values);
    CHECK(state->clocks == job.copied.clocks);
    CHECK(state->contributors == job.copied.contributors);
  }
}

TEST_CASE("model drop: a part that continues from a copy counts each push once") {
  for (const bool counts_late : {false, true}) {
    CopiedJob lost(wire::Dtype::kF32, counts_late);
    lost.push(0, 1);
    lost.copy();
    // The copy does not contain these pushes, and no rank has received an answer to them.
    lost.push(0, 2);
    lost.box.deliver(lost.box.push(lost.options, 1, 0, 1.0f, 1));

    Successor next(lost);
    const auto last = next.pull(0, 1);
    CHECK(served(last) == Ranks{0});
    CHECK(last[0].value() == kInitialWeight - 1);
    // Rank 1 pushes again, too late for round 1.
    const auto late = next.push(1, 1);
    CHECK(served(late) == Ranks{1});
    CHECK(late[0].value() == kInitialWeight - 1);
    const auto sent = next.push(0, 2);
    CHECK(served(sent) == Ranks{0});
    CHECK(sent[0].value() == kInitialWeight - (counts_late ? 3 : 2));
  }
}

TEST_CASE("model drop: a rank that is excluded or comes back while the copy is made") {
  CopiedJob job;
  job.push(0, 1);
  job.exclude(1);
  CHECK(job.box.take_all().empty());  // the round does not end twice
  CHECK(job.shard->chunks()[0].open_round() == 1);
  CHECK(served(job.copy()) == Ranks{0});
  CHECK(job.shard->chunks()[0].open_round() == 2);
  CHECK(job.push(0, 2, 1).empty());
  CHECK(job.copy().size() == 3);
  CHECK(job.copied.values[0] == kInitialWeight - 2);
}

}  // namespace pbox::test::replicated_chunk_drop_test
