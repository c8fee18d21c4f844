// Model drop with a grace: rounds that have their quorum and wait for more ranks.
#include <catch2/catch.hpp>

#include "base/clock.h"
#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test::engine_sync_grace_test {
namespace {

using Ranks = std::vector<uint32_t>;

constexpr uint64_t kMs = kNanosPerMilli;
constexpr wire::SyncSpec kSpec{.model = wire::SyncModel::kDrop, .quorum = 1, .grace_ms = 10};

uint32_t open_round(const SyncJob& job) {
  return job.shard->chunks()[0].open_round();
}

// Advances the clock of the box. Returns whether a round has ended.
bool pass(SyncJob& job, uint64_t ns) {
  job.box.now_ns += ns;
  return job.box.engine.finish_waiting(job.box.now_ns);
}

// Begins a session of the rank, whether it was excluded or not.
void admit_again(SyncJob& job, uint32_t rank) {
  job.box.engine.execute({.kind = pipeline::CommandKind::kAdmit,
                          .shard = job.shard,
                          .credit_bytes = 1 << 20,
                          .rank = rank,
                          .spi = job.shard->sessions()[rank].spi,
                          .generation = 20});
}

}  // namespace

TEST_CASE("a round that has its quorum takes the ranks that come within the grace") {
  SyncJob job(kSpec);
  job.begin();
  CHECK(job.push(0, 1, 1).empty());
  CHECK_FALSE(pass(job, 9 * kMs));
  CHECK(job.push(1, 1, 2).empty());  // the grace counts from the quorum, not from the last arrival
  CHECK(job.box.engine.due_ns() == job.box.now_ns + kMs);
  CHECK(pass(job, kMs));
  const auto sent = job.box.take_all();
  CHECK(served(sent) == Ranks{0, 1});
  CHECK(sent[0].value() == kInitialWeight - 3);
  CHECK(sent[0].header.contributors() == 2);
  CHECK(job.shard->rounds_cut.get() == 1);
  CHECK_FALSE(pass(job, 100 * kMs));
  CHECK(job.box.engine.due_ns() == UINT64_MAX);
  // The third rank is late.
  CHECK(served(job.push(2, 1, 9)) == Ranks{2});
  CHECK(job.shard->sessions()[2].dropped.get() == 3);
  CHECK(job.shard->sessions()[2].missed.get() == 1);
  CHECK(job.shard->sessions()[1].missed.get() == 0);
  CHECK(open_round(job) == 2);
}

TEST_CASE("a round that all ranks have pushed ends at once") {
  SyncJob job(kSpec);
  job.begin();
  for (const uint32_t rank : {2u, 0u}) CHECK(job.push(rank, 1).empty());
  CHECK(served(job.push(1, 1)) == Ranks{0, 1, 2});
  CHECK(job.shard->rounds_cut.get() == 0);
  CHECK(job.push(0, 2).empty());
  CHECK_FALSE(pass(job, 9 * kMs));  // the next round has a grace of its own
  CHECK(pass(job, kMs));
}

TEST_CASE("a push that comes when the grace is over already ends the round") {
  SyncJob job(kSpec);
  job.begin();
  CHECK(job.push(0, 1).empty());
  job.box.now_ns += 20 * kMs;
  CHECK(served(job.push(1, 1)) == Ranks{0, 1});
  CHECK(open_round(job) == 2);
}

TEST_CASE("a round that loses its quorum with an excluded rank waits for another") {
  SyncJob job({.model = wire::SyncModel::kDrop, .quorum = 2, .grace_ms = 10});
  job.begin();
  for (const uint32_t rank : {0u, 1u}) CHECK(job.push(rank, 1).empty());
  job.exclude(0);
  CHECK_FALSE(pass(job, 100 * kMs));
  CHECK(open_round(job) == 1);
  CHECK(served(job.push(2, 1)) == Ranks{1, 2});
}

TEST_CASE("a round whose ranks are all excluded ends when one is back") {
  SyncJob job({.model = wire::SyncModel::kDrop, .quorum = 1, .grace_ms = 10}, 2);
  job.begin();
  CHECK(job.push(0, 1).empty());
  job.exclude(0);
  job.exclude(1);
  CHECK_FALSE(pass(job, 100 * kMs));
  CHECK(open_round(job) == 1);
}

TEST_CASE("the exclusion of the ranks that are missing ends the round") {
  SyncJob job(kSpec, 2);
  job.begin();
  CHECK(job.push(0, 1).empty());
  job.exclude(1);
  CHECK(open_round(job) == 2);
  CHECK(job.shard->sessions()[1].missed.get() == 0);  // the round does not lack it any more
  CHECK_FALSE(pass(job, 100 * kMs));
}

TEST_CASE("an excluded rank comes back to the round that is open") {
  SyncJob job(kSpec, 2);
  job.begin();
  job.exclude(1);
  for (const uint32_t round : {1u, 2u}) CHECK(served(job.push(0, round)) == Ranks{0});
  admit_again(job, 1);
  CHECK(job.push(0, 3).empty());
  CHECK(served(job.push(1, 3)) == Ranks{0, 1});
  CHECK(open_round(job) == 4);
}

TEST_CASE("an operator changes the grace of a round that waits") {
  SyncJob job(kSpec);
  job.begin();
  CHECK(job.push(0, 1).empty());
  const auto set = [&](uint32_t grace_ms) {
    wire::SyncSpec next = kSpec;
    next.grace_ms = grace_ms;
    job.box.engine.execute({.kind = pipeline::CommandKind::kSetSync,
                            .shard = job.shard,
                            .rules = std::vector(job.shard->chunk_count(), next)});
  };
  set(30);
  CHECK_FALSE(pass(job, 20 * kMs));
  set(0);
  CHECK(open_round(job) == 2);
  CHECK(served(job.push(1, 2)) == Ranks{0, 1});  // the rank that waited is served now, too
}

TEST_CASE("the grace of auto is learned from how late ranks are") {
  SyncJob job({.model = wire::SyncModel::kDrop, .quorum = 1, .grace_ms = wire::kGraceAuto}, 2);
  job.begin();
  uint32_t round = 1;
  for (; round <= sync::RoundGrace::kSamplesMin; ++round) {
    CHECK(job.push(0, round).empty());
    CHECK_FALSE(pass(job, 7 * kMs));
    CHECK(job.push(1, round).size() == 6);
  }
  CHECK(job.push(0, round).empty());
  CHECK(job.box.engine.due_ns() == UINT64_MAX);  // until finish_waiting() has looked
  CHECK_FALSE(pass(job, 6 * kMs));
  CHECK(job.box.engine.due_ns() == job.box.now_ns + kMs);
  CHECK(pass(job, kMs));
  CHECK(job.shard->rounds_cut.get() == 1);
}

namespace {

constexpr wire::SyncSpec kNext{.model = wire::SyncModel::kDrop, .quorum = 1, .counts_late = true};

}  // namespace

TEST_CASE("a late push counts in the round that is open when it arrives") {
  SyncJob job(kNext, 2);
  job.options.reduction = pipeline::Reduction::kMean;
  job.begin();
  CHECK(served(job.push(0, 1, 2)) == Ranks{0});
  const auto newest = job.push(1, 1, 6);
  CHECK(served(newest) == Ranks{1});
  CHECK(newest[0].value() == kInitialWeight - 2);
  CHECK(newest[0].header.contributors() == 1);
  CHECK(newest[0].header.applied() == 1);  // its own push is not in yet
  const auto sent = job.push(0, 2, 4);
  CHECK(sent[0].value() == kInitialWeight - 2 - (6.0f + 4) / 2);
  CHECK(sent[0].header.contributors() == 0);  // as many as there are ranks
  CHECK(job.shard->sessions()[1].dropped.get() == 0);
  CHECK(served(job.push(0, 3, 1)) == Ranks{0});
  CHECK(job.shard->chunks()[0].weights[0] == kInitialWeight - 8);
}

TEST_CASE("a late push counts beside the rank's own push of that round") {
  SyncJob job(kNext, 2);
  job.options.reduction = pipeline::Reduction::kMean;
  job.options.sync.quorum = 2;
  job.options.sync.grace_ms = 10;
  job.begin();
  job.exclude(1);
  CHECK(served(job.push(0, 1, 2)) == Ranks{0});
  admit_again(job, 1);
  CHECK(served(job.push(1, 1, 3)) == Ranks{1});
  CHECK(job.push(1, 2, 4).empty());
  const auto sent = job.push(0, 2, 8);
  CHECK(served(sent) == Ranks{0, 1});
  CHECK(sent[0].value() == kInitialWeight - 2 - (3.0f + 4 + 8) / 3);
  CHECK(sent[0].header.contributors() == 3);
}

TEST_CASE("a push that was cut counts in two rounds, and is answered when it is whole") {
  SyncJob job(kNext, 2);
  job.begin();
  job.box.deliver(job.box.push(job.options, 1, 0, 1.0f, 1));
  CHECK(served(job.push(0, 1)) == Ranks{0});
  // The rank asks, and is told what is missing. Otherwise it would not send the rest.
  const auto status = job.pull(1, 1);
  REQUIRE(status.size() == 1);
  CHECK(status[0].header.type() == wire::PacketType::kStatus);
  for (const uint32_t fragment : {0u, 1u, 2u, 2u}) {
    job.box.deliver(job.box.push(job.options, 1, fragment, 1.0f, 1));
  }
  CHECK(job.box.count(pipeline::Counter::kDuplicate) == 2);
  CHECK(served(job.box.take_all()) == Ranks{1});
  const auto sent = job.push(0, 2);
  for (const Sent& packet : sent) CHECK(packet.value() == kInitialWeight - 3);
}

TEST_CASE("the rest of a late push is not waited for once its rank has some of the result") {
  SyncJob job(kNext, 2);
  job.begin();
  CHECK(served(job.push(0, 1)) == Ranks{0});
  CHECK(served(job.pull(1, 1)) == Ranks{1});
  job.box.deliver(job.box.push(job.options, 1, 0, 1.0f, 1));  // overtaken by the result
  const auto rest = job.pull(1, 1, 0b100);
  REQUIRE(rest.size() == 2);
  for (const Sent& packet : rest) CHECK(packet.header.type() == wire::PacketType::kResult);
  const auto sent = job.push(0, 2);
  CHECK(sent[0].value() == kInitialWeight - 3);
  CHECK(sent[1].value() == kInitialWeight - 2);
}

TEST_CASE("the rest of a late push is not waited for once its session has ended") {
  SyncJob job(kNext, 2);
  job.begin();
  job.box.deliver(job.box.push(job.options, 1, 0, 1.0f, 1));
  CHECK(served(job.push(0, 1)) == Ranks{0});
  admit_again(job, 1);
  CHECK(served(job.pull(1, 1)) == Ranks{1});
}

}  // namespace pbox::test::engine_sync_grace_test
