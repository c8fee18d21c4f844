// Replays a flight recorder's records: the same engine reaches the same verdicts.
#include <catch2/catch.hpp>
#include <optional>

#include "base/rng.h"
#include "tests/unit/pipeline/box.h"
#include "tools/pboxctl/flight_compare.h"

namespace pboxctl {
namespace {

using namespace pbox;
using namespace pbox::test;
using pipeline::CommandKind;
using pipeline::FlightKind;
using pipeline::Verdict;

FlightReplay replay_of(std::span<const std::byte> image) {
  const auto images = pipeline::read_flight_images(image);
  REQUIRE(images);
  return replay(*images);
}

FlightReplay replay_of(FlightMemory& memory) {
  return replay_of(memory.span());
}

std::string differences_of(const FlightReplay& replay) {
  std::string text;
  for (const auto& difference : replay.differences) text += difference.text + "\n";
  return text;
}

uint64_t count_of(const FlightReplay& replay, Verdict verdict) {
  return replay.pipelines.at(0).verdicts[static_cast<size_t>(verdict)];
}

// Delivers a job's packets in random order, some twice, some of them wrong. Rank `absent` pushes
// nothing in the last round.
void run_rounds(Box& box, const JobOptions& job, Rng& rng, uint32_t rounds, uint32_t absent) {
  for (uint32_t round = 0; round < rounds; ++round) {
    std::vector<Packet> packets;
    for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
      for (uint32_t rank = 0; rank < job.workers; ++rank) {
        if (rank == absent && round + 1 == rounds) continue;
        for (uint32_t fragment = 0; fragment < 3; ++fragment) {
          packets.push_back(box.push(job, rank, fragment, 1.0f, round, chunk));
        }
        packets.push_back(box.pull(job, rank, round, rng.below(8), chunk));
      }
    }
    for (size_t index = packets.size(); index > 1; --index) {
      std::swap(packets[index - 1], packets[rng.below(index)]);
    }
    for (Packet& packet : packets) {
      box.now_ns += 1000;
      box.deliver(packet);
      if (rng.below(4) == 0) box.deliver(packet);
      if (rng.below(8) == 0) {
        Packet wrong = packet;
        switch (rng.below(6)) {
          case 0: ++wrong.header.epoch; break;
          case 1: ++wrong.header.generation; break;
          case 2: wrong.header.chunk += 77; break;
          case 3: wrong.header.fragment += 40; break;
          case 4: wrong.header.round += 3; break;
          default: wrong.header.spi ^= 1u << 30;
        }
        box.deliver(wrong);
      }
      if (rng.below(3) == 0) box.take_all();
    }
    box.take_all();
  }
}

}  // namespace

TEST_CASE("a replay of all records of a pipeline reaches every verdict again") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    FlightMemory memory(65'536);
    Box box(memory.span());
    const JobOptions first{.job = 0, .workers = 3, .chunks = 4};
    const JobOptions second{.job = 1, .workers = 2, .chunks = 3, .mode = pipeline::Mode::kOptimize};
    box.admit(first);
    box.admit(second);
    run_rounds(box, first, rng, 6, 2);
    run_rounds(box, second, rng, 4, 7);

    const FlightReplay replayed = replay_of(memory);
    INFO(differences_of(replayed));
    CHECK(replayed.difference_count == 0);
    const PipelineReplay& pipeline = replayed.pipelines.at(0);
    CHECK(pipeline.index == kPipeline);
    CHECK(pipeline.damaged == 0);
    CHECK(pipeline.interrupted.empty());
    // Packets for a chunk that came before its first round had begun are too early to judge.
    CHECK(pipeline.judged + pipeline.too_early == box.count(pipeline::Counter::kRxPackets));
    CHECK(pipeline.judged > 10 * pipeline.too_early);
    CHECK(count_of(replayed, Verdict::kAggregated) == box.count(pipeline::Counter::kAggregated));
    CHECK(count_of(replayed, Verdict::kDuplicate) == box.count(pipeline::Counter::kDuplicate));
    CHECK(count_of(replayed, Verdict::kDuplicate) > 0);
    CHECK(count_of(replayed, Verdict::kEpoch) + count_of(replayed, Verdict::kRound) +
              count_of(replayed, Verdict::kSession) >
          0);

    REQUIRE(replayed.jobs.size() == 2);
    const JobReplay& job = replayed.jobs.at("job 0");
    CHECK(job.model == "bsp");
    CHECK(job.chunk_rounds == 5 * 4);
    CHECK(job.newest_round == 5);
    REQUIRE(job.ranks.size() == 3);
    CHECK(job.ranks[0].last + job.ranks[1].last + job.ranks[2].last == 20);
    REQUIRE(job.open_rounds.size() == 4);
    for (const OpenRound& open : job.open_rounds) {
      CHECK(open.round == 5);
      CHECK(open.missing == std::vector<uint32_t>{2});
    }
    CHECK(replayed.jobs.at("job 1").open_rounds.empty());
  }
}

TEST_CASE("a replay of a ring that has lost its oldest records reaches every verdict again") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    FlightMemory memory(512);
    Box box(memory.span());
    const JobOptions job{.workers = 3, .chunks = 4};
    box.admit(job);
    run_rounds(box, job, rng, 20 + static_cast<uint32_t>(seed % 5), 1);
    const FlightReplay replayed = replay_of(memory);
    INFO(differences_of(replayed));
    CHECK(replayed.difference_count == 0);
    CHECK(replayed.pipelines.at(0).first > 0);
    CHECK(replayed.pipelines.at(0).judged > 100);
    const JobReplay& left = replayed.jobs.at("job 0");
    REQUIRE(left.open_rounds.size() == 4);
    for (const OpenRound& open : left.open_rounds) {
      CHECK(open.missing == std::vector<uint32_t>{1});
    }
  }
}

TEST_CASE("a round that stays open while the ring wraps is still known") {
  FlightMemory memory(512);
  Box box(memory.span());
  const JobOptions waits{.job = 0, .workers = 7, .chunks = 3};
  const JobOptions runs{.job = 1, .workers = 2, .chunks = 1};
  box.admit(waits);
  box.admit(runs);
  box.push_chunk(waits, 0, 1.0f, 0, 1);
  box.push_chunk(waits, 6, 1.0f, 0, 1);
  box.deliver(box.push(waits, 3, 1, 1.0f, 0, 1));
  for (uint32_t round = 0; round < 500; ++round) box.run_round(runs, round);
  const FlightReplay replayed = replay_of(memory);
  INFO(differences_of(replayed));
  CHECK(replayed.difference_count == 0);
  const JobReplay& job = replayed.jobs.at("job 0");
  REQUIRE(job.open_rounds.size() == 1);
  CHECK(job.open_rounds[0].chunk == 1);
  CHECK(job.open_rounds[0].missing == std::vector<uint32_t>{1, 2, 3, 4, 5});
  CHECK(replayed.jobs.at("job 1").newest_round == 500);
}

TEST_CASE("ranks that leave and come back, and jobs that end, are replayed too") {
  FlightMemory memory(4096);
  Box box(memory.span());
  const JobOptions job{.workers = 3};
  pipeline::JobShard& shard = box.admit(job);
  box.run_round(job, 0);
  box.push_chunk(job, 0, 1.0f, 1);
  box.push_chunk(job, 1, 1.0f, 1);
  box.engine.execute({.kind = CommandKind::kExclude, .shard = &shard, .rank = 2, .generation = 20});
  box.take_all();
  box.push_chunk(job, 2, 1.0f, 2);  // its spi belongs to no session now
  box.push_chunk(job, 0, 1.0f, 2);
  box.engine.execute({.kind = CommandKind::kAdmit,
                      .shard = &shard,
                      .credit_bytes = 4096,
                      .rank = 2,
                      .spi = spi_of(0, 2) ^ 1u << 28,
                      .generation = 20});
  box.push_chunk(job, 1, 1.0f, 2);
  const FlightReplay waiting = replay_of(memory);
  INFO(differences_of(waiting));
  CHECK(waiting.difference_count == 0);
  CHECK(count_of(waiting, Verdict::kSession) == 3);
  CHECK(waiting.jobs.at("job 0").newest_round == 2);
  REQUIRE(waiting.jobs.at("job 0").open_rounds.size() == 1);
  CHECK(waiting.jobs.at("job 0").open_rounds[0].missing == std::vector<uint32_t>{2});
  CHECK(waiting.jobs.at("job 0").ranks[2].present);

  box.remove(shard);
  box.deliver(box.push(job, 0, 0, 1.0f, 3));
  const FlightReplay ended = replay_of(memory);
  CHECK(ended.difference_count == 0);
  CHECK(ended.jobs.at("job 0").open_rounds.empty());
  CHECK(count_of(ended, Verdict::kSession) == 4);
}

TEST_CASE("a recorded verdict that the code does not reach is reported with its packet") {
  FlightMemory memory(1024);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  box.run_round(job, 0);
  auto image = memory.image();
  auto* records =
      reinterpret_cast<pipeline::FlightRecord*>(image.data() + pipeline::kFlightHeadBytes);
  size_t changed = 0;
  while (records[changed].kind != FlightKind::kPacket) ++changed;
  ++changed;
  while (records[changed].kind != FlightKind::kPacket) ++changed;
  records[changed].verdict = Verdict::kDuplicate;
  const FlightReplay replayed = replay_of(image);
  CHECK(replayed.difference_count == 1);
  CHECK(replayed.differences.at(0).record == changed);
  CHECK(replayed.differences[0].text.find("recorded as duplicate, replayed as aggregated") !=
        std::string::npos);
}

TEST_CASE("the packet that a pipeline was processing when it ended is named") {
  FlightMemory memory(1024);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  box.deliver(box.push(job, 0, 1, 1.0f));
  auto image = memory.image();
  auto& head = *reinterpret_cast<pipeline::FlightHead*>(image.data());
  auto* records =
      reinterpret_cast<pipeline::FlightRecord*>(image.data() + pipeline::kFlightHeadBytes);
  uint64_t last = head.written.load() - 1;
  while (records[last].kind != FlightKind::kPacket) --last;
  records[last].verdict = Verdict::kPending;
  head.written.store(last + 1);
  const FlightReplay replayed = replay_of(image);
  CHECK(replayed.difference_count == 0);
  CHECK(replayed.pipelines.at(0).interrupted.find("chunk 0, round 0, fragment 1") !=
        std::string::npos);
}

TEST_CASE("packets of jobs of other models are counted and not replayed") {
  FlightMemory memory(1024);
  Box box(memory.span());
  const JobOptions job{.mode = pipeline::Mode::kOptimize, .sync = {.model = wire::SyncModel::kAsp}};
  box.admit(job);
  box.run_round(job, 0);
  box.push_chunk(job, 0, 1.0f, 1);
  const FlightReplay replayed = replay_of(memory);
  CHECK(replayed.difference_count == 0);
  CHECK(replayed.jobs.at("job 0").model == "asp");
  CHECK(replayed.jobs.at("job 0").ranks.at(0).fragments == 6);
  CHECK(replayed.pipelines.at(0).other_models == 9);
  CHECK(replayed.pipelines.at(0).judged == 0);
}

TEST_CASE("records of two runs are compared result by result, for results that both have") {
  // A fragment with another value in one round of the run.
  struct Slip {
    uint32_t round;
    uint32_t fragment;
  };
  const JobOptions job{.workers = 2, .chunks = 2};
  const auto run = [&](uint32_t records, std::optional<Slip> slip) {
    FlightMemory memory(records);
    Box box(memory.span());
    box.admit(job);
    for (uint32_t round = 0; round < 9; ++round) {
      for (uint32_t chunk = 0; chunk < job.chunks; ++chunk) {
        for (uint32_t fragment = 0; fragment < 3; ++fragment) {
          const bool slips =
              slip && chunk == 1 && round == slip->round && fragment == slip->fragment;
          box.deliver(box.push(job, 0, fragment, slips ? 1.5f : 1.0f, round, chunk));
        }
        box.push_chunk(job, 1, 2.0f, round, chunk);
        box.take_all();
      }
    }
    return replay_of(memory);
  };
  const FlightReplay whole = run(1024, {});
  CHECK(whole.jobs.at("job 0").results.size() == 18);
  const auto compare = [](const FlightReplay& one, const FlightReplay& other) {
    const auto jobs = compare_results(one, other);
    REQUIRE(jobs.size() == 1);
    CHECK(jobs[0].job == "job 0");
    return jobs[0];
  };
  const ResultsCompared same = compare(whole, run(1024, {}));
  CHECK(same.in_both == 18);
  CHECK(same.different == 0);
  const ResultsCompared newest = compare(run(128, {}), whole);
  CHECK(newest.in_both > 2);
  CHECK(newest.in_both < 18);
  CHECK(newest.different == 0);
  // The recorder digests another fragment in each round.
  const ResultsCompared other = compare(run(1024, Slip{7, 1}), whole);
  CHECK(other.in_both == 18);
  CHECK(other.different == 1);
  CHECK((other.first == ResultKey{.part = 0, .chunk = 1, .round = 7}));
  CHECK(compare(run(1024, Slip{7, 2}), whole).different == 0);
  CHECK(compare_results(whole, {}).empty());
}

TEST_CASE("a recording with much junk is replayed without a difference") {
  FlightMemory memory(2048);
  Box box(memory.span());
  const JobOptions job{.job = 0, .workers = 3, .chunks = 2};
  box.admit(job);
  Rng rng(5);
  run_rounds(box, job, rng, 1, 1);
  for (uint32_t count = 0; count < 500; ++count) {
    box.deliver_raw(std::vector<std::byte>(10, std::byte{7}));
  }
  run_rounds(box, job, rng, 3, 1);
  const auto images = pipeline::read_flight_images(memory.image());
  REQUIRE(images);
  const FlightReplay replayed = replay(*images);
  CHECK(replayed.difference_count == 0);
  const auto& verdicts = replayed.pipelines.at(0).verdicts;
  CHECK(verdicts[static_cast<size_t>(Verdict::kTooShort)] > 100);
  CHECK(replayed.pipelines[0].judged > 100);
}

TEST_CASE("whatever a file's records hold, replaying them ends") {
  FlightMemory memory(512);
  Box box(memory.span());
  const JobOptions first{.job = 0, .workers = 3, .chunks = 2};
  const JobOptions second{.job = 1, .workers = 2, .mode = pipeline::Mode::kOptimize};
  box.admit(first);
  pipeline::JobShard& shard = box.admit(second);
  Rng rng(7);
  run_rounds(box, first, rng, 3, 1);
  run_rounds(box, second, rng, 3, 1);
  box.engine.execute({.kind = CommandKind::kExclude, .shard = &shard, .rank = 1, .generation = 22});
  const auto image = memory.image();
  uint64_t damaged = 0;
  for (uint32_t run = 0; run < 3000; ++run) {
    auto spoilt = image;
    const size_t flips = 1 + rng.below(20);
    for (size_t flip = 0; flip < flips; ++flip) {
      const size_t records_bytes = spoilt.size() - pipeline::kFlightHeadBytes;
      auto& byte = spoilt[pipeline::kFlightHeadBytes + rng.below(records_bytes)];
      byte ^= static_cast<std::byte>(1 + rng.below(255));
    }
    const auto images = pipeline::read_flight_images(spoilt);
    REQUIRE(images);
    const FlightReplay replayed = replay(*images);
    damaged += replayed.pipelines.at(0).damaged > 0 || replayed.difference_count > 0 ? 1 : 0;
  }
  CHECK(damaged > 500);
}

TEST_CASE("packets of sessions with keys are replayed like others") {
  FlightMemory memory(1024);
  Box box(memory.span());
  const JobOptions job;
  box.admit(job);
  box.run_round(job, 0);
  auto image = memory.image();
  const auto images = pipeline::read_flight_images(image);
  REQUIRE(images);
  auto* records =
      reinterpret_cast<pipeline::FlightRecord*>(image.data() + pipeline::kFlightHeadBytes);
  for (size_t index = 0; index < images->at(0).records.size(); ++index) {
    if (records[index].kind != FlightKind::kPacket) continue;
    pipeline::PacketRecord packet;
    std::memcpy(static_cast<void*>(&packet), records[index].body, sizeof(packet));
    packet.header.flags |= wire::flag::kEncrypted | wire::flag::kKeyPhase;
    std::memcpy(records[index].body, static_cast<const void*>(&packet), sizeof(packet));
  }
  const FlightReplay replayed = replay_of(image);
  CHECK(count_of(replayed, Verdict::kAggregated) > 0);
  CHECK(replayed.difference_count == 0);
}

TEST_CASE("an image whose number of records is impossible is damaged") {
  FlightMemory memory(512);
  Box box(memory.span());
  auto image = memory.image();
  auto* head = reinterpret_cast<pipeline::FlightHead*>(image.data());
  for (const uint64_t written : {UINT64_MAX, UINT64_MAX - 1}) {
    head->written = written;
    const auto images = pipeline::read_flight_images(image);
    REQUIRE_FALSE(images);
    CHECK(images.error().message.find("damaged") != std::string::npos);
  }
}

}  // namespace pboxctl
