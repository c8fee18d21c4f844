#include <catch2/catch.hpp>
#include <limits>

#include "appliance/cluster/job_load.h"

namespace pbox::cluster {
namespace {

using control::PartProgress;
using control::RankProgress;

constexpr uint64_t kMs = 1'000'000;

// Two ranks of job "train", and their progress with one of its parts. An iteration takes
// `iteration_ms`. For `busy_ms` of it the ranks wait for the part.
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
  // The first rank also waits for the second one, which waits only for the box.
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

TEST_CASE("a box's load covers the rounds since the last measurement, and its slowest part") {
  LoadMeter meter;
  Ranks first, second;
  const auto measure = [&](int64_t revision) {
    return meter.measure({first.part(0), second.part(3)}, assignment(revision, 2)).at("train");
  };
  const auto finish = [&](uint64_t rounds) {
    first.finish(rounds, 10, 2);
    second.finish(rounds, 10, 4);
  };
  CHECK(measure(5).rounds == 0);  // the ranks have finished no round
  finish(3);
  CHECK(measure(5).rounds == 0);
  finish(3);
  CHECK(measure(5).rounds == 0);  // some of these rounds may have been under another part map
  finish(5);
  JobLoad load = measure(5);
  CHECK(load.map_revision == 5);
  CHECK(load.rounds == 11);
  CHECK(load.bytes == 2000);
  CHECK(load.busy_seconds == Approx(0.004));  // the rank that waits only for the box
  CHECK(load.iteration_seconds == Approx(0.010));
  CHECK(measure(5) == load);  // nothing has changed
  first.finish(1, 20, 8);
  CHECK(measure(5) == load);  // the other part has not progressed
  second.finish(1, 20, 6);
  load = measure(5);
  CHECK(load.rounds == 12);
  CHECK(load.busy_seconds == Approx(0.008));
}

TEST_CASE("the time between two part maps is a pause, not load") {
  LoadMeter meter;
  Ranks stays, comes;
  const auto alone = [&] { return meter.measure({stays.part(0)}, assignment(5, 1)).at("train"); };
  for (int step = 0; step < 4; ++step) {
    stays.finish(10, 10, 2);
    comes.finish(10, 10, 2);
    alone();
  }
  REQUIRE(alone().iteration_seconds == Approx(0.010));
  // The map assigns another part to this box, which has not arrived yet.
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

TEST_CASE("a rank that is a new process is measured from the start, and an ended job has no load") {
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

TEST_CASE("loads arrive as they were sent, and entries that cannot be loads are skipped") {
  const JobLoads loads = {{"a \"job\"", {7, 100, 2.5e6, 0.003, 0.01, 0.25}}, {"b", {}}};
  proto::BoxReport sent;
  for (const proto::JobLoad& load : to_messages(loads)) *sent.add_loads() = load;
  CHECK(loads_of(sent) == loads);
  CHECK(loads_of({}).empty());
  for (const double wrong :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    proto::BoxReport message = sent;
    message.mutable_loads(0)->set_busy_seconds(wrong);
    CHECK(loads_of(message) == JobLoads{{"b", {}}});
  }
}

}  // namespace pbox::cluster
