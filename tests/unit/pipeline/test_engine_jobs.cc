// Several jobs on one pipeline, and the control thread's commands.
#include <catch2/catch.hpp>

#include "tests/unit/pipeline/box.h"

namespace pbox::test {

using pipeline::Command;
using pipeline::CommandKind;
using pipeline::Counter;
using wire::PacketType;

TEST_CASE("packets of one job never touch another's chunks, memory or workers") {
  Box box;
  const JobOptions one{.job = 0};
  const JobOptions two{.job = 1};
  auto& first = box.admit(one);
  auto& second = box.admit(two);
  box.push_chunk(two, 0, 50.0f);
  const std::vector<std::byte> before(second.arena().data(),
                                      second.arena().data() + second.arena().taken());
  for (uint32_t round = 0; round < 6; ++round) {
    for (const Sent& packet : box.run_round(one, round)) {
      CHECK((packet.to == address_of(0, 0) || packet.to == address_of(0, 1)));
      CHECK(packet.value() == 2.0f);
    }
    Packet crossed = box.push(one, 0, 0, 9.0f, round);  // one's session, the other's epoch
    crossed.header.epoch = 11;
    crossed.header.generation = 21;
    box.deliver(crossed);
  }
  CHECK(box.count(Counter::kRejectEpoch) == 6);
  CHECK(first.chunks()[0].open_round() == 6);
  CHECK(second.chunks()[0].open_round() == 0);
  CHECK((std::vector<std::byte>(second.arena().data(), second.arena().data() + before.size()) ==
         before));
  box.push_chunk(two, 1, 1.0f);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 6);
  for (const Sent& packet : sent) CHECK(packet.value() == 51.0f);
}

TEST_CASE("a change of credit is announced to every worker that is reachable") {
  Box box;
  const JobOptions job{.workers = 3};
  const JobOptions other{.job = 1};
  auto& shard = box.admit(job);
  box.admit(other);
  box.deliver(box.push(other, 0, 0, 1.0f));
  box.deliver(box.push(job, 0, 0, 1.0f));
  box.deliver(box.push(job, 2, 0, 1.0f));
  box.engine.execute(
      Command{.kind = CommandKind::kSetCredit, .shard = &shard, .credit_bytes = 8192});
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].to == address_of(0, 0));
  CHECK(sent[1].to == address_of(0, 2));
  for (const Sent& packet : sent) {
    CHECK(packet.header.type() == PacketType::kGrant);
    CHECK(packet.header.credit == 16);
    CHECK(packet.header.payload_bytes == 0);
    CHECK(packet.header.epoch == 10);
    CHECK(packet.header.generation == 20);
  }
  box.deliver(box.pull(job, 1, 0));  // other ranks learn it from the next packet they are sent
  CHECK(box.take_all().at(0).header.credit == 16);
}

TEST_CASE("a removed job's sessions are void and the other job continues") {
  Box box;
  const JobOptions one{.job = 0};
  const JobOptions two{.job = 1};
  auto& first = box.admit(one);
  box.admit(two);
  box.push_chunk(one, 0, 1.0f);
  box.push_chunk(one, 1, 1.0f);
  REQUIRE_FALSE(box.engine.to_send().empty());  // results are leaving
  box.deliver(box.pull(one, 0, 0));
  const Packet late = box.push(one, 0, 0, 1.0f, 1);
  box.remove(first);
  for (const Sent& packet : box.take_all()) CHECK(packet.header.type() == PacketType::kStatus);
  const CounterChange change(box.engine);
  box.deliver(late);
  CHECK(change.moved() == std::vector<Counter>{Counter::kRejectSession});
  CHECK(box.run_round(two, 0).size() == 6);
}

TEST_CASE("a queued answer does not leave once its job is removed") {
  Box box;
  const JobOptions job{.job = 0};
  auto& shard = box.admit(job);
  box.deliver(box.push(job, 0, 0, 1.0f));
  box.deliver(box.pull(job, 0, 0));  // a STATUS, to an address in the session
  box.remove(shard);
  CHECK(box.take_all().empty());
  box.admit(job);
  box.deliver(box.pull(job, 0, 0));
  CHECK(box.take_all().size() == 1);
}

TEST_CASE("a new session may take a removed one's place, and the old spi stays rejected") {
  Box box;
  JobOptions job;
  auto& first = box.admit(job);
  const Packet old_push = box.push(job, 0, 0, 77.0f);
  box.remove(first);
  auto spec = spec_of(job);
  for (auto& session : spec.sessions) session.spi ^= 1u << 27;  // same index, another random part
  const auto shard = pipeline::JobShard::create(spec);
  REQUIRE(shard.ok());
  box.engine.execute({.kind = CommandKind::kInstall, .shard = shard->get()});
  box.deliver(old_push);
  CHECK(box.count(Counter::kRejectSession) == 1);
  Packet fresh = box.push(job, 0, 0, 1.0f);
  fresh.header.spi = spec.sessions[0].spi;
  box.deliver(fresh);
  CHECK(box.count(Counter::kAggregated) == 1);
  CHECK((*shard)->chunks()[0].accumulator[0][0] == 1.0f);
}

TEST_CASE("only newer packet numbers move a worker's address") {
  Box box;
  const JobOptions job;
  const auto& session = box.admit(job).sessions()[0];
  CHECK_FALSE(session.reachable);
  const auto hear = [&](uint64_t number, const nic::Endpoint& from) {
    Packet packet = box.pull(job, 0, 0);
    packet.header.packet_number = number;
    packet.from = from;
    box.deliver(packet);
    return box.take_all().at(0).to;
  };
  const auto home = address_of(0, 0);
  const auto moved = address_of(5, 5);
  CHECK(hear(10, home) == home);
  CHECK(hear(9, moved) == home);   // late
  CHECK(hear(10, moved) == home);  // replayed
  CHECK(hear(11, moved) == moved);
  CHECK(hear(10, home) == moved);
}

TEST_CASE("a worker's first packet sets its address, whatever its packet number") {
  Box box;
  const JobOptions job;
  const auto& session = box.admit(job).sessions()[0];
  Packet packet = box.pull(job, 0, 0);
  packet.header.packet_number = 0;
  box.deliver(packet);
  CHECK(session.reachable);
  CHECK(box.take_all().at(0).to == address_of(0, 0));
}

TEST_CASE("two busy jobs share the egress about equally, whatever their fragment sizes") {
  Box box;
  const JobOptions large{
      .job = 0, .workers = 2, .fragment_bytes = 8192, .chunk_elements = 8 * 2048, .chunks = 30};
  const JobOptions small{
      .job = 1, .workers = 4, .fragment_bytes = 1024, .chunk_elements = 8 * 256, .chunks = 120};
  box.admit(large);
  box.admit(small);
  for (const JobOptions* job : {&large, &small}) {
    for (uint32_t chunk = 0; chunk < job->chunks; ++chunk) {
      for (uint32_t rank = 0; rank < job->workers; ++rank) {
        box.push_chunk(*job, rank, 1.0f, 0, chunk);
      }
    }
  }
  int64_t bytes[2] = {};
  while (bytes[0] + bytes[1] < 6'000'000) {
    for (const Sent& packet : box.take_burst()) {
      bytes[packet.header.epoch - 10] += static_cast<int64_t>(packet.payload.size());
    }
    const auto apart = std::abs(bytes[0] - bytes[1]);
    REQUIRE(apart <= 4 * int64_t{limits::kPacketBytesMax});
  }
}

TEST_CASE("the copies of successive chunks start with different workers") {
  Box box;
  const JobOptions job{.workers = 4, .chunks = 4};
  box.admit(job);
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    const auto sent = box.run_round(job, 0, chunk);
    REQUIRE(sent.size() == 12);
    CHECK(sent[0].to == address_of(0, chunk));
  }
}

TEST_CASE("a port that takes fewer packets than offered is offered the rest once") {
  Box box;
  const JobOptions job;
  box.admit(job);
  box.push_chunk(job, 0, 1.0f);
  box.push_chunk(job, 1, 1.0f);
  const auto offered = box.engine.to_send();
  REQUIRE(offered.size() == 6);
  const uint64_t third = offered[2].header.packet_number;
  box.engine.sent(2);
  const auto rest = box.engine.to_send();
  REQUIRE(rest.size() == 4);
  CHECK(rest[0].header.packet_number == third);
  box.engine.sent(4);
  CHECK(box.engine.to_send().empty());
  CHECK(box.count(Counter::kTxPackets) == 6);
  CHECK(box.count(Counter::kTxBytes) == 6 * (1024 + limits::kPacketOverheadBytes));
}

}  // namespace pbox::test
