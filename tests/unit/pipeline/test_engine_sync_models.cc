// Chunks of one job that have different consistency models, and models that change while the job
// runs.
#include <catch2/catch.hpp>

#include "pipeline/sync/rules.h"
#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test::engine_sync_models_test {

using pipeline::CommandKind;
using pipeline::Counter;
using wire::Release;
using wire::SyncModel;
using wire::SyncSpec;

namespace {

using Ranks = std::vector<uint32_t>;

constexpr SyncSpec kBsp{};
constexpr SyncSpec kAsp{.model = SyncModel::kAsp};
constexpr SyncSpec ssp(uint32_t staleness, Release release = Release::kSoft) {
  return {.model = SyncModel::kSsp, .staleness = staleness, .release = release};
}
constexpr SyncSpec drop(uint32_t quorum) {
  return {.model = SyncModel::kDrop, .quorum = quorum};
}

// A job whose chunk 0 has the first model, chunk 1 the second, and so on.
struct MixedJob : SyncJob {
  explicit MixedJob(const std::vector<SyncSpec>& models, const SyncSpec& sync = kBsp)
      : SyncJob(sync) {
    options.models = models;
    options.chunks = static_cast<uint32_t>(models.size());
    options.relaxed_model = SyncModel::kSsp;
  }

  std::vector<Sent> begin() {
    shard = &box.admit(options);
    for (uint32_t chunk = 0; chunk < options.chunks; ++chunk) {
      for (uint32_t rank = 0; rank < options.workers; ++rank) {
        box.push_chunk(options, rank, kInitialWeight, 0, chunk);
      }
    }
    return box.take_all();
  }
  std::vector<Sent> push(uint32_t rank, uint32_t round, uint32_t chunk) {
    box.push_chunk(options, rank, 1, round, chunk);
    return box.take_all();
  }
};

// Changes the models of the job's chunks. Returns the packets that leave because of it.
std::vector<Sent> change(SyncJob& job, const std::vector<SyncSpec>& rules) {
  job.box.engine.execute({.kind = CommandKind::kSetSync, .shard = job.shard, .rules = rules});
  return job.box.take_all();
}

}  // namespace

TEST_CASE("beside a chunk whose ranks run ahead, a bsp chunk waits for all and steps once") {
  MixedJob job({kBsp, ssp(2)});
  CHECK(job.begin().size() == 2 * 9);
  CHECK(served(job.push(0, 1, 1)) == Ranks{0});
  CHECK(served(job.push(0, 2, 1)) == Ranks{0});
  CHECK(job.push(0, 1, 0).empty());
  CHECK(job.push(1, 1, 0).empty());
  const auto sent = job.push(2, 1, 0);
  CHECK(served(sent) == Ranks{0, 1, 2});
  for (const Sent& packet : sent) {
    CHECK(packet.header.chunk == 0);
    CHECK(packet.header.round == 1);
    CHECK(packet.value() == kInitialWeight - 3);
  }
  CHECK(job.push(0, 2, 0).empty());
  CHECK(job.shard->pulls.get() == 2);  // reads of the bsp chunk do not count
}

TEST_CASE("a rank that missed the result of a bsp chunk in a relaxed job is sent it again") {
  MixedJob job({kBsp, kAsp});
  job.begin();
  for (uint32_t rank = 0; rank < 3; ++rank) job.push(rank, 1, 0);
  job.box.deliver(job.box.pull(job.options, 1, 1, 0, 0));
  const auto sent = job.box.take_all();
  CHECK(served(sent) == Ranks{1});
  CHECK(sent[0].header.round == 1);
  job.push(1, 1, 0);  // the same push again
  CHECK(job.box.count(Counter::kDuplicate) == 3);
  CHECK(job.box.count(Counter::kDropped) == 0);
}

TEST_CASE("a rank that asks for an old result of a bsp chunk in a relaxed job is told the round") {
  MixedJob job({kBsp, kAsp});
  job.begin();
  for (const uint32_t rank : {0u, 1u, 2u}) job.push(rank, 1, 0);
  const auto status = job.pull(1, 0);
  REQUIRE(status.size() == 1);
  CHECK(status[0].header.type() == wire::PacketType::kStatus);
  CHECK(status[0].status().finished_round == 2);
  CHECK(served(job.pull(1, 1)) == Ranks{1});
}

TEST_CASE("an excluded rank ends the round of a bsp chunk, and the wait of the others") {
  MixedJob job({kBsp, ssp(1)});
  job.options.partial = true;
  job.begin();
  job.push(0, 1, 0);
  job.push(1, 1, 0);
  CHECK(job.push(0, 1, 1).empty() == false);
  CHECK(job.push(0, 2, 1).empty());
  job.push(1, 1, 1);
  job.exclude(2);
  const auto sent = job.box.take_all();
  REQUIRE(sent.size() == 9);  // both chunks: the sum for two ranks, and the parked read of rank 0
  uint32_t sums = 0;
  for (const Sent& packet : sent) {
    if (packet.header.chunk != 0) continue;
    ++sums;
    CHECK(packet.header.contributors() == 2);
    CHECK(packet.value() == kInitialWeight - 2);
  }
  CHECK(sums == 6);
}

TEST_CASE("a tighter model holds for reads asked for after the change, and a looser one at once") {
  SyncJob job(ssp(3));
  job.begin();
  CHECK(served(job.push(0, 1)) == Ranks{0});
  CHECK(served(job.push(0, 2)) == Ranks{0});
  CHECK(change(job, {ssp(1)}).empty());
  CHECK(job.push(0, 3).empty());  // two ahead of the others
  CHECK(job.shard->parked_count == 1);
  const auto sent = change(job, {ssp(5)});
  CHECK(served(sent) == Ranks{0});
  CHECK(sent[0].header.applied() == 4);  // the label says that round 3 is in
  CHECK(sent[0].value() == kInitialWeight - 3);
  CHECK(job.shard->parked_count == 0);
  CHECK(served(job.push(0, 4)) == Ranks{0});
}

TEST_CASE(
    "a model that is set again changes nothing, also if a read would not be parked any more") {
  constexpr SyncSpec kPssp{.model = SyncModel::kPssp, .staleness = 0, .probability = 1};
  SyncJob job(kAsp);
  job.begin();
  CHECK(served(job.push(1, 1)) == Ranks{1});
  change(job, {kPssp});
  CHECK(job.push(0, 1).empty());  // as fast as any
  CHECK(job.push(1, 2).empty());  // now rank 1 is faster
  CHECK(change(job, {kPssp}).empty());
  CHECK(job.shard->parked_count == 2);
}

TEST_CASE("a parked read stays parked if the new model would park it too, until its own release") {
  SyncJob job(ssp(1));
  job.begin();
  job.push(0, 1);
  CHECK(job.push(0, 2).empty());
  CHECK(change(job, {ssp(1, Release::kLazy)}).empty());
  CHECK(job.shard->parked_count == 1);
  job.push(1, 1);
  CHECK(served(job.push(2, 1)) == Ranks{2});  // with soft release rank 0 would go on here
  CHECK(job.shard->parked_count == 1);
  job.push(1, 2);
  CHECK(served(job.push(2, 2)).size() == 2);
  CHECK(job.shard->parked_count == 0);
}

TEST_CASE("models that apply pushes on arrival may follow each other at any time") {
  SyncJob job(kAsp);
  const SyncSpec pssp{.model = SyncModel::kPssp, .staleness = 1, .probability = 1};
  job.begin();
  for (uint32_t round = 1; round <= 4; ++round) CHECK(served(job.push(1, round)) == Ranks{1});
  CHECK(change(job, {pssp}).empty());
  CHECK(job.push(1, 5).empty());
  CHECK(served(job.push(0, 1)) == Ranks{0});  // not the fastest
  CHECK(served(change(job, {kAsp})) == Ranks{1});
}

TEST_CASE("a change before the initial weights are there holds from the first read on") {
  SyncJob job(ssp(0));
  job.shard = &job.box.admit(job.options);
  change(job, {ssp(2)});
  for (uint32_t rank = 0; rank < 3; ++rank) job.box.push_chunk(job.options, rank, kInitialWeight);
  job.box.take_all();
  CHECK(served(job.push(0, 1)) == Ranks{0});
  CHECK(served(job.push(0, 2)) == Ranks{0});
}

TEST_CASE("a lower quorum closes the round that has it already, and a higher one waits for more") {
  SyncJob job(drop(3));
  job.begin();
  CHECK(job.push(0, 1).empty());
  CHECK(job.push(1, 1).empty());
  const auto sent = change(job, {drop(2)});
  CHECK(served(sent) == Ranks{0, 1});
  CHECK(sent[0].value() == kInitialWeight - 2);
  change(job, {drop(3)});
  CHECK(job.push(0, 2).empty());
  CHECK(job.push(1, 2).empty());
  CHECK(served(job.push(2, 2)) == Ranks{0, 1, 2});
}

TEST_CASE("a push is as significant as its gradient is large beside those before it") {
  sync::Significance pushes;
  sync::PushSize push{.gradient_squares = 4, .weight_squares = 100};
  pushes.complete(push);
  CHECK(push.significance == 1);  // the first
  CHECK(push.gradient_squares == 0);
  push = {.gradient_squares = 1, .weight_squares = 100};
  pushes.complete(push);
  CHECK(push.significance == 0.5f);
  push = {.gradient_squares = 16, .weight_squares = 100};
  pushes.complete(push);
  CHECK(push.significance == 1);
  push = {.gradient_squares = 0, .weight_squares = 100};
  pushes.complete(push);
  CHECK(push.significance == 0);
  push = {.gradient_squares = 1, .weight_squares = 0};
  pushes.complete(push);
  CHECK(push.significance == 1);  // no number
}

TEST_CASE("by gradient, the fastest rank waits the less probably the smaller its gradient is") {
  const auto spec = [](bool by_gradient) {
    return SyncSpec{.model = SyncModel::kDpssp, .staleness = 1, .by_gradient = by_gradient};
  };
  uint32_t constant = 0, small = 0, large = 0;
  for (uint64_t round = 10; round < 2010; ++round) {
    sync::Reader reader{.seed = 7,
                        .rank = 1,
                        .round = round,
                        .slowest = round - 3,
                        .fastest = round,
                        .significance = 0.25f};
    constant += sync::blocks(spec(false), reader);
    small += sync::blocks(spec(true), reader);
    reader.significance = 1;
    large += sync::blocks(spec(true), reader);
  }
  CHECK(large == constant);
  CHECK(small > constant / 5);
  CHECK(small < constant / 3);
}

TEST_CASE("the gradient's significance is measured where it is applied, over the whole push") {
  SyncJob job({.model = SyncModel::kDpssp, .staleness = 64, .by_gradient = true});
  job.begin();
  job.push(0, 1, 1);
  CHECK(job.shard->chunks()[0].sync->sizes[0].significance == 1);
  job.push(1, 1, 0.5f);
  const float half = job.shard->chunks()[0].sync->sizes[1].significance;
  CHECK(half > 0.45f);
  CHECK(half < 0.55f);  // the weights have moved by one in a hundred
}

TEST_CASE("which models may follow which is decided by the state that they need") {
  const SyncSpec essp{.model = SyncModel::kEssp, .staleness = 2, .reads = wire::Reads::kCached};
  const SyncSpec cached{.model = SyncModel::kSsp, .staleness = 2, .reads = wire::Reads::kCached};
  const std::vector<SyncSpec> fresh = {
      kAsp, ssp(1), ssp(4, Release::kLazy), {.model = SyncModel::kDpssp, .probability = 0.5f}};
  for (const SyncSpec& one : fresh) {
    for (const SyncSpec& other : fresh) CHECK(sync::may_follow(one, other));
    for (const SyncSpec& other : {kBsp, drop(1), essp, cached}) {
      CHECK_FALSE(sync::may_follow(one, other));
      CHECK_FALSE(sync::may_follow(other, one));
    }
  }
  for (const SyncSpec& one : {kBsp, drop(1), essp, cached}) CHECK(sync::may_follow(one, one));
  CHECK(sync::may_follow(drop(1), drop(3)));
  CHECK_FALSE(sync::may_follow(kBsp, drop(1)));
  SyncSpec looser = cached;
  looser.staleness = 3;
  CHECK_FALSE(sync::may_follow(cached, looser));
}

}  // namespace pbox::test::engine_sync_models_test
