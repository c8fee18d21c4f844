#include <catch2/catch.hpp>

#include "appliance/cluster/job_load.h"

namespace pbox::cluster {
namespace {

using appliance::PartProgress;
using appliance::RankProgress;

constexpr uint64_t kMs = 1'000'000;

// Two ranks of job "train" in some parts, whose iterations take so long, of which they wait for the
// part.
class Ranks {
 public:
  void finish(uint64_t rounds, uint64_t iteration_ms, uint64_t busy_ms) {
    rounds_ += rounds;
    at_ns_ += rounds * iteration_ms * kMs;
    busy_ns_ += rounds * busy_ms * kMs;
  }
  void pause(uint64_t ms) {
    at_ns_ += ms * kMs;
    busy_ns_ += ms * kMs;
  }
  // The second rank is one that all wait for: it waits for the box alone.
  PartProgress part(uint32_t index) const {
    const RankProgress patient{rounds_, at_ns_ + 7 * kMs, busy_ns_ + rounds_ * kMs};
    const RankProgress last{rounds_, at_ns_, busy_ns_};
    return {"train", index, 4, 1000, {patient, last}};
  }

 private:
  uint64_t rounds_ = 0;
  uint64_t at_ns_ = 5'000 * kMs;
  uint64_t busy_ns_ = 3 * kMs;
};

LoadMeter::AssignmentOf assignment(int64_t revision, size_t parts) {
  return [=](const std::string&) { return LoadMeter::Assignment{revision, parts}; };
}

}  // namespace

TEST_CASE("a box's load is of the rounds since it was measured last, and of its slowest part") {
  LoadMeter meter;
  Ranks first, second;
  const auto measure = [&](int64_t revision) {
    return meter.measure({first.part(0), second.part(3)}, assignment(revision, 2)).at("train");
  };
  const auto finish = [&](uint64_t rounds) {
    first.finish(rounds, 10, 2);
    second.finish(rounds, 10, 4);
  };
  CHECK(measure(5).rounds == 0);  // the ranks have finished nothing
  finish(3);
  CHECK(measure(5).rounds == 0);
  finish(3);
  CHECK(measure(5).rounds == 0);  // some of that may have been under another plan
  finish(5);
  JobLoad load = measure(5);
  CHECK(load.map_revision == 5);
  CHECK(load.rounds == 11);
  CHECK(load.bytes == 2000);
  CHECK(load.busy_seconds == Approx(0.004));  // of the rank that waits for nobody else
  CHECK(load.iteration_seconds == Approx(0.010));
  CHECK(measure(5) == load);  // nothing new
  first.finish(1, 20, 8);
  CHECK(measure(5) == load);  // the other part has not gone on
  second.finish(1, 20, 6);
  load = measure(5);
  CHECK(load.rounds == 12);
  CHECK(load.busy_seconds == Approx(0.008));
}

TEST_CASE("what lies between two plans is a pause, and no load") {
  LoadMeter meter;
  Ranks stays, comes;
  const auto alone = [&] { return meter.measure({stays.part(0)}, assignment(5, 1)).at("train"); };
  for (int step = 0; step < 4; ++step) {
    stays.finish(10, 10, 2);
    comes.finish(10, 10, 2);
    alone();
  }
  REQUIRE(alone().iteration_seconds == Approx(0.010));
  // The plan has another part here, which is not here yet.
  CHECK(meter.measure({stays.part(0)}, assignment(6, 2)).at("train").rounds == 0);
  const auto both = [&] {
    return meter.measure({stays.part(0), comes.part(1)}, assignment(6, 2)).at("train");
  };
  CHECK(both().rounds == 0);
  for (Ranks* part : {&stays, &comes}) {
    part->pause(250);
    part->finish(5, 8, 2);
  }
  CHECK(both().rounds == 0);
  for (Ranks* part : {&stays, &comes}) part->finish(5, 8, 2);
  const JobLoad load = both();
  CHECK(load.map_revision == 6);
  CHECK(load.rounds == 50);
  CHECK(load.busy_seconds == Approx(0.002));
  CHECK(load.pause_seconds == Approx(0.250 + 5 * 0.008 - 5 * 0.010));
}

TEST_CASE("a rank that is another process now is measured anew, and a job that is over is gone") {
  LoadMeter meter;
  Ranks ranks;
  const auto measure = [&] { return meter.measure({ranks.part(0)}, assignment(5, 1)).at("train"); };
  for (int step = 0; step < 4; ++step) {
    ranks.finish(2, 10, 2);
    measure();
  }
  const JobLoad before = measure();
  CHECK(before.rounds == 8);
  ranks = Ranks();
  ranks.finish(1, 1, 1);
  CHECK(measure() == before);
  ranks.finish(1, 30, 3);
  CHECK(measure().iteration_seconds == Approx(0.030));
  CHECK(meter.measure({}, assignment(5, 1)).empty());
}

TEST_CASE("loads survive being written, and what is none is left out") {
  const JobLoads loads = {{"a \"job\"", {7, 100, 2.5e6, 0.003, 0.01, 0.25}}, {"b", {}}};
  CHECK(loads_from_text(to_text(loads)) == loads);
  for (const char* text : {"", "[]", "7", R"({"a": 3})", "{\"a\": {\"rounds\": "}) {
    CHECK(loads_from_text(text).empty());
  }
  CHECK(loads_from_text(R"({"a": {"rounds": -1, "bytes": "x"}})").at("a") == JobLoad{});
}

}  // namespace pbox::cluster
