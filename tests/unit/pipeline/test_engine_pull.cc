// Delivery pull: announcements of finished chunks, and answers to PULL.
#include <catch2/catch.hpp>

#include "nic/wire/path_probe.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_pull_test {
namespace {

using pipeline::Counter;
using wire::PacketType;

const JobOptions kJob{.workers = 3, .chunks = 2, .delivery = wire::Delivery::kPull};

Packet path_probe(Box& box, uint32_t payload_bytes) {
  Packet packet = box.pull(kJob, 1, 0);
  packet.header.payload_bytes = static_cast<uint16_t>(payload_bytes);
  packet.payload.assign(payload_bytes, std::byte{0});
  return packet;
}

}  // namespace

TEST_CASE("a finished chunk is announced to every worker, by priority, and not sent") {
  Box box;
  auto& shard = box.admit(kJob);
  shard.chunks()[1].priority = 1;
  for (const uint32_t chunk : {0, 1}) {
    for (uint32_t rank = 0; rank < 3; ++rank) box.push_chunk(kJob, rank, 1.0f, 0, chunk);
  }
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 6);
  std::vector<uint32_t> ranks_told(2, 0);
  for (const Sent& packet : sent) {
    CHECK(packet.header.type() == PacketType::kStatus);
    CHECK(packet.header.round == 0);
    CHECK(packet.status().finished_round == 1);
    CHECK(packet.status().received_mask == 0b111);
    CHECK(packet.status().missing_workers == 0);
    ranks_told[packet.header.chunk] |= 1u << (packet.header.spi & 63);
  }
  CHECK(sent[0].header.chunk == 1);
  CHECK(ranks_told == std::vector<uint32_t>{0b111, 0b111});
  CHECK(box.count(Counter::kAnnounced) == 6);
  CHECK(box.take_all().empty());
}

TEST_CASE("a path probe is answered by a STATUS of its length, and changes nothing") {
  Box box;
  auto& shard = box.admit(kJob);
  for (const uint32_t bytes : {wire::kPathProbeBytesMin, shard.fragment_bytes}) {
    box.deliver(path_probe(box, bytes));
    const auto sent = box.take_all();
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].header.type() == PacketType::kStatus);
    CHECK(sent[0].header.payload_bytes == bytes);
    CHECK(sent[0].payload == std::vector<std::byte>(bytes));
    CHECK(sent[0].to == address_of(0, 1));
  }
  CHECK(shard.chunks()[0].open_round() == 0);
  CHECK(shard.chunks()[0].claimed[1] == 0);
}

TEST_CASE("a path probe that is shorter or longer than one may be is no PULL either") {
  Box box;
  auto& shard = box.admit(kJob);
  for (const uint32_t bytes : {wire::kPathProbeBytesMin - 1, shard.fragment_bytes + 1}) {
    const uint64_t rejected = box.count(Counter::kRejectLength);
    box.deliver(path_probe(box, bytes));
    CHECK(box.take_all().empty());
    CHECK(box.count(Counter::kRejectLength) == rejected + 1);
  }
}

TEST_CASE("a worker's first pull of a round is not a resend, and its second is") {
  Box box;
  box.admit(kJob);
  box.run_round(kJob, 0);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    box.deliver(box.pull(kJob, rank, 0));
    const auto sent = box.take_all();
    REQUIRE(sent.size() == 3);
    for (const Sent& packet : sent) {
      CHECK(packet.header.type() == PacketType::kResult);
      CHECK(packet.header.round == 0);
      CHECK((packet.header.flags & wire::flag::kRetransmission) == 0);
      CHECK(packet.to == address_of(0, rank));
      CHECK(packet.value() == 3.0f);
    }
  }
  CHECK(box.count(Counter::kResultsResent) == 0);
  box.deliver(box.pull(kJob, 1, 0, 0b101));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.fragment == 1);
  CHECK((sent[0].header.flags & wire::flag::kRetransmission) != 0);
  CHECK(box.count(Counter::kResultsResent) == 1);
  box.run_round(kJob, 1);
  box.deliver(box.pull(kJob, 1, 1));
  CHECK(box.take_all().size() == 3);
  CHECK(box.count(Counter::kResultsResent) == 1);
}

TEST_CASE("first pulls use none of the resend budget") {
  Box box;
  JobOptions job = kJob;
  job.credit_bytes = limits::kCreditUnitBytes;  // the budget is less than one chunk
  box.admit(job);
  for (uint32_t round = 0; round < 8; ++round) {
    box.run_round(job, round);
    box.deliver(box.pull(job, 0, round));
    CHECK(box.take_all().size() == 3);
  }
  CHECK(box.count(Counter::kResendsRefused) == 0);
}

TEST_CASE("pulls are answered by priority, then in the order of arrival") {
  Box box;
  auto& shard = box.admit(kJob);
  shard.chunks()[1].priority = 1;
  for (const uint32_t chunk : {0, 1}) box.run_round(kJob, 0, chunk);
  const uint32_t asked[][2] = {{0, 0}, {1, 0}, {2, 1}, {0, 1}};
  for (const auto& [rank, chunk] : asked) box.deliver(box.pull(kJob, rank, 0, 0, chunk));
  std::vector<std::pair<uint32_t, uint32_t>> order;
  for (const Sent& packet : box.take_all()) {
    const std::pair<uint32_t, uint32_t> to{packet.header.spi & 63, packet.header.chunk};
    if (order.empty() || order.back() != to) order.push_back(to);
  }
  CHECK(order == std::vector<std::pair<uint32_t, uint32_t>>{{2, 1}, {0, 1}, {0, 0}, {1, 0}});
}

TEST_CASE("a pull of an open round is answered with its progress") {
  Box box;
  box.admit(kJob);
  box.push_chunk(kJob, 0, 1.0f);
  box.deliver(box.pull(kJob, 0, 0));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == PacketType::kStatus);
  CHECK(sent[0].status().missing_workers == 2);
}

TEST_CASE("with delivery pull a late duplicate push causes no resend") {
  Box box;
  box.admit(kJob);
  box.run_round(kJob, 0);
  box.deliver(box.push(kJob, 1, 2, 99.0f, 0));
  CHECK(box.take_all().empty());
  CHECK(box.count(Counter::kDuplicate) == 1);
}

}  // namespace pbox::test::engine_pull_test
