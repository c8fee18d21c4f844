// The grace of rounds that have their quorum.
#include <catch2/catch.hpp>

#include "base/clock.h"
#include "pipeline/sync/round_grace.h"

namespace pbox::sync {
namespace {

constexpr uint64_t kMs = kNanosPerMilli;
constexpr wire::SyncSpec kAuto{
    .model = wire::SyncModel::kDrop, .quorum = 2, .grace_ms = wire::kGraceAuto};
constexpr wire::SyncSpec with_grace(uint32_t ms) {
  return {.model = wire::SyncModel::kDrop, .quorum = 2, .grace_ms = ms};
}

RoundGrace grace_of(size_t chunks) {
  RoundGrace grace;
  grace.reserve(chunks);
  return grace;
}

// Chunk 0 has its quorum at 1000 ms. A rank's push arrives `late_ns` later.
void come_late(RoundGrace& grace, uint64_t late_ns) {
  CHECK(grace.waits(0, kAuto, 1000 * kMs));
  grace.note_arrival(0, 1000 * kMs + late_ns);
  grace.close(0, 0, 1000 * kMs + late_ns);
}

}  // namespace

TEST_CASE("a round waits as long as its grace, from the quorum on") {
  RoundGrace grace = grace_of(2);
  CHECK_FALSE(grace.waits(1, with_grace(0), 100 * kMs));
  CHECK(grace.oldest() == RoundGrace::kNone);
  CHECK(grace.waits(1, with_grace(20), 100 * kMs));
  CHECK(grace.ends_ns(1, with_grace(20)) == 120 * kMs);
  CHECK(grace.waits(1, with_grace(20), 120 * kMs - 1));
  CHECK_FALSE(grace.waits(1, with_grace(20), 120 * kMs));
  CHECK_FALSE(grace.waits(1, with_grace(5), 110 * kMs));  // the operator has shortened it
  grace.close(1, 0, 120 * kMs);
  CHECK(grace.oldest() == RoundGrace::kNone);
}

TEST_CASE("the chunk that has had its quorum the longest is first, and one that lost it is none") {
  RoundGrace grace = grace_of(3);
  for (const uint32_t chunk : {2u, 0u, 1u}) CHECK(grace.waits(chunk, with_grace(9), chunk + 1));
  CHECK(grace.oldest() == 2);
  grace.cancel(2);
  CHECK(grace.oldest() == 0);
  grace.cancel(2);
  grace.close(0, 0, 50);
  CHECK(grace.oldest() == 1);
  CHECK(grace.waits(2, with_grace(9), 60));
  CHECK(grace.ends_ns(2, with_grace(9)) == 60 + 9 * kMs);
}

TEST_CASE("a time in which the box did not run is nobody's lateness") {
  RoundGrace grace = grace_of(1);
  CHECK(grace.waits(0, with_grace(10), 100 * kMs));
  grace.discount(1000 * kMs);
  CHECK(grace.waits(0, with_grace(10), 1109 * kMs));
  CHECK_FALSE(grace.waits(0, with_grace(10), 1110 * kMs));
}

TEST_CASE("auto waits for all ranks until it has seen some come late") {
  RoundGrace grace = grace_of(1);
  for (size_t sample = 0; sample < RoundGrace::kSamplesMin; ++sample) {
    CHECK(grace.auto_ns() == 0);
    CHECK(grace.waits(0, kAuto, 1000 * kMs));
    CHECK(grace.ends_ns(0, kAuto) == UINT64_MAX);
    come_late(grace, 10 * kMs);
  }
  CHECK(grace.auto_ns() == 10 * kMs);
  CHECK(grace.waits(0, kAuto, 2000 * kMs));
  CHECK(grace.ends_ns(0, kAuto) == 2010 * kMs);
}

TEST_CASE("auto is the median and three times the median deviation, of the newest arrivals") {
  RoundGrace grace = grace_of(1);
  for (const uint64_t late_ms : {10, 20, 30, 40, 50}) come_late(grace, late_ms * kMs);
  CHECK(grace.auto_ns() == (30 + 3 * 10) * kMs);
  come_late(grace, 60'000 * kMs);  // a rank was stopped for a minute
  CHECK(grace.auto_ns() == (40 + 3 * 20) * kMs);
  for (size_t sample = 0; sample < RoundGrace::kSamplesKept; ++sample) come_late(grace, 1000);
  CHECK(grace.auto_ns() == RoundGrace::kAutoMinNs);
}

TEST_CASE("auto grows when pushes are cut, and counts those that come after the round") {
  RoundGrace grace = grace_of(1);
  for (size_t sample = 0; sample < RoundGrace::kSamplesMin; ++sample) come_late(grace, 10 * kMs);
  for (int round = 0; round < 20; ++round) {
    CHECK(grace.waits(0, kAuto, 1000 * kMs));
    grace.close(0, 1, 1000 * kMs + grace.auto_ns());
  }
  CHECK(grace.auto_ns() > 100 * kMs);
  RoundGrace other = grace_of(1);
  for (size_t sample = 0; sample < RoundGrace::kSamplesMin; ++sample) {
    CHECK(other.waits(0, with_grace(5), 1000 * kMs));
    other.close(0, 0, 1005 * kMs);
    other.note_late_arrival(0, 1070 * kMs);
  }
  CHECK(other.auto_ns() == 70 * kMs);
  other.close(0, 0, 2000 * kMs);  // a round that did not wait
  other.note_late_arrival(0, 9000 * kMs);
  CHECK(other.auto_ns() == 70 * kMs);
}

TEST_CASE("four chunks of a shard are the sample") {
  uint32_t sampled = 0;
  for (uint32_t chunk = 0; chunk < 15; ++chunk) {
    RoundGrace grace = grace_of(15);
    for (size_t sample = 0; sample < RoundGrace::kSamplesMin; ++sample) {
      CHECK(grace.waits(chunk, kAuto, 1000 * kMs));
      grace.note_arrival(chunk, 1010 * kMs);
      grace.close(chunk, 3, 1010 * kMs);
      grace.note_late_arrival(chunk, 1020 * kMs);
    }
    sampled += grace.auto_ns() != 0 ? 1 : 0;
  }
  CHECK(sampled == 4);
}

}  // namespace pbox::sync
