// Commands that concern every chunk of a shard are carried out in steps.
#include <catch2/catch.hpp>

#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_steps_test {
namespace {

using pipeline::Command;
using pipeline::CommandKind;
using pipeline::Counter;
using pipeline::JobShard;

const JobOptions kLarge{.workers = 3, .chunk_elements = 1, .chunks = 20'000};
const JobOptions kOther{.job = 1};

Packet of_generation(Packet packet, uint16_t generation) {
  packet.header.generation = generation;
  return packet;
}

}  // namespace

TEST_CASE("an exclusion looks at a bounded number of chunks in a turn, while other jobs go on") {
  Box box;
  JobShard& shard = box.admit(kLarge);
  box.admit(kOther);
  const uint32_t ended[] = {0, 4321, kLarge.chunks - 1};  // they lack only the excluded rank's push
  for (const uint32_t chunk : ended) {
    for (const uint32_t rank : {0u, 2u}) box.push_chunk(kLarge, rank, 1.0f, 0, chunk);
  }
  Command command{.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 21};
  uint32_t steps = 1;
  while (!box.engine.step(command)) {
    ++steps;
    CHECK(command.chunks_done < kLarge.chunks);
    const CounterChange change(box.engine);
    for (const uint16_t generation : {uint16_t{20}, uint16_t{21}}) {
      box.deliver(of_generation(box.push(kLarge, 0, 0, 1.0f, 0, 7), generation));
    }
    CHECK(change.moved() == std::vector{Counter::kRejectGeneration});
    const uint64_t finished = box.count(Counter::kRoundsFinished);
    for (const uint32_t rank : {0u, 1u}) box.push_chunk(kOther, rank, 1.0f, steps - 2);
    CHECK(box.count(Counter::kRoundsFinished) == finished + 1);
    box.take_all();
  }
  CHECK(steps >= 3);
  for (const uint32_t chunk : ended) CHECK(shard.find(chunk)->open_round() == 1);
  for (const uint32_t rank : {0u, 2u}) {
    box.deliver(of_generation(box.push(kLarge, rank, 0, 1.0f, 0, 7), 21));
  }
  CHECK(shard.find(7)->open_round() == 1);
  CHECK(shard.find(8)->open_round() == 0);
}

TEST_CASE("rounds that an exclusion finishes are spread over turns by their size") {
  Box box;
  const JobOptions job{
      .workers = 2, .fragment_bytes = 8192, .chunk_elements = 65'536, .chunks = 40};
  JobShard& shard = box.admit(job);
  for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) box.push_chunk(job, 0, 1.0f, 0, chunk);
  Command command{.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 21};
  uint64_t most = 0, before = 0;
  while (!box.engine.step(command)) {
    const uint64_t finished = box.count(Counter::kRoundsFinished);
    most = std::max(most, finished - before);
    before = finished;
  }
  CHECK(most > 0);
  CHECK(most <= 10);
  CHECK(box.count(Counter::kRoundsFinished) == job.chunks);
}

TEST_CASE("a rank that takes part again is counted in every chunk before packets are accepted") {
  Box box;
  JobShard& shard = box.admit(kLarge);
  box.push_chunk(kLarge, 1, 1.0f, 0, 19'999);
  box.engine.execute({.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 21});
  constexpr uint32_t kSpi = 0x77u << 24 | kPipeline << pipeline::kSpiPipelineShift | 700;
  Command command{.kind = CommandKind::kAdmit,
                  .shard = &shard,
                  .credit_bytes = 4096,
                  .rank = 1,
                  .spi = kSpi,
                  .generation = 22};
  uint32_t steps = 1;
  while (!box.engine.step(command)) ++steps;
  CHECK(steps >= 3);
  // The rank's push from before it was excluded still counts.
  for (const uint32_t rank : {0u, 2u}) {
    CHECK(shard.find(19'999)->open_round() == 0);
    box.deliver(of_generation(box.push(kLarge, rank, 0, 1.0f, 0, 19'999), 22));
    box.deliver(of_generation(box.push(kLarge, rank, 0, 1.0f, 0, 19'998), 22));
  }
  CHECK(shard.find(19'999)->open_round() == 1);
  CHECK(shard.find(19'998)->open_round() == 0);
}

TEST_CASE("priorities are set and rounds reported in steps, for every chunk") {
  Box box;
  JobShard& shard = box.admit(kLarge);
  for (uint32_t rank = 0; rank < kLarge.workers; ++rank) {
    box.push_chunk(kLarge, rank, 1.0f, 0, 12'345);
  }
  std::vector<int32_t> priorities(kLarge.chunks);
  for (uint32_t chunk = 0; chunk < kLarge.chunks; ++chunk) {
    priorities[chunk] = static_cast<int32_t>(chunk) - 7;
  }
  Command set{.kind = CommandKind::kSetPriorities, .shard = &shard, .priorities = priorities};
  CHECK_FALSE(box.engine.step(set));
  while (!box.engine.step(set)) {
  }
  std::vector<uint32_t> rounds(kLarge.chunks, 99);
  Command report{.kind = CommandKind::kReportRounds, .shard = &shard, .rounds = rounds};
  CHECK_FALSE(box.engine.step(report));
  while (!box.engine.step(report)) {
  }
  for (uint32_t chunk = 0; chunk < kLarge.chunks; ++chunk) {
    REQUIRE(shard.find(chunk)->priority == priorities[chunk]);
    REQUIRE(rounds[chunk] == (chunk == 12'345 ? 1 : 0));
  }
}

}  // namespace pbox::test::engine_steps_test
