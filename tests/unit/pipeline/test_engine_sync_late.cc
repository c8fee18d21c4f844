// How the late rank is found where pushes are applied on arrival and ranks may be ahead of each
// other.
#include <catch2/catch.hpp>

#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test {
namespace {

constexpr uint64_t kMs = 1'000'000;

wire::SyncSpec ssp(uint32_t staleness) {
  return {.model = wire::SyncModel::kSsp, .staleness = staleness};
}

// A job whose clock stands where the test puts it.
struct LateJob : SyncJob {
  explicit LateJob(uint32_t staleness) : SyncJob(ssp(staleness)) {
    begin();
    began_ns = box.now_ns;
  }
  void push_at(uint64_t ms, uint32_t rank, uint32_t round) {
    box.now_ns = began_ns + ms * kMs;
    push(rank, round);
  }
  void tick_at(uint64_t ms) {
    box.now_ns = began_ns + ms * kMs;
    box.engine.tick(box.now_ns);
  }
  const pipeline::Session& session(uint32_t rank) const { return shard->sessions()[rank]; }
  const pipeline::StragglerLedger& ledger() const { return shard->stragglers; }

  uint64_t began_ns = 0;
};

}  // namespace

TEST_CASE("the rank that a round waits for is late since the others have pushed it") {
  LateJob job(2);
  const uint64_t last_before = job.session(2).last_arrivals.get();
  job.push_at(0, 0, 1);
  job.push_at(5, 1, 1);
  job.push_at(6, 0, 2);  // this round is not open yet
  job.push_at(20, 2, 1);
  CHECK(job.session(2).last_arrivals.get() == last_before + 1);
  CHECK(job.session(2).late_ns.get() == 15 * kMs);
  CHECK(job.session(2).worst_chunk_round.get() == 1);
  CHECK(job.ledger().worst(0).rank.get() == 2);
  CHECK(job.ledger().rounds()[1].begun_ns.get() == job.began_ns);
  CHECK(job.ledger().rounds()[1].finished_ns.get() == job.began_ns + 20 * kMs);
}

TEST_CASE("a round that a fast rank has pushed early waits since the round before has finished") {
  LateJob job(2);
  for (const uint32_t round : {1u, 2u, 3u}) job.push_at(1, 0, round);
  job.push_at(10, 1, 1);
  job.push_at(20, 2, 1);
  CHECK(job.ledger().is_open(0));  // round 2
  CHECK(job.ledger().first_arrival_ns(0) == job.began_ns + 20 * kMs);
  job.push_at(21, 2, 2);
  job.push_at(50, 1, 2);
  CHECK(job.session(1).late_ns.get() == 29 * kMs);
  CHECK(job.session(0).late_ns.get() == 0);
  CHECK(job.ledger().is_open(0));  // round 3
}

TEST_CASE("each rank that the open round lacks is awaited, and no rank that is ahead") {
  LateJob job(2);
  job.push_at(0, 0, 1);
  job.push_at(0, 0, 2);
  job.push_at(4, 1, 1);
  job.tick_at(1009);
  CHECK(job.session(0).awaited_ns.get() == 0);
  CHECK(job.session(1).awaited_ns.get() == 0);
  CHECK(job.session(2).awaited_ns.get() == 1009 * kMs);
  CHECK(job.session(2).awaited_chunk_round.get() == 1);
  job.push_at(2000, 2, 1);
  job.tick_at(3000);
  CHECK(job.session(0).awaited_ns.get() == 0);
  CHECK(job.session(1).awaited_ns.get() == 1000 * kMs);  // round 2, which rank 0 has pushed
  CHECK(job.session(2).awaited_ns.get() == 1000 * kMs);
}

TEST_CASE("nobody was late in a round that ends with an exclusion") {
  LateJob job(2);
  job.push_at(0, 0, 1);
  job.push_at(0, 1, 1);
  job.push_at(0, 1, 2);
  job.tick_at(1000);
  job.exclude(2);
  for (const uint32_t rank : {0u, 1u, 2u}) CHECK(job.session(rank).late_ns.get() == 0);
  CHECK(job.ledger().first_arrival_ns(0) == job.began_ns + 1000 * kMs);
  job.push_at(1012, 0, 2);
  CHECK(job.session(0).late_ns.get() == 12 * kMs);
}

}  // namespace pbox::test
