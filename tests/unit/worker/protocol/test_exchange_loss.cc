// Timers, probes and retransmissions.
#include <catch2/catch.hpp>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test {

using wire::PacketType;

TEST_CASE("silence causes a PULL, not a retransmission") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  shim.exchange.on_timer(shim.now_ns + 1'000'000);
  CHECK(shim.take_all().empty());
  shim.expire();
  const auto probes = shim.take_all();
  REQUIRE(probes.size() == 1);
  CHECK(probes[0].header.type() == PacketType::kPull);
  CHECK(probes[0].header.chunk == 0);
  CHECK(probes[0].header.round == 0);
  CHECK(probes[0].held_mask() == 0);
  CHECK(shim.exchange.statistics().probes_sent == 1);
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
}

TEST_CASE("a PULL states which fragments of the result have arrived") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.result(0, 0, 1, 3.0f));
  shim.deliver(shim.result(0, 0, 3, 3.0f));
  shim.expire();
  const auto probes = shim.take_all();
  REQUIRE(probes.size() == 1);
  CHECK(probes[0].held_mask() == 0b1010);
}

TEST_CASE("after a STATUS exactly the missing fragments are sent again") {
  Shim shim({.tensor_chunks = {2}});
  shim.start(0, 4.0f);
  shim.take_all();
  shim.deliver(shim.status(1, 0, 0b0101));
  const auto again = shim.take_all();
  REQUIRE(again.size() == 2);
  CHECK(again[0].header.fragment == 1);
  CHECK(again[1].header.fragment == 3);
  for (const Pushed& packet : again) {
    CHECK(packet.header.type() == PacketType::kPush);
    CHECK(packet.header.chunk == 1);
    CHECK((packet.header.flags & wire::flag::kRetransmission) != 0);
    float value = 0;
    std::memcpy(&value, packet.payload.data(), sizeof(value));
    CHECK(value == 4.0f);
  }
  CHECK(shim.exchange.statistics().retransmitted_fragments == 2);
  CHECK(shim.exchange.statistics().bytes_pushed == 2 * kChunkBytes);  // without retransmissions
}

TEST_CASE("a repeated STATUS before anything leaves does not repeat a fragment") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0b0111));
  shim.deliver(shim.status(0, 0, 0b0111));
  CHECK(shim.take_all().size() == 1);
}

TEST_CASE(
    "a worker whose fragments have all arrived retransmits nothing and polls at 10 ms or slower") {
  Shim shim;
  for (uint32_t round = 0; round < 20; ++round) {  // a fast path, so time-outs are short
    shim.start(0);
    shim.take_all();
    shim.now_ns += 100'000;
    shim.deliver_result(0, round, 1.0f);
    shim.exchange.take_completed();
  }
  shim.start(0);
  shim.take_all();
  const uint64_t first_ns = shim.expire();
  CHECK(first_ns >= 2'000'000 * 3 / 4);
  CHECK(first_ns < 5'000'000);
  shim.take_all();
  for (int count = 0; count < 20; ++count) {
    shim.deliver(shim.status(0, 20, 0b1111, 1, 7));
    CHECK(shim.take_all().empty());
    const uint64_t waited_ns = shim.expire();
    CHECK(waited_ns >= 10'000'000 * 3 / 4);  // minus jitter
    CHECK(waited_ns <= 100'000'000 * 5 / 4);
    REQUIRE(shim.take_all(PacketType::kPull).size() == 1);
  }
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
}

TEST_CASE("probes back off by two, up to a cap, while nobody answers") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  uint64_t waited_ns = shim.expire();
  CHECK(waited_ns >= 15'000'000);  // 20 ms before the first sample, +/- 25 %
  CHECK(waited_ns <= 25'000'000);
  shim.take_all();
  waited_ns = shim.expire();
  CHECK(waited_ns >= 30'000'000);
  CHECK(waited_ns <= 50'000'000);
  for (int count = 0; count < 10; ++count) {
    shim.take_all();
    waited_ns = shim.expire();
    CHECK(waited_ns >= 48'000'000);
    CHECK(waited_ns <= 80'000'000);
  }
}

TEST_CASE("a retransmission is not a sample of the path") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  shim.now_ns += 1'000'000;
  shim.deliver_result(0, 0, 1.0f);
  shim.start(0);
  shim.take_all();
  shim.expire();
  shim.now_ns += 80'000'000;
  for (uint32_t fragment = 0; fragment < kChunkBytes / kFragmentBytes; ++fragment) {
    Answer answer = shim.result(0, 1, fragment, 1.0f);
    if (fragment == 2) answer.header.flags |= wire::flag::kRetransmission;
    shim.deliver(answer);
  }
  CHECK(shim.exchange.statistics().smoothed_rtt_us == 1000);
}

TEST_CASE("a result ends the retransmission that was about to leave") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0));
  shim.deliver_result(0, 0, 2.0f);
  CHECK(shim.take_all().empty());
  CHECK(shim.exchange.next_deadline_ns() == UINT64_MAX);
}

TEST_CASE("the rest of a result that ended a retransmission is asked for") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0));
  shim.exchange.on_timer(shim.now_ns += 1'000'000'000);  // the port takes nothing
  shim.deliver(shim.result(0, 0, 1, 3.0f));
  REQUIRE(shim.exchange.next_deadline_ns() != UINT64_MAX);
  shim.expire();
  const auto probes = shim.take_all();
  REQUIRE(probes.size() == 1);
  CHECK(probes[0].held_mask() == 0b0010);
}

TEST_CASE(
    "packets that are built but not taken are withdrawn when the chunk's result is complete") {
  Shim shim({.tensor_chunks = {2}});
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0));
  shim.deliver(shim.status(1, 0, 0));
  REQUIRE(shim.exchange.to_send(0, shim.now_ns).size() == 8);
  shim.deliver_result(0, 0, 2.0f);
  const auto left = shim.exchange.to_send(0, shim.now_ns);
  REQUIRE(left.size() == 4);
  for (const nic::TxPacket& packet : left) CHECK(packet.header.chunk == 1);
}

TEST_CASE("a withdrawn packet does not spoil the PULL that moves into its place") {
  Shim shim({.tensor_chunks = {2}});
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.result(1, 0, 2, 5.0f));
  shim.now_ns += 1'000'000'000;
  shim.exchange.on_timer(shim.now_ns);
  REQUIRE(shim.exchange.to_send(0, shim.now_ns).size() == 2);
  shim.deliver_result(0, 0, 2.0f);
  const auto left = shim.take_burst();  // checks the tag over the payload
  REQUIRE(left.size() == 1);
  CHECK(left[0].header.chunk == 1);
  CHECK(left[0].held_mask() == 0b0100);
}

TEST_CASE("the laggard is the box while it is silent, and the rank that a STATUS names") {
  Shim shim;
  CHECK(shim.exchange.laggard(0, shim.now_ns).kind == worker::Laggard::Kind::kNobody);
  shim.start(0);
  shim.take_all();
  const auto silent = shim.exchange.laggard(0, shim.now_ns + 5'000);
  CHECK(silent.kind == worker::Laggard::Kind::kBox);
  CHECK(silent.silent_ns == 5'000);
  shim.deliver(shim.status(0, 0, 0b1111, 2, 9));
  const auto late = shim.exchange.laggard(0, shim.now_ns);
  CHECK(late.kind == worker::Laggard::Kind::kRank);
  CHECK(late.rank == 9);
  CHECK(late.missing_workers == 2);
}

TEST_CASE("the age of a STATUS is that of its request, however long the answer took") {
  Shim shim;
  shim.now_ns = 5'000'000'000'000;  // its microseconds exceed 32 bits
  shim.start(0);
  shim.take_all();
  auto answer = shim.status(0, 0, 0b1111, 1, 9);
  answer.header.timestamp_us = static_cast<uint32_t>(shim.now_ns / 1'000);
  const uint64_t asked_ns = shim.now_ns;
  shim.now_ns += 3'000'000;
  shim.deliver(answer);
  CHECK(shim.exchange.laggard(0, shim.now_ns).asked_ns == asked_ns);
}

TEST_CASE("a chunk that later chunks have overtaken is probed while packets keep arriving") {
  Shim shim({.tensor_chunks = {9}, .credit_bytes = 6 * kChunkBytes});
  shim.start(0);
  shim.take_all();
  shim.now_ns += 300'000;
  shim.deliver_result(1, 0, 1.0f);
  shim.deliver_result(2, 0, 1.0f);
  // two may have arrived out of order
  CHECK_FALSE(shim.exchange.on_timer(shim.now_ns + 200'000, true));
  shim.deliver_result(3, 0, 1.0f);
  CHECK_FALSE(shim.exchange.on_timer(shim.now_ns, true));  // not yet later than usual
  shim.now_ns += 200'000;
  CHECK(shim.exchange.on_timer(shim.now_ns, true));
  const auto probes = shim.take_all(PacketType::kPull);
  REQUIRE(probes.size() == 1);  // chunks 4 and 5 were not overtaken
  CHECK(probes[0].header.chunk == 0);
}

TEST_CASE("for the last chunks one later result is enough to probe the one before") {
  Shim shim({.tensor_chunks = {2}});
  shim.start(0);
  shim.take_all();
  shim.now_ns += 300'000;
  shim.deliver_result(1, 0, 1.0f);
  shim.now_ns += 100'000;
  CHECK(shim.exchange.on_timer(shim.now_ns, true));
  CHECK(shim.take_all(PacketType::kPull).size() == 1);
}

TEST_CASE(
    "while packets keep arriving no other chunk is late, since its answer may be among them") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  shim.now_ns += 1'000'000'000;
  CHECK_FALSE(shim.exchange.on_timer(shim.now_ns, true));
  CHECK(shim.exchange.on_timer(shim.now_ns + 1'000'000));
  CHECK(shim.take_all(PacketType::kPull).size() == 1);
}

TEST_CASE("the first fragment of a result ends the wait for other ranks") {
  Shim shim({.tensor_chunks = {1, 1}});
  shim.start(1);
  shim.take_all();
  shim.now_ns += 100'000;
  shim.deliver_result(1, 0, 1.0f);  // a sample of the path
  shim.start(0);
  shim.take_all();
  shim.deliver(shim.status(0, 0, 0b1111, 1, 1));
  const bool some_came = GENERATE(false, true);
  if (some_came) shim.deliver(shim.result(0, 0, 1, 3.0f));
  CHECK((shim.expire() < 7'500'000) == some_came);
}

TEST_CASE("a slower path is learned although every chunk is probed too early at first") {
  constexpr uint64_t kBeforeNs = 1'000'000, kAfterNs = 60'000'000, kStepNs = 500'000;
  Shim shim;
  uint32_t round = 0;
  // Returns how often the worker asks until the result arrives, which was in flight all the time.
  const auto exchange = [&](uint64_t path_ns) {
    shim.start(0);
    shim.take_all();
    const uint64_t due_ns = shim.now_ns + path_ns;
    size_t asked = 0;
    for (; shim.now_ns < due_ns; shim.now_ns += kStepNs) {
      shim.exchange.on_timer(shim.now_ns, false);
      asked += shim.take_all(PacketType::kPull).size();
    }
    shim.deliver_result(0, round++, 1.0f);
    return asked;
  };
  for (int count = 0; count < 50; ++count) exchange(kBeforeNs);
  CHECK(shim.exchange.statistics().smoothed_rtt_us < 1100);
  CHECK(exchange(kAfterNs) > 1);
  for (int count = 0; count < 50; ++count) exchange(kAfterNs);
  CHECK(shim.exchange.statistics().smoothed_rtt_us > 55'000);
  CHECK(exchange(kAfterNs) == 0);
}

TEST_CASE("an answer that took longer than results take shows that the path has become slower") {
  Shim shim({.tensor_chunks = {1, 1}});
  shim.start(0);
  shim.take_all();
  shim.now_ns += 1'000'000;
  shim.deliver_result(0, 0, 1.0f);
  shim.start(1);
  shim.take_all();
  shim.expire();
  const auto asked = shim.take_all(PacketType::kPull);
  REQUIRE(asked.size() == 1);
  auto answer = shim.status(1, 0, 0b1111, 1, 1);
  answer.header.timestamp_us = asked[0].header.timestamp_us;
  shim.now_ns += 80'000'000;
  shim.deliver(answer);
  CHECK(shim.exchange.statistics().smoothed_rtt_us == 1000 + 79'000 / 8);
}

TEST_CASE("a chunk that only more urgent chunks have overtaken is not probed") {
  const int32_t priority = GENERATE(0, 1);  // priority of the other chunks
  Shim shim({.tensor_chunks = {1, 3}, .credit_bytes = 6 * kChunkBytes});
  shim.start(0);
  shim.take_all();
  shim.start(1, 1.0f, priority);
  shim.take_all();
  shim.now_ns += 300'000;
  for (uint32_t chunk = 1; chunk <= 3; ++chunk) shim.deliver_result(chunk, 0, 1.0f);
  shim.now_ns += 100'000;
  CHECK(shim.exchange.on_timer(shim.now_ns, true) == (priority == 0));
}

TEST_CASE("a challenge is echoed at once, and in each later PULL of the lane") {
  Shim shim({.tensor_chunks = {2}});
  shim.start(0);
  shim.take_all();
  const wire::Challenge challenge{0x1122334455667788};
  Answer answer = shim.status(0, 0, 0);
  answer.payload.resize(sizeof(challenge));
  std::memcpy(answer.payload.data(), &challenge, sizeof(challenge));
  answer.header.payload_bytes = sizeof(challenge);
  shim.deliver(answer);
  auto pulls = shim.take_all();
  REQUIRE(pulls.size() == 1);
  shim.expire();
  for (const Pushed& later : shim.take_all()) pulls.push_back(later);
  CHECK(pulls.size() > 1);
  for (const Pushed& pull : pulls) {
    CHECK(pull.header.type() == PacketType::kPull);
    wire::ProvingPullPayload proof;
    REQUIRE(pull.payload.size() == sizeof(proof));
    std::memcpy(&proof, pull.payload.data(), sizeof(proof));
    CHECK(proof.challenge.number == challenge.number);
    CHECK(proof.pull.held_mask == 0);
  }
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
}

}  // namespace pbox::test
