#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/pipeline/box.h"

namespace pbox::test {

using pipeline::Counter;
using wire::PacketType;

TEST_CASE("a duplicate from a finished round is answered with that fragment of the result") {
  Box box;
  const JobOptions job;
  box.admit(job);
  box.run_round(job, 0);
  box.deliver(box.push(job, 1, 2, 99.0f, 0));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == PacketType::kResult);
  CHECK(sent[0].header.fragment == 2);
  CHECK(sent[0].header.round == 0);
  CHECK((sent[0].header.flags & wire::flag::kRetransmission) != 0);
  CHECK(sent[0].to == address_of(0, 1));
  CHECK(sent[0].value() == 2.0f);
  CHECK(box.count(Counter::kDuplicate) == 1);
  CHECK(box.count(Counter::kResultsResent) == 1);
}

TEST_CASE("a PULL of the open round is told what has arrived and which ranks are missing") {
  Box box;
  const JobOptions job{.workers = 4};
  box.admit(job);
  box.deliver(box.push(job, 0, 2, 1.0f));
  box.push_chunk(job, 1, 1.0f);
  box.deliver(box.push(job, 3, 0, 1.0f));
  box.deliver(box.push(job, 3, 2, 1.0f));
  const struct {
    uint32_t rank;
    uint64_t mask;
  } rows[] = {{0, 0b100}, {1, 0b111}, {2, 0}, {3, 0b101}};
  for (const auto& row : rows) {
    INFO("rank " << row.rank);
    box.deliver(box.pull(job, row.rank, 0));
    const auto sent = box.take_all();
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].header.type() == PacketType::kStatus);
    CHECK(sent[0].header.timestamp_us == 4711);  // echoed
    CHECK(sent[0].header.round == 0);
    CHECK(sent[0].to == address_of(0, row.rank));
    CHECK(sent[0].status().received_mask == row.mask);
    CHECK(sent[0].status().finished_round == 0);
    CHECK(sent[0].status().missing_workers == 3);
    CHECK(sent[0].status().first_missing_rank == 0);
  }
  for (const uint32_t fragment : {0u, 1u}) box.deliver(box.push(job, 0, fragment, 1.0f));
  box.deliver(box.pull(job, 1, 0));
  const auto sent = box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].status().missing_workers == 2);
  CHECK(sent[0].status().first_missing_rank == 2);
}

TEST_CASE("a PULL of a finished round gets the fragments that the worker lacks, and no others") {
  Box box;
  const JobOptions job;
  box.admit(job);
  box.run_round(job, 0);
  box.deliver(box.pull(job, 0, 0, 0b010));
  auto sent = box.take_all();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].header.fragment == 0);
  CHECK(sent[1].header.fragment == 2);
  // Bits beyond the chunk's fragments are ignored.
  box.deliver(box.pull(job, 0, 0, ~uint64_t{0b001}));
  sent = box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.fragment == 0);
  // A worker that has all fragments is told that the box needs nothing.
  box.deliver(box.pull(job, 0, 0, 0b111));
  sent = box.take_all();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].header.type() == PacketType::kStatus);
  CHECK(sent[0].status().received_mask == 0b111);
  CHECK(sent[0].status().finished_round == 1);
  CHECK(sent[0].status().missing_workers == 0);
}

TEST_CASE("nothing is resent before the first copy has left") {
  Box box;
  const JobOptions job;
  box.admit(job);
  box.push_chunk(job, 0, 1.0f);
  box.push_chunk(job, 1, 1.0f);
  box.deliver(box.push(job, 0, 0, 1.0f));
  box.deliver(box.pull(job, 1, 0));
  size_t results = 0;
  for (const Sent& packet : box.take_all()) {
    results += packet.header.type() == PacketType::kResult;
  }
  CHECK(results == 6);
  CHECK(box.count(Counter::kResultsResent) == 0);
}

TEST_CASE("a flood of PULLs gets four windows of results, then one window per millisecond") {
  Box box;
  const JobOptions job{.credit_bytes = 32 * 1024};
  box.admit(job);
  box.run_round(job, 0);
  const auto flood = [&] {
    uint64_t bytes = 0;
    for (int count = 0; count < 400; ++count) {
      box.deliver(box.pull(job, 0, 0));
      for (const Sent& packet : box.take_all()) {
        if (packet.header.type() == PacketType::kResult) bytes += packet.payload.size();
      }
    }
    return bytes;
  };
  const uint64_t chunk_bytes = 3 * 1024;
  const uint64_t at_once = flood();
  CHECK(at_once >= 4 * job.credit_bytes);
  CHECK(at_once < 4 * job.credit_bytes + chunk_bytes);
  CHECK(box.count(Counter::kResendsRefused) > 0);
  CHECK(flood() == 0);
  box.now_ns += 1'000'000;
  const uint64_t refilled = flood();
  CHECK(refilled + chunk_bytes > job.credit_bytes);
  CHECK(refilled < job.credit_bytes + chunk_bytes);
  box.now_ns += 3'600'000'000'000;  // an hour accumulates no more than four windows
  CHECK(flood() < 4 * job.credit_bytes + chunk_bytes);
  // The other worker has its own budget.
  box.deliver(box.pull(job, 1, 0));
  CHECK(box.take_all().size() == 3);
}

TEST_CASE("a worker whose resend is refused is still told that its push is complete") {
  Box box;
  const JobOptions job{.credit_bytes = 512};
  box.admit(job);
  box.run_round(job, 0);
  std::vector<Sent> last;
  for (int count = 0; count < 8; ++count) {
    box.deliver(box.pull(job, 0, 0));
    last = box.take_all();
  }
  REQUIRE(last.size() == 1);
  CHECK(last[0].header.type() == PacketType::kStatus);
  CHECK(last[0].status().received_mask == 0b111);
}

TEST_CASE("a long resend does not block the packets behind it") {
  Box box;
  const JobOptions job{.workers = 1,
                       .fragment_bytes = 8192,
                       .chunk_elements = 64 * 2048,
                       .chunks = 2,
                       .credit_bytes = 8 << 20};
  box.admit(job);
  box.run_round(job, 0, 0);
  box.run_round(job, 0, 1);
  box.deliver(box.pull(job, 0, 0, 0, 0));
  box.deliver(box.pull(job, 0, 0, 0, 1));
  size_t resent = 0;
  for (auto burst = box.take_burst(); !burst.empty(); burst = box.take_burst()) {
    resent += burst.size();  // an empty burst means that there is nothing to send
  }
  CHECK(resent == 128);
}

TEST_CASE("a resend is dropped once its round's result is replaced") {
  Box box;
  const JobOptions job{.workers = 1};
  auto& shard = box.admit(job);
  box.run_round(job, 0);
  box.deliver(box.pull(job, 0, 0));
  box.push_chunk(job, 0, 5.0f, 1);
  REQUIRE(shard.chunks()[0].open_round() == 2);
  for (const Sent& packet : box.take_all()) CHECK(packet.header.round == 1);
  CHECK(box.count(Counter::kResultsResent) == 0);
}

TEST_CASE("replies over the bound are dropped") {
  Box box;
  const JobOptions job;
  box.admit(job);
  for (int count = 0; count < 2000; ++count) box.deliver(box.pull(job, 0, 0));
  CHECK(box.take_all().size() == 512);
  CHECK(box.count(Counter::kStatusSent) == 512);
}

TEST_CASE("results that leave for the first time get half of a burst beside resends") {
  Box box;
  const JobOptions job{.workers = 2, .chunks = 64};
  box.admit(job);
  for (uint32_t chunk = 0; chunk < 32; ++chunk) box.run_round(job, 0, chunk);
  for (uint32_t chunk = 0; chunk < 32; ++chunk) box.deliver(box.pull(job, 0, 0, 0, chunk));
  for (uint32_t chunk = 32; chunk < 64; ++chunk) {
    for (const uint32_t rank : {0u, 1u}) box.push_chunk(job, rank, 1.0f, 0, chunk);
  }
  const auto count_resent = [](const std::vector<Sent>& burst) {
    return std::count_if(burst.begin(), burst.end(), [](const Sent& sent) {
      return (sent.header.flags & wire::flag::kRetransmission) != 0;
    });
  };
  const auto burst = box.take_burst();
  REQUIRE(burst.size() == limits::kBurstPackets);
  CHECK(count_resent(burst) == limits::kBurstPackets / 2);
  const auto rest = box.take_all();
  CHECK(count_resent(rest) == 32 * 3 - limits::kBurstPackets / 2);
  CHECK(burst.size() + rest.size() == 32 * 3 + 32 * 3 * 2);
}

}  // namespace pbox::test
