// The order in which one job's results leave: by priority, whichever part they belong to, and
// whether they leave for the first time or again.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

bool is_resent(const Sent& packet) {
  return (packet.header.flags & wire::flag::kRetransmission) != 0;
}

uint32_t part_of(const Sent& packet) {
  return packet.header.epoch - 10;
}

void push_by_all(Box& box, const JobOptions& job, uint32_t chunk, uint32_t round = 0) {
  for (uint32_t rank = 0; rank < job.workers; ++rank) box.push_chunk(job, rank, 1.0f, round, chunk);
}

}  // namespace

TEST_CASE("an urgent result of one part leaves before less urgent results of the job's others") {
  Box box;
  const JobOptions first{.job = 0, .name = "a", .chunks = 40};
  const JobOptions second{.job = 1, .name = "a", .chunks = 40};
  box.admit(first);
  auto& urgent = box.admit(second);
  for (auto& chunk : urgent.chunks()) chunk.priority = 5;
  for (uint32_t chunk = 0; chunk < 40; ++chunk) push_by_all(box, first, chunk);
  for (uint32_t chunk = 0; chunk < 40; ++chunk) push_by_all(box, second, chunk);
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 2u * 40 * 2 * 3);
  for (size_t index = 0; index < sent.size(); ++index) {
    REQUIRE(part_of(sent[index]) == (index < sent.size() / 2 ? 1 : 0));
  }
}

TEST_CASE("results of equal priority leave in the order in which they finished, over all parts") {
  Box box;
  const JobOptions parts[] = {{.job = 0, .name = "a", .workers = 1, .chunks = 6},
                              {.job = 1, .name = "a", .workers = 1, .chunks = 6}};
  for (const JobOptions& part : parts) box.admit(part);
  const uint32_t order[] = {1, 1, 0, 1, 0, 0, 0, 1};
  uint32_t next[2] = {};
  for (const uint32_t part : order) push_by_all(box, parts[part], next[part]++);
  std::vector<uint32_t> left;
  for (const Sent& packet : box.take_all()) {
    if (packet.header.fragment == 0) left.push_back(part_of(packet));
  }
  // A part's chunks leave two at a time.
  CHECK(left == std::vector<uint32_t>{1, 1, 0, 0, 1, 1, 0, 0});
}

TEST_CASE("a job with many parts sends no more than a job with one") {
  Box box;
  std::vector<JobOptions> parts;
  for (uint32_t job = 0; job < 4; ++job) {
    parts.push_back({.job = job, .name = job < 3 ? "many" : "one", .chunks = 400});
  }
  for (const JobOptions& part : parts) box.admit(part);
  for (const JobOptions& part : parts) {
    for (uint32_t chunk = 0; chunk < part.chunks; ++chunk) push_by_all(box, part, chunk);
  }
  int64_t many = 0, one = 0;
  while (many + one < 2'000'000) {
    for (const Sent& packet : box.take_burst()) {
      (part_of(packet) == 3 ? one : many) += static_cast<int64_t>(packet.payload.size());
    }
    REQUIRE(std::abs(many - one) <= 4 * int64_t{limits::kPacketBytesMax});
  }
}

TEST_CASE("an urgent result overtakes a fan-out between two ranks, and each rank has all once") {
  Box box;
  const JobOptions job{
      .workers = 8, .fragment_bytes = 8192, .chunk_elements = 5 * 2048, .chunks = 3};
  auto& shard = box.admit(job);
  shard.chunks()[2].priority = 1;
  push_by_all(box, job, 0);
  push_by_all(box, job, 1);
  // One burst has the two chunks for some of the ranks.
  std::vector<Sent> sent = box.take_burst();
  const size_t before = sent.size();
  REQUIRE(before > 8);
  REQUIRE(before < 8 * 10);
  push_by_all(box, job, 2);
  const auto rest = box.take_all();
  sent.insert(sent.end(), rest.begin(), rest.end());
  std::map<std::pair<std::string, uint64_t>, int> copies;
  size_t overtaken = 0, urgent = 0;
  for (size_t index = 0; index < sent.size(); ++index) {
    const Sent& packet = sent[index];
    ++copies[{nic::to_string(packet.to),
              uint64_t{packet.header.chunk} << 32 | packet.header.fragment}];
    if (packet.header.chunk == 2) {
      ++urgent;
    } else if (index >= before && urgent < 8 * 5) {
      ++overtaken;
    }
  }
  CHECK(overtaken <= 10);  // the rest of the two chunks for one rank
  CHECK(copies.size() == 8u * 3 * 5);
  for (const auto& [where, count] : copies) CHECK(count == 1);
  CHECK(shard.chunks()[0].fanned_out_rounds == 1);
}

TEST_CASE("an urgent first copy does not wait behind unimportant resends, of which none starves") {
  Box box;
  const JobOptions job{.workers = 2, .chunks = 96, .credit_bytes = 1 << 20};
  auto& shard = box.admit(job);
  for (uint32_t chunk = 0; chunk < 32; ++chunk) box.run_round(job, 0, chunk);
  for (uint32_t chunk = 0; chunk < 32; ++chunk) box.deliver(box.pull(job, 0, 0, 0, chunk));
  for (uint32_t chunk = 32; chunk < 96; ++chunk) {
    shard.chunks()[chunk].priority = 1;
    push_by_all(box, job, chunk);
  }
  uint32_t bursts = 0;
  uint32_t oldest = 0;
  for (size_t urgent = 0; urgent < 60 * 3 * 2; ++bursts) {
    const auto burst = box.take_burst();
    REQUIRE(burst.size() == limits::kBurstPackets);
    const auto resent = std::count_if(burst.begin(), burst.end(), is_resent);
    REQUIRE(resent >= 1);
    REQUIRE(resent <= 2);  // one in each turn of the job; a burst may touch two
    for (const Sent& packet : burst) {
      if (is_resent(packet)) oldest = std::max(oldest, packet.header.chunk);
    }
    urgent += burst.size() - static_cast<size_t>(resent);
  }
  CHECK(bursts > 5);
  CHECK(oldest <= bursts * 2 / 3);  // they leave in the order in which they were asked for
}

TEST_CASE("a resend leaves before first copies of the same priority") {
  Box box;
  const JobOptions job{.workers = 2, .chunks = 20, .credit_bytes = 1 << 20};
  box.admit(job);
  box.run_round(job, 0, 0);
  for (uint32_t chunk = 1; chunk < 20; ++chunk) push_by_all(box, job, chunk);
  box.deliver(box.pull(job, 1, 0));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 19u * 2 * 3 + 3);
  for (size_t index = 0; index < 3; ++index) CHECK(is_resent(sent[index]));
}

TEST_CASE("the urgent resend of one part goes before unimportant resends of another") {
  Box box;
  const JobOptions parts[] = {{.job = 0, .name = "a", .chunks = 8, .credit_bytes = 1 << 20},
                              {.job = 1, .name = "a", .chunks = 8, .credit_bytes = 1 << 20}};
  for (const JobOptions& part : parts) {
    box.admit(part).chunks()[0].priority = part.job == 1 ? 3 : 0;
    for (uint32_t chunk = 0; chunk < 8; ++chunk) box.run_round(part, 0, chunk);
  }
  for (uint32_t chunk = 0; chunk < 8; ++chunk) box.deliver(box.pull(parts[0], 0, 0, 0, chunk));
  box.deliver(box.pull(parts[1], 0, 0));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 9 * 3);
  CHECK(part_of(sent[0]) == 0);  // one packet of the oldest
  for (size_t index = 1; index < 4; ++index) CHECK(part_of(sent[index]) == 1);
}

}  // namespace pbox::test
