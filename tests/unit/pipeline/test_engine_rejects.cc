#include <catch2/catch.hpp>
#include <functional>

#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

using pipeline::Counter;

struct Row {
  const char* description;
  std::function<void(Packet&)> change;
  Counter expected;
};

const Row kPushRows[] = {
    {"wrong queue", [](Packet& p) { p.header.spi ^= 1u << pipeline::kSpiPipelineShift; },
     Counter::kRejectQueue},
    {"empty place in the session table", [](Packet& p) { p.header.spi += 50; },
     Counter::kRejectSession},
    {"right place, another drawn part", [](Packet& p) { p.header.spi ^= 1u << 30; },
     Counter::kRejectSession},
    {"the way back's spi", [](Packet& p) { p.header.spi |= wire::kSpiToWorker; },
     Counter::kRejectSession},
    {"older epoch", [](Packet& p) { --p.header.epoch; }, Counter::kRejectEpoch},
    {"newer epoch", [](Packet& p) { ++p.header.epoch; }, Counter::kRejectEpoch},
    {"wrong generation", [](Packet& p) { ++p.header.generation; }, Counter::kRejectGeneration},
    {"chunk of another pipeline", [](Packet& p) { p.header.chunk = 1; }, Counter::kRejectChunk},
    {"chunk out of range", [](Packet& p) { p.header.chunk = 2; }, Counter::kRejectChunk},
    {"largest chunk", [](Packet& p) { p.header.chunk = UINT32_MAX; }, Counter::kRejectChunk},
    {"fragment out of range", [](Packet& p) { p.header.fragment = 3; }, Counter::kRejectFragment},
    {"fragment beyond any mask", [](Packet& p) { p.header.fragment = 64; },
     Counter::kRejectFragment},
    {"largest fragment", [](Packet& p) { p.header.fragment = 0xffff; }, Counter::kRejectFragment},
    {"another dtype", [](Packet& p) { p.header.dtype_scale = 1; }, Counter::kRejectDtype},
    {"unknown dtype", [](Packet& p) { p.header.dtype_scale = 15; }, Counter::kRejectDtype},
    {"a scale where there is none", [](Packet& p) { p.header.dtype_scale = 1 << 4; },
     Counter::kRejectDtype},
    {"an element less",
     [](Packet& p) {
       p.payload.resize(p.payload.size() - 4);
       p.header.payload_bytes = static_cast<uint16_t>(p.payload.size());
     },
     Counter::kRejectLength},
    {"an element more",
     [](Packet& p) {
       p.payload.resize(p.payload.size() + 4);
       p.header.payload_bytes = static_cast<uint16_t>(p.payload.size());
     },
     Counter::kRejectLength},
    {"no payload",
     [](Packet& p) {
       p.payload.clear();
       p.header.payload_bytes = 0;
     },
     Counter::kRejectLength},
    {"length field and packet disagree", [](Packet& p) { p.header.payload_bytes = 1020; },
     Counter::kRejectLength},
    {"next round", [](Packet& p) { p.header.round += 1; }, Counter::kRejectRound},
    {"far future", [](Packet& p) { p.header.round += 0x7fffffff; }, Counter::kRejectRound},
    {"two rounds ago", [](Packet& p) { p.header.round -= 2; }, Counter::kStale},
    {"long ago", [](Packet& p) { p.header.round -= 0x7fffffff; }, Counter::kStale},
    {"wrong version", [](Packet& p) { p.header.version_type = 0x20; }, Counter::kRejectVersion},
    {"unknown type", [](Packet& p) { p.header.version_type = 0x1b; }, Counter::kRejectType},
    {"a type for workers", [](Packet& p) { p.header.set_type(wire::PacketType::kResult); },
     Counter::kRejectType},
    {"a type of a later version", [](Packet& p) { p.header.set_type(wire::PacketType::kBarrier); },
     Counter::kRejectType},
    {"reserved flag", [](Packet& p) { p.header.flags = 0x80; }, Counter::kRejectReserved},
    {"a phase of keys without keys", [](Packet& p) { p.header.flags = wire::flag::kKeyPhase; },
     Counter::kRejectTag},
    {"encrypted without keys", [](Packet& p) { p.header.flags = wire::flag::kEncrypted; },
     Counter::kRejectTag},
};

// A box whose only chunk has finished rounds 0 to 3 and received one fragment of round 4.
struct OpenRound {
  JobOptions job;
  Box box;
  pipeline::JobShard* shard;

  OpenRound() : shard(&box.admit(job)) {
    for (uint32_t round = 0; round < 4; ++round) box.run_round(job, round);
    box.deliver(box.push(job, 0, 0, 1.0f, 4));
  }
};

}  // namespace

TEST_CASE("a defective push counts under its own reason, changes nothing and gets no reply") {
  for (const Row& row : kPushRows) {
    INFO(row.description);
    OpenRound at;
    Packet packet = at.box.push(at.job, 1, 0, 99.0f, 4);
    row.change(packet);
    const CounterChange change(at.box.engine);
    at.box.deliver(packet);
    CHECK(change.moved() == std::vector<Counter>{row.expected});
    CHECK(at.box.take_all().empty());
    const pipeline::Chunk& chunk = at.shard->chunks()[0];
    CHECK(chunk.claimed[0] == 1);
    CHECK(chunk.claimed[1] == 0);
    CHECK(chunk.accumulator[0][0] == 1.0f);
    CHECK(chunk.open_round() == 4);
  }
}

TEST_CASE("a PULL for a round before the first is rejected") {
  Box box;
  const JobOptions job;
  box.admit(job);
  const CounterChange change(box.engine);
  box.deliver(box.push(job, 0, 0, 1.0f, UINT32_MAX));
  box.deliver(box.pull(job, 0, UINT32_MAX));
  CHECK(box.count(Counter::kRejectRound) == 2);
  CHECK(change.moved() == std::vector<Counter>{Counter::kPullsReceived, Counter::kRejectRound});
  CHECK(box.take_all().empty());
}

TEST_CASE("the push without a defect is aggregated") {
  OpenRound at;
  const CounterChange change(at.box.engine);
  at.box.deliver(at.box.push(at.job, 1, 0, 99.0f, 4));
  CHECK(change.moved() == std::vector<Counter>{Counter::kAggregated, Counter::kAggregatedBytes});
  CHECK(at.shard->chunks()[0].accumulator[0][0] == 100.0f);
}

TEST_CASE("a wrong tag counts, changes nothing, and does not move the worker's address") {
  OpenRound at;
  const auto before = at.shard->sessions()[1].endpoint;
  auto bytes = wire_bytes(at.box.push(at.job, 1, 0, 99.0f, 4));
  for (const size_t position : {size_t{40}, bytes.size() - 16, bytes.size() - 1}) {
    auto damaged = bytes;
    damaged[position] ^= std::byte{1};
    const CounterChange change(at.box.engine);
    at.box.deliver_raw(damaged);
    CHECK(change.moved() == std::vector<Counter>{Counter::kRejectTag});
  }
  CHECK(at.shard->chunks()[0].claimed[1] == 0);
  CHECK(at.shard->sessions()[1].endpoint == before);
  CHECK(at.box.take_all().empty());
}

TEST_CASE(
    "a packet of an earlier epoch does not move the worker's address, however high its number") {
  OpenRound at;
  const auto before = at.shard->sessions()[0].endpoint;
  Packet packet = at.box.push(at.job, 0, 1, 99.0f, 4);
  --packet.header.epoch;
  packet.header.packet_number += 1'000'000;
  packet.from = address_of(1, 5);
  at.box.deliver(packet);
  CHECK(at.box.count(Counter::kRejectEpoch) == 1);
  CHECK(at.shard->sessions()[0].endpoint == before);
  at.box.deliver(at.box.pull(at.job, 0, 4));
  const auto sent = at.box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].to == before);
}

TEST_CASE("a packet shorter than header and tag counts as too short, whatever its length") {
  OpenRound at;
  const auto whole = wire_bytes(at.box.push(at.job, 1, 0, 1.0f, 4));
  for (size_t length = 0; length < limits::kPacketOverheadBytes; ++length) {
    at.box.deliver_raw({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length)});
  }
  CHECK(at.box.count(Counter::kRejectShort) == limits::kPacketOverheadBytes);
}

TEST_CASE("a PULL with a wrong length, epoch, chunk or round gets no answer") {
  const Row rows[] = {
      {"short", [](Packet& p) { p.header.payload_bytes = 4, p.payload.resize(4); },
       Counter::kRejectLength},
      {"long", [](Packet& p) { p.header.payload_bytes = 24, p.payload.resize(24); },
       Counter::kRejectLength},
      {"epoch", [](Packet& p) { ++p.header.epoch; }, Counter::kRejectEpoch},
      {"generation", [](Packet& p) { --p.header.generation; }, Counter::kRejectGeneration},
      {"chunk", [](Packet& p) { p.header.chunk = 1; }, Counter::kRejectChunk},
      {"future", [](Packet& p) { ++p.header.round; }, Counter::kRejectRound},
  };
  for (const Row& row : rows) {
    INFO(row.description);
    OpenRound at;
    Packet packet = at.box.pull(at.job, 0, 4);
    row.change(packet);
    const CounterChange change(at.box.engine);
    at.box.deliver(packet);
    auto expected = std::vector<Counter>{Counter::kPullsReceived, row.expected};
    std::sort(expected.begin(), expected.end());
    CHECK(change.moved() == expected);
    CHECK(at.box.take_all().empty());
  }
}

TEST_CASE("a PULL of an old round is told which round has finished since") {
  OpenRound at;
  at.box.deliver(at.box.pull(at.job, 0, 2));
  const auto sent = at.box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == wire::PacketType::kStatus);
  CHECK(sent[0].header.round == 2);
  CHECK(sent[0].status().finished_round == 4);
}

TEST_CASE("every packet in is accounted for: aggregated, duplicate, stale, pull or rejected") {
  OpenRound at;
  for (const Row& row : kPushRows) {
    Packet packet = at.box.push(at.job, 1, 0, 99.0f, 4);
    row.change(packet);
    at.box.deliver(packet);
  }
  at.box.deliver(at.box.push(at.job, 0, 0, 1.0f, 4));
  at.box.deliver(at.box.pull(at.job, 0, 4));
  uint64_t accounted = at.box.count(Counter::kAggregated) + at.box.count(Counter::kDuplicate) +
                       at.box.count(Counter::kStale) + at.box.count(Counter::kPullsReceived);
  for (auto index = static_cast<size_t>(Counter::kRejectShort);
       index <= static_cast<size_t>(Counter::kRejectRound); ++index) {
    accounted += at.box.engine.counters().values[index].get();
  }
  CHECK(at.box.count(Counter::kRxPackets) == accounted);
}

}  // namespace pbox::test
