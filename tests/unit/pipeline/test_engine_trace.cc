// The contents of a round trace, and its end.
#include <catch2/catch.hpp>
#include <map>

#include "base/clock.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test {

using pipeline::CommandKind;
using pipeline::RoundTrace;
using pipeline::TraceEvent;
using Kind = pipeline::TraceEvent::Kind;

namespace {

uint64_t ticks = 0;
uint64_t count_up() {
  return ++ticks;
}

RoundTrace make_trace(const pipeline::JobShard& shard, size_t capacity = 1000,
                      uint64_t until_ns = UINT64_MAX) {
  RoundTrace trace(capacity, until_ns, count_up);
  trace.first_rounds().resize(shard.stragglers.chunk_count());
  return trace;
}

void set_trace(Box& box, pipeline::JobShard& shard, RoundTrace* trace) {
  box.engine.execute({.kind = CommandKind::kTrace, .shard = &shard, .trace = trace});
}

std::vector<TraceEvent> of_kind(const RoundTrace& trace, Kind kind) {
  std::vector<TraceEvent> found;
  for (const TraceEvent& event : trace.events()) {
    if (event.kind == kind) found.push_back(event);
  }
  return found;
}

}  // namespace

TEST_CASE("a trace has each rank's first and last arrival, and when the round was full and sent") {
  for (const auto delivery : {wire::Delivery::kBroadcast, wire::Delivery::kPull}) {
    Box box;
    const JobOptions job{.workers = 3, .chunks = 2, .delivery = delivery};
    auto& shard = box.admit(job);
    RoundTrace trace = make_trace(shard);
    set_trace(box, shard, &trace);
    for (uint32_t round = 0; round < 2; ++round) {
      for (const uint32_t chunk : {1u, 0u}) box.run_round(job, round, chunk);
    }
    CHECK(trace.lost() == 0);
    REQUIRE(trace.events().size() == 2 * 2 * (2 * 3 + 2));
    std::map<std::pair<uint32_t, uint32_t>, std::vector<TraceEvent>> rounds;
    for (const TraceEvent& event : trace.events()) {
      rounds[{event.chunk, event.round}].push_back(event);
    }
    REQUIRE(rounds.size() == 4);
    for (auto& [key, events] : rounds) {
      std::stable_sort(events.begin(), events.end(),
                       [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
      for (uint32_t rank = 0; rank < 3; ++rank) {
        CHECK(events[2 * rank].kind == Kind::kFirst);
        CHECK(events[2 * rank].rank == rank);
        CHECK(events[2 * rank + 1].kind == Kind::kLast);
        CHECK(events[2 * rank + 1].rank == rank);
      }
      CHECK(events[6].kind == Kind::kFull);
      CHECK(events[7].kind == Kind::kSent);
    }
  }
}

TEST_CASE("a packet that is not added is not traced, and a trace does not change the sum") {
  Box box;
  const JobOptions job;
  auto& shard = box.admit(job);
  RoundTrace trace = make_trace(shard);
  set_trace(box, shard, &trace);
  const Packet first = box.push(job, 0, 0, 1.0f);
  box.deliver(first);
  box.deliver(first);
  Packet wrong = box.push(job, 1, 0, 1.0f);
  wrong.header.epoch += 1;
  box.deliver(wrong);
  box.deliver(box.push(job, 0, 0, 1.0f, 7));
  box.deliver(box.pull(job, 1, 0));
  box.deliver_raw({});
  CHECK(trace.events().size() == 1);
  for (const uint32_t fragment : {1u, 2u}) box.deliver(box.push(job, 0, fragment, 1.0f));
  box.take_all();
  box.push_chunk(job, 1, 2.0f);
  for (const Sent& sent : box.take_all()) CHECK(sent.value() == 3.0f);
}

TEST_CASE("rounds that began before the trace are left out, even if they leave later") {
  Box box;
  const JobOptions job{.chunks = 2};
  auto& shard = box.admit(job);
  box.push_chunk(job, 0, 1.0f, 0, 0);
  for (uint32_t rank = 0; rank < 2; ++rank) box.push_chunk(job, rank, 1.0f, 0, 1);
  RoundTrace trace = make_trace(shard);
  set_trace(box, shard, &trace);
  box.push_chunk(job, 1, 1.0f, 0, 0);
  box.take_all();
  CHECK(trace.events().empty());
  box.run_round(job, 1, 0);
  box.run_round(job, 1, 1);
  CHECK(of_kind(trace, Kind::kSent).size() == 2);
  CHECK(of_kind(trace, Kind::kFirst).size() == 4);
}

TEST_CASE("events beyond the capacity are counted, and the first events stay") {
  Box box;
  const JobOptions job;
  auto& shard = box.admit(job);
  RoundTrace trace = make_trace(shard, 7);
  set_trace(box, shard, &trace);
  box.run_round(job, 0);
  box.run_round(job, 1);
  CHECK(trace.lost() == 5);
  REQUIRE(trace.events().size() == 7);
  CHECK(trace.events()[5].kind == Kind::kSent);
  CHECK(trace.events()[6].round == 1);
}

TEST_CASE("a round that an exclusion finishes is traced") {
  Box box;
  const JobOptions job{.workers = 3};
  auto& shard = box.admit(job);
  RoundTrace trace = make_trace(shard);
  set_trace(box, shard, &trace);
  box.push_chunk(job, 0, 1.0f);
  box.push_chunk(job, 2, 1.0f);
  box.engine.execute({.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 21});
  box.take_all();
  CHECK(of_kind(trace, Kind::kFirst).size() == 2);
  CHECK(of_kind(trace, Kind::kFull).size() == 1);
  CHECK(of_kind(trace, Kind::kSent).size() == 1);
}

TEST_CASE("a trace ends with its time, with the command to stop, and with the job") {
  for (const int way : {0, 1, 2}) {
    Box box;
    const JobOptions job;
    auto& shard = box.admit(job);
    const JobOptions other{.job = 1};
    box.admit(other);
    RoundTrace trace = make_trace(shard, 1000, 2 * kNanosPerSecond);
    set_trace(box, shard, &trace);
    box.engine.tick(1 * kNanosPerSecond);
    box.run_round(job, 0);
    const size_t before = trace.events().size();
    CHECK(before == 6);
    if (way == 0) box.engine.tick(2 * kNanosPerSecond);
    if (way == 1) set_trace(box, shard, nullptr);
    if (way == 2) box.remove(shard);
    if (way != 2) box.run_round(job, 1);
    box.run_round(other, 0);
    CHECK(trace.events().size() == before);
  }
}

}  // namespace pbox::test
