// The rules of the consistency models: tables, and random runs against a model of FluentPS's server
// as its authors describe it.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "pipeline/sync/progress.h"
#include "pipeline/sync/rules.h"

namespace pbox::sync {
namespace {

using wire::Reads;
using wire::Release;
using wire::SyncModel;
using wire::SyncSpec;

struct Row {
  SyncSpec spec;
  uint64_t round, slowest, fastest;
  bool waits;
};

// FluentPS's server for one shard, in its own terms: n[i] counts pushes of iteration i, pulls are
// parked by slot, and a loop advances V.
class FluentServer {
 public:
  FluentServer(const SyncSpec& spec, uint32_t workers) : spec_(spec), workers_(workers) {}

  // Returns the ranks that this push of iteration i releases.
  std::vector<uint32_t> push(uint64_t i) {
    ++pushes_[i];
    fastest_ = std::max(fastest_, i);
    std::vector<uint32_t> answered;
    while (pushes_[oldest_] == workers_) {
      const auto& parked = parked_[oldest_];
      answered.insert(answered.end(), parked.begin(), parked.end());
      parked_.erase(oldest_++);
    }
    return answered;
  }

  // Returns true if the pull of iteration i is answered at once.
  bool pull(uint32_t rank, uint64_t i) {
    const int64_t k = static_cast<int64_t>(i) - static_cast<int64_t>(oldest_);
    const int64_t s = spec_.staleness;
    bool block = false;
    switch (spec_.model) {
      case SyncModel::kSsp: block = k >= s; break;
      case SyncModel::kPssp:
        block = i == fastest_ && k >= s && draw(1, rank, i) <= double{spec_.probability};
        break;
      case SyncModel::kDpssp:
        block = i == fastest_ && k >= s &&
                draw(1, rank, i) <=
                    double{spec_.probability} / (1 + std::exp(static_cast<double>(s - k)));
        break;
      default: break;
    }
    if (block) parked_[spec_.release == Release::kLazy ? i : oldest_].push_back(rank);
    return !block;
  }

  uint64_t oldest() const { return oldest_; }
  uint64_t fastest() const { return fastest_; }

 private:
  SyncSpec spec_;
  uint32_t workers_;
  std::map<uint64_t, uint32_t> pushes_;
  std::map<uint64_t, std::vector<uint32_t>> parked_;
  uint64_t oldest_ = 1;
  uint64_t fastest_ = 0;
};

struct Run {
  uint64_t delayed = 0;
  int64_t staleness_least = 0;
};

// Ranks push in a random order, some more rarely. A rank whose read is parked does not push. Checks
// that both sides agree on every answer and that every rank reaches the last round.
Run race(const SyncSpec& spec, uint32_t workers, uint64_t rounds, uint64_t seed) {
  Rng rng(seed);
  FluentServer server(spec, workers);
  std::vector<uint64_t> next(workers);
  Progress progress;
  progress.begin(next, 1);
  std::set<uint32_t> waiting;
  Run run;
  const auto answered = [&](uint32_t rank) {
    const auto clock = static_cast<int64_t>(progress.slowest());
    run.staleness_least =
        std::min(run.staleness_least, clock - static_cast<int64_t>(progress.next(rank)));
  };
  uint32_t done = 0;
  for (uint64_t tries = 0; done < workers; ++tries) {
    REQUIRE(tries < 1000 * rounds * workers);
    const auto rank = static_cast<uint32_t>(rng.below(workers));
    if (waiting.count(rank) > 0 || progress.next(rank) > rounds) continue;
    if (rank == 0 && rng.below(5) > 0) continue;  // a straggler
    const uint64_t round = progress.next(rank);
    const auto expected = server.push(round);
    const uint64_t before = progress.slowest();
    const bool advanced = progress.complete_push(rank);
    REQUIRE(advanced == (progress.slowest() != before));
    REQUIRE(progress.slowest() == server.oldest());
    REQUIRE(progress.fastest() == server.fastest());
    std::set<uint32_t> released;
    if (advanced) {
      for (uint32_t parked = progress.parked().next(0); parked != RankSet::kNone;
           parked = progress.parked().next(parked + 1)) {
        if (!releases(spec, progress.next(parked) - 1, progress.slowest())) continue;
        progress.unpark(parked);
        released.insert(parked);
        answered(parked);
        waiting.erase(parked);
      }
    }
    REQUIRE(released == std::set<uint32_t>(expected.begin(), expected.end()));
    const bool waits = blocks(spec, {1, rank, round, progress.slowest(), progress.fastest()});
    REQUIRE(waits == !server.pull(rank, round));
    if (waits) {
      progress.park(rank);
      waiting.insert(rank);
      ++run.delayed;
    } else {
      answered(rank);
    }
    done += round == rounds ? 1 : 0;
  }
  REQUIRE(waiting.empty());
  return run;
}

}  // namespace

TEST_CASE("each model parks the reads that its rule names") {
  const SyncSpec asp{.model = SyncModel::kAsp};
  const SyncSpec ssp{.model = SyncModel::kSsp, .staleness = 3};
  const SyncSpec strict{.model = SyncModel::kSsp, .staleness = 0};
  const SyncSpec pssp{.model = SyncModel::kPssp, .staleness = 3, .probability = 1};
  const SyncSpec rarely{.model = SyncModel::kPssp, .staleness = 3, .probability = 1e-30f};
  const SyncSpec cached{.model = SyncModel::kSsp, .staleness = 3, .reads = Reads::kCached};
  const SyncSpec essp{.model = SyncModel::kEssp, .staleness = 3};
  SyncSpec answered = cached;
  answered.reads = Reads::kAnswered;
  const Row rows[] = {
      {asp, 1000, 1, 1000, false}, {ssp, 3, 1, 3, false},  // a lead of 2
      {ssp, 4, 1, 4, true},        {ssp, 4, 1, 9, true},     {ssp, 4, 2, 4, false},
      {ssp, 4, 5, 4, false},  // every rank has pushed it
      {strict, 1, 1, 1, true},     {strict, 1, 2, 1, false}, {pssp, 4, 1, 4, true},
      {pssp, 3, 1, 3, false},      {pssp, 4, 1, 5, false},    // not the fastest
      {rarely, 4, 1, 4, false},    {cached, 3, 1, 3, false},  // needs clock 1
      {cached, 4, 1, 4, true},                                // needs clock 2
      {cached, 4, 2, 4, false},    {essp, 4, 1, 4, true},    {essp, 4, 2, 9, false},
      {answered, 3, 1, 3, false},  // needs clock 1
      {answered, 4, 1, 4, true},   // needs clock 2
      {answered, 4, 2, 4, false},
  };
  for (const Row& row : rows) {
    INFO("row " << &row - rows);
    CHECK(blocks(row.spec, {1, 0, row.round, row.slowest, row.fastest}) == row.waits);
  }
}

TEST_CASE("a parked read is released at the clock that its rule names") {
  SyncSpec spec{.model = SyncModel::kSsp, .staleness = 3};
  CHECK(awaited_clock(spec, 4, 1) == 2);
  CHECK(releases(spec, 4, 2));
  spec.release = Release::kLazy;
  CHECK(awaited_clock(spec, 4, 1) == 5);
  CHECK_FALSE(releases(spec, 4, 4));
  CHECK(releases(spec, 4, 5));
  for (const Reads reads : {Reads::kCached, Reads::kAnswered}) {
    spec = {.model = SyncModel::kSsp, .staleness = 3, .reads = reads};
    CHECK(awaited_clock(spec, 4, 1) == 2);
    CHECK(awaited_clock(spec, 1, 1) == 0);
    CHECK_FALSE(releases(spec, 5, 2));
    CHECK(releases(spec, 5, 3));
  }
}

TEST_CASE("draws are uniform, and independent for each job, rank and round") {
  std::set<double> drawn;
  std::vector<uint32_t> tenths(10, 0);
  double sum = 0;
  for (uint32_t job = 1; job <= 10; ++job) {
    const uint64_t seed = seed_of("job " + std::to_string(job));
    for (uint32_t rank = 0; rank < 10; ++rank) {
      for (uint64_t round = 0; round < 100; ++round) {
        const double value = draw(seed, rank, round);
        REQUIRE((value >= 0 && value < 1));
        ++tenths[static_cast<size_t>(value * 10)];
        sum += value;
        drawn.insert(value);
        REQUIRE(draw(seed, rank, round) == value);
      }
    }
  }
  CHECK(drawn.size() == 10'000);
  CHECK(std::abs(sum / 10'000 - 0.5) < 0.01);
  for (const uint32_t count : tenths) CHECK((count > 850 && count < 1150));
}

TEST_CASE("the dynamic probability rises with the lead, from half of alpha") {
  const SyncSpec spec{.model = SyncModel::kDpssp, .staleness = 2, .probability = 0.8f};
  for (const uint64_t lead : {2u, 3u, 5u, 12u}) {
    uint32_t waited = 0;
    for (uint32_t rank = 0; rank < 10'000; ++rank) {
      waited += blocks(spec, {7, rank, 10 + lead, 10, 10 + lead}) ? 1 : 0;
    }
    const double expected = double{0.8f} / (1 + std::exp(2.0 - static_cast<double>(lead)));
    CHECK(std::abs(waited / 1e4 - expected) < 0.015);
  }
}

TEST_CASE("progress and rules answer as FluentPS's server does, for any order of pushes") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto workers = static_cast<uint32_t>(1 + seed % 9);
    for (const auto release : {Release::kSoft, Release::kLazy}) {
      for (const uint32_t staleness : {0u, 1u, 3u}) {
        const SyncSpec ssp{.model = SyncModel::kSsp, .staleness = staleness, .release = release};
        const Run bounded = race(ssp, workers, 60, seed);
        CHECK(bounded.staleness_least >= -static_cast<int64_t>(staleness));
        SyncSpec some = ssp;
        some.model = SyncModel::kPssp;
        some.probability = 0.3f;
        race(some, workers, 60, seed);
        some.model = SyncModel::kDpssp;
        race(some, workers, 60, seed);
      }
    }
    CHECK(race({.model = SyncModel::kAsp}, workers, 60, seed).delayed == 0);
  }
}

TEST_CASE("a straggler delays others far less often with lazy release and chance than with SSP") {
  const SyncSpec ssp{.model = SyncModel::kSsp, .staleness = 3};
  const SyncSpec lazy{
      .model = SyncModel::kPssp, .staleness = 3, .probability = 0.1f, .release = Release::kLazy};
  const uint64_t soft_delays = race(ssp, 8, 2000, 1).delayed;
  const uint64_t lazy_delays = race(lazy, 8, 2000, 1).delayed;
  CHECK(soft_delays > 20 * lazy_delays);
}

TEST_CASE("a rank that leaves holds no other back, and no longer counts as the fastest") {
  std::vector<uint64_t> next(4);
  Progress progress;
  progress.begin(next, 1);
  for (uint32_t times = 0; times < 5; ++times) CHECK_FALSE(progress.complete_push(0));
  progress.complete_push(1);
  progress.complete_push(1);
  CHECK_FALSE(progress.complete_push(2));
  CHECK(progress.lead() == 5);
  progress.park(0);
  CHECK_FALSE(progress.leave(0));
  CHECK_FALSE(progress.is_parked(0));
  CHECK(progress.fastest() == 2);
  CHECK(progress.leave(3));
  CHECK(progress.slowest() == 2);
  const auto behind = progress.behind(3);
  CHECK(behind.count == 1);
  CHECK(behind.slowest_rank == 2);
  CHECK(progress.complete_push(2));
  CHECK(progress.slowest() == 3);
  CHECK_FALSE(progress.leave(2));
  CHECK_FALSE(progress.leave(1));
  CHECK(progress.slowest() == 3);  // no rank is left: V stays
}

TEST_CASE("a set of ranks is iterated in order, across its words") {
  RankSet set;
  CHECK(set.empty());
  CHECK(set.next(0) == RankSet::kNone);
  for (const uint32_t rank : {0u, 63u, 64u, 200u, 255u}) set.add(rank);
  std::vector<uint32_t> found;
  for (uint32_t rank = set.next(0); rank != RankSet::kNone; rank = set.next(rank + 1)) {
    found.push_back(rank);
  }
  CHECK(found == std::vector<uint32_t>{0, 63, 64, 200, 255});
  set.remove(63);
  CHECK_FALSE(set.has(63));
  CHECK(set.next(1) == 64);
  CHECK(set.next(256) == RankSet::kNone);
}

}  // namespace pbox::sync
