// Jobs whose sessions have keys: only what the ranks have sealed counts, and each packet once.
#include <catch2/catch.hpp>

#include "nic/wire/path_probe.h"
#include "tests/unit/nic/crypto/seal_pair.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test::engine_keys_test {
namespace {

using crypto::Suite;
using pipeline::Counter;
using Bytes = std::vector<std::byte>;

struct KeyUpdateCounts {
  uint64_t begun = 0, followed = 0;
  bool operator==(const KeyUpdateCounts&) const = default;
};

// A job of two ranks. Tests have the ranks' ends of the sessions.
struct KeyedJob {
  explicit KeyedJob(Suite suite, const JobOptions& options = {}) : job(options) {
    for (uint32_t rank = 0; rank < job.workers; ++rank) {
      ranks.push_back(std::make_unique<SealPair>(SealPairOptions{
          .suite = suite, .spi = spi_of(job.job, rank), .updates = {.packets = 5}}));
    }
    auto made = pipeline::JobShard::create(spec_of(job));
    REQUIRE(made.ok());
    shard = std::move(*made);
    for (uint32_t rank = 0; rank < job.workers; ++rank) {
      shard->sessions()[rank].seal = std::move(ranks[rank]->box);
    }
    box.engine.execute({.kind = pipeline::CommandKind::kInstall, .shard = shard.get()});
  }
  ~KeyedJob() {
    box.engine.execute({.kind = pipeline::CommandKind::kRemove, .shard = shard.get()});
  }
  KeyedJob(const KeyedJob&) = delete;
  KeyedJob& operator=(const KeyedJob&) = delete;

  Bytes seal(uint32_t rank, const Packet& packet) {
    return sealed_bytes(ranks[rank]->worker, packet.header, packet.payload);
  }
  void deliver(uint32_t rank, const Bytes& bytes) {
    const nic::RxPacket received{bytes.data(), static_cast<uint32_t>(bytes.size()),
                                 address_of(job.job, rank)};
    box.engine.on_burst({&received, 1}, box.now_ns);
  }
  // Updates of the present sessions, and those that the counters contain.
  KeyUpdateCounts updates() const {
    KeyUpdateCounts sum;
    for (const pipeline::Session& session : shard->sessions()) {
      sum.begun += session.seal.updates_sent();
      sum.followed += session.seal.updates_received();
    }
    return sum;
  }
  KeyUpdateCounts counted() const {
    return {box.count(Counter::kKeyUpdatesBegun), box.count(Counter::kKeyUpdatesFollowed)};
  }
  void deliver(uint32_t rank, const Packet& packet) { deliver(rank, seal(rank, packet)); }
  void push_chunk(uint32_t rank, float value, uint32_t round) {
    for (uint32_t fragment = 0; fragment < 3; ++fragment) {
      deliver(rank, box.push(job, rank, fragment, value, round));
    }
  }
  // Takes what the box sends, as its receivers open it.
  std::vector<Sent> take_all() {
    std::vector<Sent> sent;
    for (auto packets = box.engine.to_send(); !packets.empty(); packets = box.engine.to_send()) {
      for (const nic::TxPacket& packet : packets) sent.push_back(opened(packet));
      box.engine.sent(packets.size());
    }
    return sent;
  }
  Sent opened(const nic::TxPacket& packet) {
    Sent sent{*packet.to, packet.header, {}};
    const uint32_t rank = packet.header.spi & 63;
    REQUIRE(opens(ranks[rank]->worker, packet_bytes(packet), &sent.payload));
    return sent;
  }

  JobOptions job;
  Box box;
  std::vector<std::unique_ptr<SealPair>> ranks;
  std::unique_ptr<pipeline::JobShard> shard;
};

}  // namespace

TEST_CASE("with keys, rounds are summed and results open at their receivers, across updates") {
  for (const Suite suite : {Suite::kGmac256, Suite::kGcm256}) {
    KeyedJob keyed(suite);
    for (uint32_t round = 0; round < 6; ++round) {
      keyed.push_chunk(0, 1.5f, round);
      keyed.push_chunk(1, 2.0f, round);
      const auto sent = keyed.take_all();
      REQUIRE(sent.size() == 6);
      for (const Sent& result : sent) {
        CHECK(result.header.type() == wire::PacketType::kResult);
        CHECK(result.value() == 3.5f);
        CHECK(result.value(result.payload.size() / sizeof(float) - 1) == 3.5f);
      }
    }
    const seal::SessionSeal& worker = keyed.ranks[0]->worker;
    const seal::SessionSeal& box = keyed.shard->sessions()[0].seal;
    CHECK(box.updates_sent() >= 3);
    CHECK(worker.updates_sent() == box.updates_sent());
    CHECK(box.updates_received() >= 3);
    CHECK(keyed.box.count(Counter::kRejectTag) == 0);
    const KeyUpdateCounts updates = keyed.updates();
    CHECK(updates.begun >= 6);
    for (int tick = 0; tick < 2; ++tick) {  // each update counts once
      keyed.box.engine.tick(keyed.box.now_ns += kNanosPerSecond);
      CHECK(keyed.counted() == updates);
    }
  }
}

TEST_CASE("updates of keys count before another session takes their place, and when a job ends") {
  KeyedJob keyed(Suite::kGmac256);
  const auto exchange = [&](uint32_t round) {
    for (uint32_t rank = 0; rank < 2; ++rank) keyed.push_chunk(rank, 1.0f, round);
    keyed.take_all();
  };
  for (uint32_t round = 0; round < 6; ++round) exchange(round);
  const KeyUpdateCounts updates = keyed.updates();
  REQUIRE(updates.followed > 0);
  seal::SessionSeal given = std::move(SealPair({.spi = spi_of(keyed.job.job, 0)}).box);
  keyed.box.engine.execute({.kind = pipeline::CommandKind::kAdmit,
                            .shard = keyed.shard.get(),
                            .credit_bytes = 65'536,
                            .rank = 0,
                            .spi = spi_of(keyed.job.job, 0),
                            .generation = keyed.shard->generation,
                            .seal = &given});
  CHECK(keyed.shard->sessions()[0].seal.updates_sent() == 0);
  keyed.box.engine.execute({.kind = pipeline::CommandKind::kRemove, .shard = keyed.shard.get()});
  CHECK(keyed.counted() == updates);
}

TEST_CASE("a packet that a rank has not sealed changes nothing, and is not answered") {
  for (const Suite suite : {Suite::kGmac256, Suite::kGcm256}) {
    KeyedJob keyed(suite);
    const Packet push = keyed.box.push(keyed.job, 0, 0, 1.0f);
    const Packet pull = keyed.box.pull(keyed.job, 0, 0);
    KeyedJob stranger(suite == Suite::kGmac256 ? Suite::kGcm256 : Suite::kGmac256);
    std::vector<Bytes> forged = {wire_bytes(push), wire_bytes(pull), stranger.seal(0, push),
                                 stranger.seal(0, pull), keyed.seal(1, push)};
    forged.push_back(forged[0]);
    forged.back()[offsetof(wire::Header, flags)] ^= std::byte{wire::flag::kKeyPhase};
    const pipeline::Session& session = keyed.shard->sessions()[0];
    for (size_t index = 0; index < forged.size(); ++index) {
      INFO("packet " << index);
      keyed.deliver(0, forged[index]);
      CHECK(keyed.box.count(Counter::kRejectTag) == index + 1);
      CHECK(keyed.take_all().empty());
    }
    CHECK_FALSE(session.reachable);
    CHECK(session.last_packet_ns.get() == 0);
    CHECK(session.newest_packet_number == 0);
    CHECK(keyed.shard->chunks()[0].claimed[0] == 0);
    CHECK(keyed.box.count(Counter::kAggregated) == 0);
  }
}

TEST_CASE("a packet that arrives again changes nothing, and is not answered again") {
  KeyedJob keyed(Suite::kGmac256);
  const Bytes push = keyed.seal(0, keyed.box.push(keyed.job, 0, 0, 1.0f));
  const Bytes pull = keyed.seal(0, keyed.box.pull(keyed.job, 0, 0));
  keyed.deliver(0, push);
  keyed.deliver(0, pull);
  CHECK(keyed.take_all().size() == 1);
  keyed.deliver(0, push);
  keyed.deliver(0, pull);
  CHECK(keyed.box.count(Counter::kRejectTag) == 2);
  CHECK(keyed.box.count(Counter::kDuplicate) == 0);
  CHECK(keyed.take_all().empty());
}

TEST_CASE("with encryption the box's packets do not show what they carry") {
  KeyedJob keyed(Suite::kGcm256);
  keyed.push_chunk(0, 1.0f, 0);
  keyed.push_chunk(1, 1.0f, 0);
  for (const nic::TxPacket& packet : keyed.box.engine.to_send()) {
    float first = 0;
    std::memcpy(&first, packet.payload, sizeof(first));
    CHECK(first != 2.0f);
    CHECK((packet.header.flags & wire::flag::kEncrypted) != 0);
  }
}

TEST_CASE("STATUS, GRANT and answers to path probes are sealed too") {
  for (const Suite suite : {Suite::kGmac256, Suite::kGcm256}) {
    KeyedJob keyed(suite);
    keyed.deliver(0, keyed.box.pull(keyed.job, 0, 0));
    keyed.box.engine.execute({.kind = pipeline::CommandKind::kSetCredit,
                              .shard = keyed.shard.get(),
                              .credit_bytes = 8192});
    Packet probe = keyed.box.pull(keyed.job, 0, 0);
    probe.payload.assign(keyed.job.fragment_bytes, std::byte{0});
    keyed.deliver(0, probe);
    const auto sent = keyed.take_all();  // requires that each opens
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].header.type() == wire::PacketType::kStatus);
    CHECK(sent[0].status().missing_workers == 2);
    CHECK(sent[1].header.type() == wire::PacketType::kGrant);
    CHECK(wire::is_path_probe(sent[2].header));
    CHECK(sent[2].payload == probe.payload);
  }
}

TEST_CASE("a session that replaces another has keys of its own, and gives back the former ones") {
  KeyedJob keyed(Suite::kGmac256);
  keyed.push_chunk(0, 1.0f, 0);
  const uint32_t spi = spi_of(keyed.job.job, 0) ^ 0x01000000u;
  SealPair fresh({.spi = spi});
  seal::SessionSeal given = std::move(fresh.box);
  const Bytes late = keyed.seal(0, keyed.box.pull(keyed.job, 0, 0));
  keyed.box.engine.execute({.kind = pipeline::CommandKind::kAdmit,
                            .shard = keyed.shard.get(),
                            .credit_bytes = 65'536,
                            .rank = 0,
                            .spi = spi,
                            .generation = keyed.shard->generation,
                            .seal = &given});
  CHECK(given.has_keys());
  CHECK(given.next_number() == 1);  // the former session has sent nothing
  keyed.deliver(0, late);
  CHECK(keyed.box.count(Counter::kRejectSession) == 1);
  Packet pull = keyed.box.pull(keyed.job, 0, 0);
  pull.header.spi = spi;
  keyed.deliver(0, sealed_bytes(fresh.worker, pull.header, pull.payload));
  CHECK(keyed.box.count(Counter::kPullsReceived) == 1);
}

}  // namespace pbox::test::engine_keys_test
