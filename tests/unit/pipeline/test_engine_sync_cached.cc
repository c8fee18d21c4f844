// Models whose workers read their own copies: ESSP, and SSP with cached reads.
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/pipeline/sync_job.h"

namespace pbox::test {

using wire::PacketType;
using wire::Reads;
using wire::SyncModel;

namespace {

constexpr wire::SyncSpec kSsp{.model = SyncModel::kSsp, .staleness = 1, .reads = Reads::kCached};
constexpr wire::SyncSpec kEssp{.model = SyncModel::kEssp, .staleness = 2, .reads = Reads::kCached};
constexpr uint64_t kWhole = 0b111;

// Checks that the packet acknowledges to `rank` all of its push of `round`.
void check_acknowledges(const Sent& packet, uint32_t rank, uint32_t round) {
  CHECK(packet.header.type() == PacketType::kStatus);
  CHECK(rank_of(packet) == rank);
  CHECK(packet.header.round == round);
  CHECK(packet.status().received_mask == kWhole);
}

}  // namespace

TEST_CASE("with cached reads a push is acknowledged and not answered with data") {
  SyncJob job(kSsp);
  job.begin();
  for (const uint32_t round : {1u, 2u, 3u}) {
    const auto sent = job.push(0, round);
    REQUIRE(sent.size() == 1);
    check_acknowledges(sent[0], 0, round);
    CHECK(sent[0].header.timestamp_us == 4711);
  }
  CHECK(job.shard->pulls.get() == 0);
  // The rank asks whether its push arrived, and says that it holds all data.
  const auto again = job.pull(0, 3, kWhole);
  REQUIRE(again.size() == 1);
  check_acknowledges(again[0], 0, 3);
  CHECK(again[0].status().missing_workers == 2);  // two ranks' pushes of clock 3 are missing
  CHECK(again[0].status().first_missing_rank == 1);
}

TEST_CASE("SSP answers a cached read at once if the data is new enough, and otherwise once it is") {
  SyncJob job(kSsp, 2);
  job.begin();
  job.push(0, 1);
  const auto sent = job.pull(0, 1);  // the read needs clock 1, which is reached
  CHECK(served(sent) == std::vector<uint32_t>{0});
  CHECK(sent[0].header.round == 0);
  CHECK(sent[0].header.applied() == 2);
  job.push(0, 2);
  const auto waits = job.pull(0, 2);  // the read needs clock 2
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].status().missing_workers == 1);
  CHECK(waits[0].status().first_missing_rank == 1);
  CHECK(job.pull(0, 2).size() == 1);  // the second PULL does not park it twice
  CHECK(job.shard->pulls_delayed.get() == 1);
  job.box.push_chunk(job.options, 1, 1, 1);
  std::vector<Sent> results;
  for (const Sent& packet : job.box.take_all()) {
    if (packet.header.type() == PacketType::kStatus) {
      check_acknowledges(packet, 1, 1);
    } else {
      results.push_back(packet);
    }
  }
  CHECK(served(results) == std::vector<uint32_t>{0});
  for (const Sent& packet : results) {
    CHECK(packet.header.round == 1);
    CHECK(packet.header.applied() == 3);
    CHECK(packet.value() == kInitialWeight - 3);
  }
  CHECK(job.shard->pulls.get() == 2);
}

TEST_CASE("each fragment of cached data names the newest of the reader's own rounds in it") {
  SyncJob job(kEssp, 2);
  job.begin();
  job.push(0, 1);
  job.box.deliver(job.box.push(job.options, 0, 1, 1.0f, 2));  // one fragment of its next round
  std::vector<Sent> results;
  for (const Sent& packet : job.push(1, 1)) {
    if (packet.header.type() == PacketType::kResult) results.push_back(packet);
  }
  REQUIRE(results.size() == 6);
  for (const Sent& packet : results) {
    const bool has_part = packet.header.fragment == 1;
    CHECK(packet.value() == kInitialWeight - (has_part ? 3.0f : 2.0f));
    CHECK(packet.header.applied() == (rank_of(packet) == 0 && has_part ? 3 : 2));
    CHECK(packet.header.round == 1);
  }
}

TEST_CASE("ESSP sends a chunk to every rank when the minimum clock advances, and only then") {
  SyncJob job(kEssp);
  job.begin();
  CHECK(job.push(0, 1).size() == 1);
  CHECK(job.push(1, 1).size() == 1);
  const auto sent = job.push(2, 1);
  REQUIRE(sent.size() == 10);
  std::set<uint32_t> ranks;
  for (size_t index = 1; index < sent.size(); ++index) {
    CHECK(sent[index].header.round == 1);
    CHECK(sent[index].value() == kInitialWeight - 3);
    ranks.insert(rank_of(sent[index]));
  }
  CHECK(ranks == std::set<uint32_t>{0, 1, 2});
  CHECK(job.shard->pulls.get() == 0);
  // A rank that has lost a fragment asks for it.
  const auto again = job.pull(1, 1, 0b011);
  REQUIRE(again.size() == 1);
  CHECK(again[0].header.fragment == 2);
}

TEST_CASE("answered reads get the weights with each push, and wait for the clock of a copy") {
  for (const auto model : {SyncModel::kSsp, SyncModel::kEssp}) {
    SyncJob job({.model = model, .staleness = 1, .reads = Reads::kAnswered}, 2);
    job.options.optimizer = {
        .kind = optimizer::OptimizerKind::kMomentum, .learning_rate = 1, .momentum = 1};
    job.begin();
    const auto first = job.push(0, 1);
    CHECK(served(first) == std::vector<uint32_t>{0});
    CHECK(first[0].header.round == 0);
    CHECK(first[0].header.applied() == 2);
    CHECK(first[0].value() == kInitialWeight - 1);
    CHECK(job.push(0, 2).empty());  // needs clock 2: rank 1 has not pushed round 1
    const auto waits = job.pull(0, 2);
    REQUIRE(waits.size() == 1);
    CHECK(waits[0].status().received_mask == kWhole);
    CHECK(waits[0].status().missing_workers == 1);
    CHECK(waits[0].status().first_missing_rank == 1);
    // Velocities of 1, 2 and 3. Rank 1 is answered, and rank 0's read is released.
    const auto released = job.push(1, 1);
    CHECK(served(released).size() == 2);
    for (const Sent& packet : released) {
      CHECK(packet.value() == kInitialWeight - 6);
      CHECK(packet.header.round == 1);
      CHECK(packet.header.applied() == (rank_of(packet) == 0 ? 3 : 2));
    }
    // Both ranks have read all there is, so this advance is sent to nobody but its pusher.
    CHECK(served(job.push(1, 2)) == std::vector<uint32_t>{1});
  }
}

TEST_CASE("only the newest of two advances that have not left yet leaves") {
  SyncJob job(kEssp, 2);
  job.begin();
  for (const uint32_t round : {1u, 2u}) {
    for (const uint32_t rank : {0u, 1u}) job.box.push_chunk(job.options, rank, 1, round);
  }
  std::multiset<uint32_t> ranks;
  for (const Sent& packet : job.box.take_all()) {
    if (packet.header.type() != PacketType::kResult) continue;
    CHECK(packet.header.round == 2);
    CHECK(packet.value() == kInitialWeight - 4);
    ranks.insert(rank_of(packet));
  }
  CHECK(ranks == std::multiset<uint32_t>{0, 0, 0, 1, 1, 1});
}

TEST_CASE("an advance during a fan-out restarts it with the ranks that were not served yet") {
  SyncJob job(kEssp, 64);
  job.options.chunk_elements = 768;
  job.begin();
  for (uint32_t rank = 0; rank < 64; ++rank) job.box.push_chunk(job.options, rank, 1, 1);
  job.box.take_burst();  // acknowledgements
  CHECK(job.box.take_burst().size() == 64);
  for (uint32_t rank = 0; rank < 64; ++rank) job.box.push_chunk(job.options, rank, 1, 2);
  std::vector<uint32_t> fragments(64, 0);
  for (const Sent& packet : job.box.take_all()) {
    if (packet.header.type() != PacketType::kResult) continue;
    CHECK(packet.header.round == 2);
    ++fragments[rank_of(packet)];
  }
  CHECK(fragments == std::vector<uint32_t>(64, 3));
}

}  // namespace pbox::test
