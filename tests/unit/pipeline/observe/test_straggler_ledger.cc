#include <algorithm>
#include <catch2/catch.hpp>

#include "base/clock.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test {

using pipeline::CommandKind;
using pipeline::DurationHistogram;
using pipeline::StragglerLedger;

namespace {

constexpr uint64_t kMs = kNanosPerMilli;

uint64_t count(const DurationHistogram& histogram) {
  uint64_t count = 0;
  for (size_t bucket = 0; bucket < DurationHistogram::kBucketCount; ++bucket) {
    count += histogram.count(bucket);
  }
  return count;
}

// Pushes one chunk's round: rank i at the i-th of these times.
void push_at(Box& box, const JobOptions& job, uint32_t round, uint32_t chunk,
             const std::vector<uint64_t>& times_ns) {
  for (uint32_t rank = 0; rank < times_ns.size(); ++rank) {
    box.now_ns = times_ns[rank];
    box.push_chunk(job, rank, 1.0f, round, chunk);
  }
  box.take_all();
}

}  // namespace

TEST_CASE("time in which the box itself stood still is charged to no rank") {
  Box box;
  const JobOptions job{.workers = 2};
  auto& shard = box.admit(job);
  box.now_ns = 1000 * kMs;
  box.push_chunk(job, 0, 1.0f, 0, 0);
  // The box runs for 3 ms more, then not for 15 s.
  box.now_ns = 16'003 * kMs;
  box.engine.discount_standstill(15'000 * kMs);
  box.engine.tick(box.now_ns);
  CHECK(shard.sessions()[1].awaited_ns.get() == 3 * kMs);
  box.now_ns += 4 * kMs;
  box.push_chunk(job, 1, 1.0f, 0, 0);
  box.take_all();
  CHECK(shard.sessions()[1].late_ns.get() == 7 * kMs);
  CHECK(shard.stragglers.worst(0).late_ns.get() == 7 * kMs);
  CHECK(shard.stragglers.skews().sum_ns() == 7 * kMs);
}

TEST_CASE("the last rank is charged with the time since the last arrival but one") {
  Box box;
  const JobOptions job{.workers = 3};
  auto& shard = box.admit(job);
  push_at(box, job, 0, 0, {1000 * kMs, 1004 * kMs, 1014 * kMs});
  push_at(box, job, 1, 0, {1100 * kMs, 1101 * kMs, 1103 * kMs});
  const auto& sessions = shard.sessions();
  CHECK(sessions[2].late_ns.get() == 12 * kMs);
  CHECK(sessions[2].worst_late_ns.get() == 10 * kMs);
  CHECK(sessions[2].worst_chunk_round.get() == 0);
  CHECK(sessions[2].worst_at_ns.get() == 1014 * kMs);
  CHECK(sessions[2].last_arrivals.get() == 2);
  CHECK(sessions[0].late_ns.get() == 0);
  CHECK(sessions[1].late_ns.get() == 0);
  const StragglerLedger& ledger = shard.stragglers;
  CHECK(ledger.late_ns(0) == 12 * kMs);
  CHECK(ledger.worst(0).late_ns.get() == 10 * kMs);
  CHECK(ledger.worst(0).rank.get() == 2);
  CHECK(ledger.worst(0).round.get() == 0);
  CHECK(count(ledger.skews()) == 2);
  CHECK(ledger.skews().sum_ns() == 17 * kMs);
  CHECK(ledger.oldest() == StragglerLedger::kNone);
}

TEST_CASE("a round replaces the worst one only if it is worse") {
  Box box;
  const JobOptions job{.workers = 2, .chunks = 2};
  auto& shard = box.admit(job);
  push_at(box, job, 0, 1, {1000 * kMs, 1003 * kMs});
  push_at(box, job, 1, 1, {1010 * kMs, 1019 * kMs});
  push_at(box, job, 2, 1, {1020 * kMs, 1024 * kMs});
  CHECK(shard.stragglers.worst(1).late_ns.get() == 9 * kMs);
  CHECK(shard.stragglers.worst(1).round.get() == 1);
  CHECK(shard.sessions()[1].worst_chunk_round.get() == (uint64_t{1} << 32 | 1));
  CHECK(shard.stragglers.worst(0).late_ns.get() == 0);
}

TEST_CASE("a round's time runs from its first push to its last, over all chunks") {
  Box box;
  const JobOptions job{.workers = 2, .chunks = 2};
  auto& shard = box.admit(job);
  push_at(box, job, 0, 0, {1000 * kMs, 1002 * kMs});
  CHECK(count(shard.stragglers.round_times()) == 0);  // one chunk has not finished
  push_at(box, job, 0, 1, {1001 * kMs, 1007 * kMs});
  CHECK(count(shard.stragglers.round_times()) == 1);
  CHECK(shard.stragglers.round_times().sum_ns() == 7 * kMs);
  const auto& kept = shard.stragglers.rounds()[0];
  CHECK(kept.round.get() == 1);
  CHECK(kept.begun_ns.get() == 1000 * kMs);
  CHECK(kept.finished_ns.get() == 1007 * kMs);
  CHECK(kept.chunks.get() == 2);
  CHECK(kept.late_ns.get() == 6 * kMs);
  CHECK(kept.rank.get() == 1);
  CHECK(kept.chunk.get() == 1);
}

TEST_CASE("the newest rounds are kept, each in its own place") {
  Box box;
  const JobOptions job{.workers = 2};
  auto& shard = box.admit(job);
  const auto rounds = static_cast<uint32_t>(StragglerLedger::kRoundsKept + 3);
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint64_t begin_ns = (1000 + 10 * round) * kMs;
    push_at(box, job, round, 0, {begin_ns, begin_ns + (1 + round) * 1000});
  }
  for (const auto& kept : shard.stragglers.rounds()) {
    const uint64_t round = kept.round.get() - 1;
    CHECK(round + StragglerLedger::kRoundsKept >= rounds);
    CHECK(kept.late_ns.get() == (1 + round) * 1000);
    CHECK(kept.chunks.get() == 1);
  }
}

TEST_CASE("every rank that has not pushed the oldest open round is awaited") {
  Box box;
  const JobOptions job{.workers = 3, .chunks = 3};
  auto& shard = box.admit(job);
  box.engine.tick(box.now_ns);
  for (const auto& session : shard.sessions()) CHECK(session.awaited_ns.get() == 0);
  const uint64_t begin_ns = box.now_ns;
  box.push_chunk(job, 0, 1.0f, 0, 2);
  box.now_ns += 5 * kMs;
  box.push_chunk(job, 0, 1.0f, 0, 0);
  box.push_chunk(job, 1, 1.0f, 0, 0);
  box.now_ns = begin_ns + 3000 * kMs;
  box.engine.tick(box.now_ns);
  const auto& sessions = shard.sessions();
  CHECK(sessions[0].awaited_ns.get() == 0);
  for (const uint32_t rank : {1u, 2u}) {
    CHECK(sessions[rank].awaited_ns.get() == 3000 * kMs);
    CHECK(sessions[rank].awaited_chunk_round.get() == uint64_t{2} << 32);
  }
  // The oldest has finished. The next is chunk 0, which lacks only the third rank.
  box.push_chunk(job, 1, 1.0f, 0, 2);
  box.push_chunk(job, 2, 1.0f, 0, 2);
  box.now_ns += 1000 * kMs;
  box.engine.tick(box.now_ns);
  CHECK(sessions[1].awaited_ns.get() == 0);
  CHECK(sessions[2].awaited_ns.get() == 3995 * kMs);
  CHECK(sessions[2].awaited_chunk_round.get() == 0);
  box.push_chunk(job, 2, 1.0f, 0, 0);
  box.now_ns += 1000 * kMs;
  box.engine.tick(box.now_ns);
  CHECK(sessions[2].awaited_ns.get() == 0);
}

TEST_CASE("the list of open chunks stays intact whatever the order in which they open and finish") {
  Box box;
  const JobOptions job{.workers = 2, .chunks = 5};
  auto& shard = box.admit(job);
  uint32_t round = 0;
  for (const auto& order : std::vector<std::vector<uint32_t>>{
           {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}, {1, 4, 0, 3, 2}}) {
    for (uint32_t chunk = 0; chunk < 5; ++chunk) box.push_chunk(job, 0, 1.0f, round, chunk);
    std::vector<bool> is_open(5, true);
    for (const uint32_t chunk : order) {
      const auto first = std::find(is_open.begin(), is_open.end(), true) - is_open.begin();
      CHECK(shard.stragglers.oldest() == static_cast<uint32_t>(first));
      box.push_chunk(job, 1, 1.0f, round, chunk);
      is_open[chunk] = false;
    }
    CHECK(shard.stragglers.oldest() == StragglerLedger::kNone);
    box.take_all();
    ++round;
  }
}

TEST_CASE("no rank is blamed for a round that an exclusion ended") {
  Box box;
  const JobOptions job{.workers = 3};
  auto& shard = box.admit(job);
  box.push_chunk(job, 0, 1.0f);
  box.push_chunk(job, 1, 1.0f);
  box.now_ns += 1000 * kMs;
  box.engine.execute({.kind = CommandKind::kExclude, .shard = &shard, .rank = 2, .generation = 21});
  CHECK(shard.rounds_finished.get() == 1);
  CHECK(shard.stragglers.oldest() == StragglerLedger::kNone);
  for (const auto& session : shard.sessions()) CHECK(session.late_ns.get() == 0);
  CHECK(count(shard.stragglers.skews()) == 0);
}

TEST_CASE("a job of one rank has no stragglers") {
  Box box;
  const JobOptions job{.workers = 1};
  auto& shard = box.admit(job);
  for (uint32_t round = 0; round < 3; ++round) {
    box.now_ns += 10 * kMs;
    box.run_round(job, round);
  }
  CHECK(shard.sessions()[0].late_ns.get() == 0);
  CHECK(count(shard.stragglers.skews()) == 0);
  CHECK(shard.stragglers.oldest() == StragglerLedger::kNone);
}

TEST_CASE("a STATUS says how long the box has waited for a late rank, and how often it was last") {
  Box box;
  const JobOptions job{.workers = 2};
  box.admit(job);
  for (uint32_t round = 0; round < 4; ++round) {
    const bool is_last = round != 1;
    box.push_chunk(job, is_last ? 0 : 1, 1.0f, round);
    box.push_chunk(job, is_last ? 1 : 0, 1.0f, round);
    box.take_all();
  }
  box.push_chunk(job, 0, 1.0f, 4);
  box.now_ns += 1700 * kMs;
  box.deliver(box.pull(job, 0, 4));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 1);
  const wire::StatusPayload status = sent[0].status();
  CHECK(status.missing_workers == 1);
  CHECK(status.first_missing_rank == 1);
  CHECK(status.waited_ms == 1700);
  CHECK(status.last_percent == 75);
}

TEST_CASE("a duration counts in the first bucket whose bound it does not exceed") {
  DurationHistogram histogram;
  histogram.add(0);
  histogram.add(DurationHistogram::bound_ns(0));
  histogram.add(DurationHistogram::bound_ns(0) + 1);
  histogram.add(DurationHistogram::bound_ns(5));
  histogram.add(DurationHistogram::bound_ns(DurationHistogram::kBucketCount - 2) + 1);
  histogram.add(uint64_t{1} << 62);
  CHECK(histogram.count(0) == 2);
  CHECK(histogram.count(1) == 1);
  CHECK(histogram.count(5) == 1);
  CHECK(histogram.count(DurationHistogram::kBucketCount - 1) == 2);
  CHECK(count(histogram) == 6);
}

}  // namespace pbox::test
