// The trace of a job whose model is not bsp.
#include <array>
#include <catch2/catch.hpp>
#include <tuple>

#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test::engine_trace_sync_test {

using pipeline::RoundTrace;
using Kind = pipeline::TraceEvent::Kind;
using wire::SyncModel;

namespace {

// Kind, round and rank of an event; rank 0 where it has none.
using Event = std::tuple<Kind, uint32_t, uint32_t>;

uint64_t no_time() {
  return 1;
}

// A job whose events are traced once its initial weights are there.
struct TracedJob : SyncJob {
  explicit TracedJob(const wire::SyncSpec& sync, uint32_t workers = 2) : SyncJob(sync, workers) {
    begin();
    trace_from_now();
  }
  void trace_from_now() {
    trace = RoundTrace(1000, UINT64_MAX, no_time);
    trace.first_rounds().resize(shard->chunks().size());
    box.engine.execute({.kind = pipeline::CommandKind::kTrace, .shard = shard, .trace = &trace});
  }
  std::vector<Event> events() const {
    std::vector<Event> list;
    for (const auto& event : trace.events()) list.emplace_back(event.kind, event.round, event.rank);
    return list;
  }
  RoundTrace trace{0, 0, no_time};
};

}  // namespace

TEST_CASE("a trace has each rank's own rounds, however far behind it is") {
  TracedJob job({.model = SyncModel::kAsp});
  for (const uint32_t round : {1u, 2u, 3u}) job.push(1, round);
  job.trace_from_now();
  job.push(1, 4);
  job.push(0, 1);
  CHECK(job.events() == std::vector<Event>{{Kind::kFirst, 4, 1},
                                           {Kind::kLast, 4, 1},
                                           {Kind::kReplied, 4, 1},
                                           {Kind::kFirst, 1, 0},
                                           {Kind::kFull, 1, 0},
                                           {Kind::kLast, 1, 0},
                                           {Kind::kReplied, 1, 0}});
}

TEST_CASE("a trace has the waits of a read that a slower rank holds up") {
  TracedJob job({.model = SyncModel::kSsp, .staleness = 1});
  job.push(0, 1);
  job.push(0, 2);
  job.push(1, 1);
  CHECK(job.events() == std::vector<Event>{{Kind::kFirst, 1, 0},
                                           {Kind::kLast, 1, 0},
                                           {Kind::kReplied, 1, 0},
                                           {Kind::kFirst, 2, 0},
                                           {Kind::kParked, 2, 0},
                                           {Kind::kLast, 2, 0},
                                           {Kind::kFirst, 1, 1},
                                           {Kind::kFull, 1, 0},
                                           {Kind::kReleased, 2, 0},
                                           {Kind::kLast, 1, 1},
                                           {Kind::kReplied, 2, 0},
                                           {Kind::kReplied, 1, 1}});
}

TEST_CASE("a trace has the reads of copies that were asked for, and what ESSP sends unasked") {
  TracedJob ssp({.model = SyncModel::kSsp, .staleness = 1, .reads = wire::Reads::kCached});
  ssp.push(0, 1);
  ssp.pull(0, 1);
  CHECK(ssp.events() == std::vector<Event>{{Kind::kFirst, 1, 0},
                                           {Kind::kLast, 1, 0},
                                           {Kind::kReleased, 1, 0},
                                           {Kind::kReplied, 1, 0}});
  TracedJob essp({.model = SyncModel::kEssp, .staleness = 2, .reads = wire::Reads::kCached});
  essp.push(0, 1);
  essp.push(0, 2);
  essp.push(1, 1);
  const std::vector<Event> events = essp.events();
  REQUIRE(events.size() == 9);
  const std::vector<Event> last(events.begin() + 4, events.end());
  CHECK(last == std::vector<Event>{{Kind::kFirst, 1, 1},
                                   {Kind::kFull, 1, 0},
                                   {Kind::kLast, 1, 1},
                                   {Kind::kReplied, 1, 0},
                                   {Kind::kReplied, 1, 1}});
}

TEST_CASE("a trace has the push of a round that closed without it") {
  TracedJob job({.model = SyncModel::kDrop, .quorum = 1});
  job.push(0, 1);
  job.push(0, 2);
  job.push(1, 1);
  CHECK(job.events() == std::vector<Event>{{Kind::kFirst, 1, 0},
                                           {Kind::kFull, 1, 0},
                                           {Kind::kLast, 1, 0},
                                           {Kind::kReplied, 1, 0},
                                           {Kind::kFirst, 2, 0},
                                           {Kind::kFull, 2, 0},
                                           {Kind::kLast, 2, 0},
                                           {Kind::kReplied, 2, 0},
                                           {Kind::kFirst, 1, 1},
                                           {Kind::kLast, 1, 1},
                                           {Kind::kReplied, 2, 1}});
}

TEST_CASE("a rank that leaves ends the wait of others, and its own") {
  TracedJob job({.model = SyncModel::kSsp, .staleness = 0}, 3);
  job.push(0, 1);
  job.push(1, 1);
  job.trace_from_now();
  job.exclude(0);
  CHECK(job.events() == std::vector<Event>{{Kind::kReleased, 1, 0}});
  job.exclude(2);
  job.box.take_all();
  CHECK(job.events() == std::vector<Event>{{Kind::kReleased, 1, 0},
                                           {Kind::kFull, 1, 0},
                                           {Kind::kReleased, 1, 1},
                                           {Kind::kReplied, 1, 1}});
}

}  // namespace pbox::test::engine_trace_sync_test
