// Model drop: rounds that close with only some of the workers.
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test::engine_sync_drop_test {

using pipeline::Counter;
using wire::PacketType;

namespace {

using Ranks = std::vector<uint32_t>;

constexpr wire::SyncSpec drop(uint32_t quorum) {
  return {.model = wire::SyncModel::kDrop, .quorum = quorum};
}

}  // namespace

TEST_CASE("a round closes with its quorum and counts the workers in each fragment") {
  SyncJob job(drop(2));
  job.options.reduction = pipeline::Reduction::kMean;
  CHECK(job.begin().size() == 9);  // the initial weights need every rank
  job.box.deliver(job.box.push(job.options, 2, 1, 6.0f, 1));
  CHECK(job.push(0, 1, 1).empty());
  const auto sent = job.push(1, 1, 2);
  // Rank 2 has pushed one fragment only. It learns at once that the round closed without the rest.
  CHECK(served(sent) == Ranks{0, 1, 2});
  for (const Sent& packet : sent) {
    const bool has_all = packet.header.fragment == 1;
    CHECK(packet.header.round == 1);
    CHECK(packet.value() == kInitialWeight - (has_all ? 3.0f : 1.5f));
    CHECK(packet.header.contributors() == (has_all ? 0 : 2));
  }
}

TEST_CASE("a late push is dropped, counted by rank, and answered with the newest result") {
  SyncJob job(drop(1), 2);
  job.begin();
  for (const uint32_t round : {1u, 2u, 3u}) CHECK(served(job.push(0, round)) == Ranks{0});
  job.box.deliver(job.box.push(job.options, 1, 0, 9.0f, 1));
  job.box.deliver(job.box.push(job.options, 1, 0, 9.0f, 1));
  CHECK(job.box.count(Counter::kDuplicate) == 1);
  job.box.deliver(job.box.push(job.options, 1, 1, 9.0f, 1));
  CHECK(job.box.take_all().empty());
  job.box.deliver(job.box.push(job.options, 1, 2, 9.0f, 1));
  const auto sent = job.box.take_all();
  CHECK(served(sent) == Ranks{1});
  CHECK(sent[0].header.round == 3);
  CHECK(sent[0].value() == kInitialWeight - 3);
  CHECK(job.box.count(Counter::kDropped) == 3);
  CHECK(job.shard->sessions()[1].dropped.get() == 3);
  CHECK(job.shard->sessions()[0].dropped.get() == 0);
  // The rank continues with the open round, and counts again.
  CHECK(served(job.push(1, 4)) == Ranks{1});
  CHECK(job.shard->chunks()[0].open_round() == 5);
  job.box.deliver(job.box.push(job.options, 1, 0, 9.0f, 1));  // an old duplicate
  CHECK(job.box.count(Counter::kStale) == 1);
}

TEST_CASE("fragments that were in time are neither dropped nor added again") {
  SyncJob job(drop(1), 2);
  job.begin();
  job.box.deliver(job.box.push(job.options, 1, 0, 1.0f, 1));
  CHECK(served(job.push(0, 1)) == Ranks{0, 1});
  job.box.deliver(job.box.push(job.options, 1, 0, 1.0f, 1));
  CHECK(job.box.count(Counter::kDuplicate) == 1);
  for (const uint32_t fragment : {1u, 2u}) {
    job.box.deliver(job.box.push(job.options, 1, fragment, 1.0f, 1));
  }
  CHECK(job.box.count(Counter::kDropped) == 2);
  const auto sent = job.box.take_all();
  CHECK(served(sent) == Ranks{1});
  CHECK(sent[0].value() == kInitialWeight - 2);
  CHECK(sent[1].value() == kInitialWeight - 1);
}

TEST_CASE("a rank gets all of one round's result even if a round closes while its reply leaves") {
  constexpr uint32_t kFragments = 48;
  constexpr uint64_t kWhole = (uint64_t{1} << kFragments) - 1;
  SyncJob job(drop(1));
  job.options.chunk_elements = kFragments * 256;
  job.begin();
  job.push(0, 1);
  for (const uint32_t rank : {1u, 2u}) job.box.deliver(job.box.pull(job.options, rank, 1));
  const auto burst = job.box.take_burst();  // holds one reply and the beginning of another
  REQUIRE(burst.size() > kFragments);
  const uint32_t late = rank_of(burst.back());
  REQUIRE(late != rank_of(burst.front()));
  job.box.push_chunk(job.options, 0, 1.0f, 2);
  uint64_t mask = 0;
  for (const Sent& packet : job.box.take_all()) {
    if (rank_of(packet) != late) {
      CHECK(mask == kWhole);  // other replies wait until this one is whole
      continue;
    }
    const uint64_t bit = uint64_t{1} << packet.header.fragment;
    CHECK(packet.header.round == 2);
    CHECK(packet.value() == kInitialWeight - 2);
    CHECK((mask & bit) == 0);
    mask |= bit;
  }
  CHECK(mask == kWhole);
}

TEST_CASE("a PULL of any closed round is answered with the newest result") {
  SyncJob job(drop(1), 2);
  job.begin();
  for (const uint32_t round : {1u, 2u, 3u}) job.push(0, round);
  const auto newest = job.pull(0, 3, 0b011);
  REQUIRE(newest.size() == 1);
  CHECK(newest[0].header.fragment == 2);
  const auto all = job.pull(1, 1, 0b011);  // the fragments it holds may belong to another round
  CHECK(served(all) == Ranks{1});
  CHECK(all[0].header.round == 3);
  const auto nothing = job.pull(0, 3, 0b111);  // the rank lacks nothing: it learns where it stands
  REQUIRE(nothing.size() == 1);
  CHECK(nothing[0].header.type() == PacketType::kStatus);
  const auto open = job.pull(1, 4);
  REQUIRE(open.size() == 1);
  CHECK(open[0].status().missing_workers == 2);
}

TEST_CASE("a result that has not left is replaced when the next round closes") {
  SyncJob job(drop(1), 2);
  job.begin();
  for (const uint32_t round : {1u, 2u, 3u, 4u, 5u}) job.box.push_chunk(job.options, 0, 1, round);
  const auto sent = job.box.take_all();
  CHECK(served(sent) == Ranks{0});
  CHECK(sent[0].header.round == 5);
  // Packets that a full port has not taken are replaced, too.
  job.box.push_chunk(job.options, 0, 1, 6);
  CHECK(job.box.engine.to_send().size() == 3);
  job.box.engine.sent(1);
  job.box.push_chunk(job.options, 0, 1, 7);
  for (const Sent& packet : job.box.take_all()) {
    CHECK(packet.header.round == 7);
    CHECK(packet.value() == kInitialWeight - 7);
  }
}

TEST_CASE(
    "a late rank whose reply a round has cut short gets the rest before faster ranks are served") {
  SyncJob job(drop(1), 3);
  job.begin();
  job.push(0, 1);
  for (const uint32_t rank : {1u, 2u}) job.box.deliver(job.box.pull(job.options, rank, 1));
  CHECK(job.box.engine.to_send().size() == 6);
  const uint32_t late = job.box.engine.to_send()[0].header.spi & 63;
  job.box.engine.sent(1);
  job.box.push_chunk(job.options, 0, 1, 2);
  const auto sent = job.box.take_all();
  REQUIRE(sent.size() == 9);  // nothing twice
  for (const Sent& packet : sent) {
    CHECK(packet.header.round == 2);
    CHECK(packet.value() == kInitialWeight - 2);
  }
  CHECK(sent[0].header.fragment == 1);
  CHECK(sent[1].header.fragment == 2);
  CHECK(rank_of(sent[2]) == 3 - late);  // its packets were all unsent
  CHECK(rank_of(sent[5]) == late);
  CHECK(sent[5].header.fragment == 0);
  CHECK(rank_of(sent[6]) == 0);
}

TEST_CASE("the new session of a rank whose reply was cut short gets a whole one") {
  SyncJob job(drop(1), 2);
  job.begin();
  job.push(0, 1);
  job.box.deliver(job.box.pull(job.options, 1, 1));
  CHECK(job.box.engine.to_send().size() == 3);
  job.box.engine.sent(1);
  job.box.push_chunk(job.options, 0, 1, 2);
  CHECK(job.box.engine.to_send().size() == 2);  // now of round 2, whose first packet is owed
  job.box.engine.sent(2);
  job.box.engine.execute({.kind = pipeline::CommandKind::kAdmit,
                          .shard = job.shard,
                          .credit_bytes = job.options.credit_bytes,
                          .rank = 1,
                          .spi = job.shard->sessions()[1].spi,
                          .generation = job.shard->generation});
  job.box.deliver(job.box.pull(job.options, 1, 2));
  auto sent = job.box.take_all();
  REQUIRE(sent.at(0).header.type() == PacketType::kStatus);  // it is about to be sent the result
  sent.erase(sent.begin());
  CHECK(served(sent) == Ranks{0, 1});
}

TEST_CASE("a packet's label of its rank's own round is true when the packet leaves") {
  SyncJob job(drop(1), 2);
  job.begin();
  for (const uint32_t round : {1u, 2u, 3u}) job.push(0, round);
  job.box.push_chunk(job.options, 1, 1, 1);
  CHECK(job.box.engine.to_send().size() == 3);
  CHECK(job.box.engine.to_send()[2].header.applied() == 1);
  job.box.engine.sent(1);
  // The rank stops waiting and is late again, before the full port takes the rest.
  job.box.deliver(job.box.push(job.options, 1, 0, 9.0f, 2));
  const auto sent = job.box.take_all();
  REQUIRE(sent.size() == 2);
  for (const Sent& packet : sent) {
    CHECK(packet.header.applied() == 2);
    CHECK(packet.header.round == 3);
  }
}

TEST_CASE("with fewer workers left than the quorum, a round needs all of them") {
  SyncJob job(drop(3), 4);
  job.begin();
  job.push(0, 1);
  job.push(1, 1);
  job.exclude(2);
  CHECK(job.box.take_all().empty());
  job.exclude(3);
  CHECK(served(job.box.take_all()) == Ranks{0, 1});
  CHECK(job.push(0, 2).empty());
  CHECK(served(job.push(1, 2)) == Ranks{0, 1});
}

}  // namespace pbox::test::engine_sync_drop_test
