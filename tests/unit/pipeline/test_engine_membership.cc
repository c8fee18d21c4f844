#include <catch2/catch.hpp>

#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_membership_test {

using pipeline::CommandKind;
using pipeline::Counter;
using pipeline::JobShard;
using wire::PacketType;

namespace {

constexpr uint32_t kFreshSpi = 0x77u << 24 | kPipeline << pipeline::kSpiPipelineShift | 700;

void admit(Box& box, JobShard& shard, uint32_t rank, uint16_t generation) {
  box.engine.execute({.kind = CommandKind::kAdmit,
                      .shard = &shard,
                      .credit_bytes = 64 * 1024,
                      .rank = rank,
                      .spi = kFreshSpi,
                      .generation = generation});
}

void exclude(Box& box, JobShard& shard, uint32_t rank, uint16_t generation) {
  box.engine.execute(
      {.kind = CommandKind::kExclude, .shard = &shard, .rank = rank, .generation = generation});
}

// Returns the packet as one of the rank's new session.
Packet renewed(Packet packet, uint16_t generation = 20) {
  packet.header.spi = kFreshSpi;
  packet.header.generation = generation;
  packet.from = address_of(5, 5);
  return packet;
}

Packet of_generation(Packet packet, uint16_t generation) {
  packet.header.generation = generation;
  return packet;
}

// Returns a STATE by which `rank` gives back a fragment of chunk 0's result of `round`.
Packet state(Box& box, const JobOptions& job, uint32_t rank, uint32_t fragment, float value,
             uint32_t round) {
  Packet packet = box.push(job, rank, fragment, value, round);
  packet.header.set_type(PacketType::kState);
  return packet;
}

}  // namespace

TEST_CASE("a rank that rejoins has a new session, and its pushed fragments still count") {
  Box box;
  const JobOptions job;
  JobShard& shard = box.admit(job);
  box.deliver(box.push(job, 1, 0, 2.0f));
  admit(box, shard, 1, 20);

  const CounterChange change(box.engine);
  box.deliver(box.push(job, 1, 1, 2.0f));  // from the former session
  CHECK(change.moved() == std::vector{Counter::kRejectSession});
  for (const uint32_t fragment : {0u, 1u, 2u}) {
    box.deliver(renewed(box.push(job, 1, fragment, 7.0f)));
  }
  CHECK(box.count(Counter::kDuplicate) == 1);
  box.push_chunk(job, 0, 1.0f);
  bool of_first_fragment = false;
  for (const Sent& sent : box.take_all()) {
    if (sent.header.spi != (kFreshSpi | wire::kSpiToWorker)) continue;
    CHECK(sent.to == address_of(5, 5));
    CHECK(sent.value() == (sent.header.fragment == 0 ? 3.0f : 8.0f));
    of_first_fragment = of_first_fragment || sent.header.fragment == 0;
  }
  CHECK(of_first_fragment);
}

TEST_CASE("a rank that has rejoined is sent nothing until its first packet arrives") {
  Box box;
  const JobOptions job;
  JobShard& shard = box.admit(job);
  box.push_chunk(job, 0, 1.0f);
  box.push_chunk(job, 1, 1.0f);
  admit(box, shard, 1, 20);
  for (const Sent& sent : box.take_all()) CHECK(sent.to == address_of(0, 0));
  box.deliver(renewed(box.pull(job, 1, 0)));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 3);
  for (const Sent& one : sent) CHECK(one.to == address_of(5, 5));
}

TEST_CASE("an exclusion finishes a round that waits only for the excluded rank") {
  Box box;
  const JobOptions job{.workers = 3};
  JobShard& shard = box.admit(job);
  box.push_chunk(job, 0, 1.0f);
  box.push_chunk(job, 2, 4.0f);
  CHECK(box.take_all().empty());
  exclude(box, shard, 1, 21);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 6);
  for (const Sent& one : sent) {
    CHECK_FALSE(one.to == address_of(0, 1));
    CHECK(one.value() == 5.0f);
    CHECK(one.header.generation == 21);
  }
}

TEST_CASE("rounds continue without an excluded rank, whose packets are rejected") {
  Box box;
  const JobOptions job{.workers = 3};
  JobShard& shard = box.admit(job);
  box.run_round(job, 0);
  exclude(box, shard, 1, 21);
  const CounterChange change(box.engine);
  box.deliver(of_generation(box.push(job, 1, 0, 9.0f, 1), 21));
  box.deliver(box.push(job, 0, 0, 9.0f, 1));  // from the former generation
  CHECK(change.moved() == std::vector{Counter::kRejectSession, Counter::kRejectGeneration});
  for (const uint32_t rank : {0u, 2u}) {
    for (const uint32_t fragment : {0u, 1u, 2u}) {
      box.deliver(of_generation(box.push(job, rank, fragment, 1.0f, 1), 21));
    }
  }
  CHECK(box.take_all().size() == 6);
}

TEST_CASE("a partial result is divided, fragment by fragment, by the number of workers it names") {
  Box box;
  JobOptions job{.workers = 3, .reduction = pipeline::Reduction::kMean};
  auto spec = spec_of(job);
  spec.partial = true;
  auto made = pipeline::JobShard::create(spec);
  REQUIRE(made.ok());
  JobShard& shard = **made;
  box.engine.execute({.kind = CommandKind::kInstall, .shard = &shard});
  box.deliver(box.push(job, 1, 0, 6.0f));
  box.push_chunk(job, 0, 3.0f);
  box.push_chunk(job, 2, 3.0f);
  exclude(box, shard, 1, 21);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 6);
  for (const Sent& one : sent) {
    const bool all = one.header.fragment == 0;
    CHECK(((one.header.flags & wire::flag::kPartial) == 0) == all);
    CHECK(one.header.contributors() == (all ? 0 : 2));
    CHECK(one.value() == (all ? 4.0f : 3.0f));
  }
  box.remove(shard);
}

TEST_CASE("rounds wait again for an excluded rank that is admitted again") {
  Box box;
  const JobOptions job;
  JobShard& shard = box.admit(job);
  box.run_round(job, 0);
  exclude(box, shard, 1, 21);
  admit(box, shard, 1, 22);
  for (const uint32_t fragment : {0u, 1u, 2u}) {
    box.deliver(of_generation(box.push(job, 0, fragment, 1.0f, 1), 22));
  }
  CHECK(box.take_all().empty());
  for (const uint32_t fragment : {0u, 1u, 2u}) {
    box.deliver(renewed(box.push(job, 1, fragment, 2.0f, 1), 22));
  }
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 6);
  CHECK(sent[0].value() == 3.0f);
}

TEST_CASE("a rank that rejoins when all were gone finishes the rounds it had pushed in full") {
  Box box;
  const JobOptions job;
  JobShard& shard = box.admit(job);
  box.push_chunk(job, 1, 2.0f);
  exclude(box, shard, 1, 21);
  exclude(box, shard, 0, 22);
  CHECK(box.count(Counter::kRoundsFinished) == 0);
  admit(box, shard, 1, 23);
  CHECK(box.count(Counter::kRoundsFinished) == 1);
  box.deliver(renewed(box.pull(job, 1, 0), 23));
  size_t results = 0;
  for (const Sent& one : box.take_all()) {
    if (one.header.type() != PacketType::kResult) continue;
    CHECK(one.value() == 2.0f);
    ++results;
  }
  CHECK(results == 3);
}

TEST_CASE(
    "a round that a rank consumed before the box was lost is finished by that rank's copy alone") {
  Box box;
  const JobOptions job{.workers = 3, .reduction = pipeline::Reduction::kMean};
  auto spec = spec_of(job);
  spec.chunks[0].first_round = 7;
  spec.chunks[0].copy_rank = 1;
  auto made = pipeline::JobShard::create(spec);
  REQUIRE(made.ok());
  box.engine.execute({.kind = CommandKind::kInstall, .shard = made->get()});

  const CounterChange change(box.engine);
  box.deliver(box.push(job, 0, 0, 9.0f, 7));    // rank 0 has nothing to give back
  box.deliver(box.push(job, 1, 0, 9.0f, 7));    // a PUSH is not a copy
  box.deliver(state(box, job, 2, 0, 9.0f, 7));  // not the rank that gives the copy
  box.deliver(box.pull(job, 0, 6));             // an older round
  CHECK(change.moved() == std::vector{Counter::kDuplicate, Counter::kPullsReceived,
                                      Counter::kRejectType, Counter::kRejectRound});
  CHECK(box.take_all().empty());
  box.deliver(box.pull(job, 0, 7));
  const auto status = box.take_all();
  REQUIRE(status.size() == 1);
  CHECK(status[0].status().received_mask == 0b111);
  CHECK(status[0].status().missing_workers == 1);
  CHECK(status[0].status().first_missing_rank == 1);

  for (const uint32_t fragment : {2u, 0u, 1u}) {
    box.deliver(state(box, job, 1, fragment, 5.0f, 7));
  }
  for (const uint32_t rank : {0u, 1u, 2u}) box.deliver(box.pull(job, rank, 7));
  const auto sent = box.take_all();
  REQUIRE(sent.size() >= 6);
  for (const Sent& one : sent) {
    if (one.header.type() == PacketType::kResult) CHECK(one.value() == 5.0f);
  }
  // The next round is an ordinary one.
  box.deliver(state(box, job, 1, 0, 5.0f, 8));
  CHECK(box.count(Counter::kRejectType) == 2);
  for (const uint32_t rank : {0u, 1u, 2u}) box.push_chunk(job, rank, 3.0f, 8);
  for (const Sent& one : box.take_all()) {
    if (one.header.round == 8) CHECK(one.value() == 3.0f);
  }
  box.remove(**made);
}

TEST_CASE(
    "weights that are given back are not stepped, and the optimizer counts from its first step") {
  Box box;
  JobOptions job{.workers = 2, .mode = pipeline::Mode::kOptimize};
  job.optimizer.kind = optimizer::OptimizerKind::kAdam;
  job.optimizer.learning_rate = 0.5f;
  auto spec = spec_of(job);
  spec.chunks[0].first_round = 7;
  spec.chunks[0].copy_rank = 1;
  auto made = pipeline::JobShard::create(spec);
  REQUIRE(made.ok());
  box.engine.execute({.kind = CommandKind::kInstall, .shard = made->get()});
  for (const uint32_t fragment : {0u, 1u, 2u}) {
    box.deliver(state(box, job, 1, fragment, 5.0f, 7));
  }
  CHECK(box.count(Counter::kRoundsFinished) == 1);
  for (const uint32_t rank : {0u, 1u}) box.deliver(box.pull(job, rank, 7));
  for (const Sent& one : box.take_all()) {
    if (one.header.type() == PacketType::kResult) CHECK(one.value() == 5.0f);
  }
  // Adam's first step has the length of the learning rate, whatever the gradient (Kingma and Ba,
  // ICLR 2015).
  for (const uint32_t rank : {0u, 1u}) box.push_chunk(job, rank, 3.0f, 8);
  size_t results = 0;
  for (const Sent& one : box.take_all()) {
    if (one.header.round != 8 || one.header.type() != PacketType::kResult) continue;
    CHECK(one.value() == Approx(4.5f));
    ++results;
  }
  CHECK(results == 6);
  box.remove(**made);
}

TEST_CASE("open rounds are reported in the order of the shard's chunks") {
  Box box;
  const JobOptions job{.chunks = 3};
  JobShard& shard = box.admit(job);
  box.run_round(job, 0, 1);
  box.run_round(job, 1, 1);
  box.run_round(job, 0, 2);
  std::array<uint32_t, 3> rounds{};
  box.engine.execute({.kind = CommandKind::kReportRounds, .shard = &shard, .rounds = rounds});
  CHECK(rounds == std::array{0u, 2u, 1u});
}

TEST_CASE("rounds that exclusions finish in succession do not pile up in the egress queue") {
  Box box;
  const JobOptions job;
  JobShard& shard = box.admit(job);
  box.push_chunk(job, 0, 1.0f);
  exclude(box, shard, 1, 20);
  for (uint32_t round = 1; round <= 5; ++round) {
    admit(box, shard, 1, 20);
    // A rank that keeps the protocol would wait for the result, which has not left.
    box.push_chunk(job, 0, static_cast<float>(round + 1), round);
    exclude(box, shard, 1, 20);
  }
  CHECK(shard.chunks()[0].open_round() == 6);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 3);
  for (const Sent& packet : sent) {
    CHECK(packet.header.round == 5);
    CHECK(packet.value() == 6.0f);
  }
}

TEST_CASE("STATUS names the lowest present rank that is late, also after ranks go and return") {
  Box box;
  JobOptions job;
  job.workers = 4;
  JobShard& shard = box.admit(job);
  box.push_chunk(job, 2, 1.0f);
  const auto first_late = [&](uint16_t generation) {
    box.take_all();
    box.deliver(of_generation(box.pull(job, 2, 0), generation));
    const auto sent = box.take_all();
    REQUIRE(sent.size() == 1);
    const wire::StatusPayload status = sent[0].status();
    return std::pair(uint32_t{status.missing_workers}, uint32_t{status.first_missing_rank});
  };
  CHECK(first_late(shard.generation) == std::pair(3u, 0u));
  exclude(box, shard, 0, 20);
  CHECK(first_late(20) == std::pair(2u, 1u));
  box.deliver(of_generation(box.push(job, 1, 0, 1.0f), 20));  // rank 1 still lacks fragments
  CHECK(first_late(20) == std::pair(2u, 1u));
  for (const uint32_t fragment : {1u, 2u}) {
    box.deliver(of_generation(box.push(job, 1, fragment, 1.0f), 20));
  }
  CHECK(first_late(20) == std::pair(1u, 3u));
  admit(box, shard, 0, 21);
  CHECK(first_late(21) == std::pair(2u, 0u));
}

}  // namespace pbox::test::engine_membership_test
