// A worker that reads its own copy of the model: what ends an operation, what the worker asks for,
// and what a read returns. One chunk of four fragments; the learning rate is 1, the scale 1/2.
#include <catch2/catch.hpp>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_cached_test {
namespace {

using wire::PacketType;
using wire::SyncModel;

constexpr uint64_t kAllFragments = 0xf;
constexpr wire::SyncSpec kEssp{.model = SyncModel::kEssp, .staleness = 2};
constexpr wire::SyncSpec kSsp{
    .model = SyncModel::kSsp, .staleness = 2, .reads = wire::Reads::kCached};

// Returns a worker whose initial weights, 100, have arrived. The next round is 1.
Shim cached(const wire::SyncSpec& sync) {
  Shim shim({.sync = sync, .learning_rate = 1, .gradient_scale = 0.5f});
  shim.start(0);
  shim.take_all();
  shim.deliver_result(0, 0, 100.0f);
  REQUIRE(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  REQUIRE(shim.buffer(0)[0] == 100.0f);
  return shim;
}

void push(Shim& shim, float gradient) {
  shim.start(0, gradient);
  REQUIRE(shim.take_all(PacketType::kPush).size() == 4);
}

bool holds(Shim& shim, float value) {
  return shim.buffer(0) == std::vector<float>(kChunkBytes / sizeof(float), value);
}

}  // namespace

TEST_CASE("a push is done when the box has it, and the read includes the own gradient") {
  Shim shim = cached(GENERATE(kEssp, kSsp));
  push(shim, 4.0f);
  CHECK(shim.exchange.busy(0));
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(holds(shim, 98.0f));
  push(shim, 6.0f);
  shim.deliver(shim.status(0, 2, kAllFragments));
  CHECK(holds(shim, 95.0f));
  CHECK(shim.exchange.statistics().probes_sent == 0);
  const auto counts = shim.exchange.statistics().staleness;
  CHECK(counts.by_staleness[1] == 1);
  CHECK(counts.by_staleness[2] == 1);
}

TEST_CASE("an acknowledgement of another round does not end an operation") {
  Shim shim = cached(kEssp);
  push(shim, 4.0f);
  shim.deliver(shim.status(0, 0, kAllFragments));
  CHECK(shim.exchange.busy(0));
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK_FALSE(shim.exchange.busy(0));
}

TEST_CASE("data that includes the push acknowledges it, fragment by fragment") {
  Shim shim = cached(kEssp);
  push(shim, 4.0f);
  for (const uint32_t fragment : {0u, 1u, 2u}) {
    shim.deliver(shim.relaxed_result(0, 1, 2, fragment, 60.0f));
  }
  CHECK(shim.exchange.busy(0));
  shim.deliver(shim.relaxed_result(0, 1, 2, 3, 60.0f));
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(holds(shim, 60.0f));  // no gradient is added twice
}

TEST_CASE("data without the push does not acknowledge it, however new it is") {
  Shim shim = cached(kEssp);
  push(shim, 4.0f);
  shim.deliver(shim.status(0, 1, kAllFragments));
  push(shim, 4.0f);
  shim.deliver_relaxed(0, 2, 2, 60.0f);
  CHECK(shim.exchange.busy(0));
  shim.deliver(shim.status(0, 2, kAllFragments));
  CHECK(holds(shim, 58.0f));
}

TEST_CASE("data may arrive at any time, and the newest is used") {
  Shim shim = cached(kEssp);
  for (uint32_t round = 1; round < 4; ++round) {
    if (round == 3) shim.deliver_relaxed(0, 3, 3, 70.0f);  // nothing is in flight
    push(shim, 2.0f);
    if (round == 3) shim.deliver_relaxed(0, 2, 3, 10.0f);  // older
    shim.deliver(shim.status(0, round, kAllFragments));
    REQUIRE_FALSE(shim.exchange.busy(0));
  }
  CHECK(holds(shim, 69.0f));
  CHECK(shim.exchange.statistics().staleness.by_staleness[1] == 2);  // rounds 1 and 3
  shim.deliver_relaxed(0, 4, 4, 80.0f);
  CHECK(holds(shim, 69.0f));  // between operations the buffer belongs to the caller
}

TEST_CASE("gradients that a fragment lacks are added, fragment by fragment") {
  Shim shim = cached(kEssp);
  push(shim, 2.0f);
  shim.deliver(shim.status(0, 1, kAllFragments));
  push(shim, 8.0f);
  const uint32_t applied[] = {1, 2, 3, 2};  // fragment 1 includes round 1 but not round 2
  for (uint32_t fragment = 1; fragment < 4; ++fragment) {
    shim.deliver(shim.relaxed_result(0, 2, applied[fragment], fragment, 50.0f));
  }
  shim.deliver(shim.status(0, 2, kAllFragments));
  REQUIRE_FALSE(shim.exchange.busy(0));
  const auto at = [&](uint32_t fragment) {
    return shim.buffer(0)[fragment * kFragmentBytes / sizeof(float)];
  };
  CHECK(at(0) == 95.0f);
  CHECK(at(1) == 46.0f);
  CHECK(at(2) == 50.0f);
  CHECK(at(3) == 46.0f);
}

TEST_CASE("a copy that is too old delays the operation, and only SSP asks for newer data at once") {
  const bool is_essp = GENERATE(true, false);
  Shim shim = cached(is_essp ? kEssp : kSsp);
  for (const uint32_t round : {1u, 2u}) {
    push(shim, 2.0f);
    shim.deliver(shim.status(0, round, kAllFragments));
    REQUIRE_FALSE(shim.exchange.busy(0));
  }
  push(shim, 2.0f);  // needs a clock of 2
  shim.deliver(shim.status(0, 3, kAllFragments));
  CHECK(shim.exchange.busy(0));
  const auto asked = shim.take_all();
  if (is_essp) {
    CHECK(asked.empty());
  } else {
    REQUIRE(asked.size() == 1);
    CHECK(asked[0].header.type() == PacketType::kPull);
    CHECK(asked[0].header.round == 3);
    CHECK(asked[0].held_mask() == 0);
    shim.deliver(shim.status(0, 3, kAllFragments, 1, 6));  // parked
    CHECK(shim.exchange.laggard(0, shim.now_ns).rank == 6);
    CHECK(shim.expire() >= 7'500'000);
  }
  for (const uint32_t fragment : {0u, 2u, 3u}) {
    shim.deliver(shim.relaxed_result(0, 2, 4, fragment, 30.0f));
  }
  CHECK(shim.exchange.busy(0));
  shim.take_all();
  shim.expire();  // the other fragments are overdue
  const auto rest = shim.take_all(PacketType::kPull);
  REQUIRE(rest.size() == 1);
  CHECK(rest[0].held_mask() == 0b1101);
  shim.deliver(shim.relaxed_result(0, 2, 4, 1, 30.0f));
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(holds(shim, 30.0f));
  CHECK(shim.exchange.statistics().staleness.by_staleness[2] == 2);
}

TEST_CASE("a lost acknowledgement is asked for, and data that is new enough is declared held") {
  Shim shim = cached(GENERATE(kEssp, kSsp));
  push(shim, 4.0f);
  shim.expire();
  const auto probe = shim.take_all();
  REQUIRE(probe.size() == 1);
  CHECK(probe[0].header.type() == PacketType::kPull);
  CHECK(probe[0].held_mask() == kAllFragments);
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
}

TEST_CASE("an acknowledged chunk that waits for other ranks leaves the window") {
  Shim shim({.tensor_chunks = {1, 1},
             .credit_bytes = kChunkBytes,
             .sync = {.model = SyncModel::kEssp, .staleness = 0}});
  for (const uint32_t tensor : {0u, 1u}) {
    shim.start(tensor);
    shim.take_all();
    shim.deliver_result(tensor, 0, 1.0f);
  }
  shim.start(0);
  shim.start(1);
  CHECK(shim.take_all(PacketType::kPush).size() == 4);
  shim.deliver(shim.status(0, 1, kAllFragments, 1, 1));
  CHECK(shim.exchange.busy(0));
  const auto next = shim.take_all(PacketType::kPush);
  REQUIRE(next.size() == 4);
  CHECK(next[0].header.chunk == 1);
}

TEST_CASE("data of rounds that were never pushed, or of a later clock, is rejected") {
  Shim shim = cached(kEssp);
  push(shim, 2.0f);
  shim.deliver(shim.relaxed_result(0, 1, 3, 0, 9.0f));
  shim.deliver(shim.relaxed_result(0, 3, 2, 0, 9.0f));
  CHECK(shim.exchange.statistics().rejected_packets == 2);
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK(holds(shim, 99.0f));
  shim.deliver(shim.relaxed_result(0, 1, 3, 0, 9.0f));
  CHECK(shim.exchange.statistics().rejected_packets == 3);
}

TEST_CASE("a learning rate that this rank has set applies only to its later gradients") {
  Shim shim = cached(kEssp);
  push(shim, 2.0f);
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK(holds(shim, 99.0f));
  shim.exchange.set_learning_rate(4.0f);
  push(shim, 2.0f);
  shim.deliver(shim.status(0, 2, kAllFragments));
  CHECK(holds(shim, 95.0f));
}

TEST_CASE("a cached read into a different buffer leaves the input unchanged") {
  Shim shim = cached(kSsp);
  const std::vector<float> input(kChunkBytes / sizeof(float), 3.0f);
  std::vector<float> output(kChunkBytes / sizeof(float));
  shim.exchange.start({.tensor = 0,
                       .input = reinterpret_cast<const std::byte*>(input.data()),
                       .output = reinterpret_cast<std::byte*>(output.data())});
  shim.take_all();
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK(input.front() == 3.0f);
  CHECK(output == std::vector<float>(kChunkBytes / sizeof(float), 98.5f));
}

TEST_CASE("after abandon nothing that arrives is stored") {
  Shim shim = cached(kEssp);
  push(shim, 2.0f);
  shim.exchange.abandon();
  const uint64_t pulled = shim.exchange.statistics().bytes_pulled;
  shim.deliver_relaxed(0, 2, 2, 9.0f);
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK(shim.exchange.statistics().bytes_pulled == pulled);
  CHECK(holds(shim, 2.0f));
  CHECK(shim.exchange.take_completed().empty());
}

TEST_CASE("in a session with another fragment size the copy is read from the box again") {
  const bool comes_unasked = GENERATE(false, true);
  Shim shim = cached(comes_unasked ? kEssp : kSsp);
  push(shim, 4.0f);
  shim.deliver(shim.status(0, 1, kAllFragments));
  CHECK(holds(shim, 98.0f));
  shim.session.fragment_bytes = kFragmentBytes / 2;  // the chunk has eight fragments now
  REQUIRE(shim.resume({2}));
  shim.start(0, 4.0f);
  CHECK(shim.take_all(PacketType::kPush).size() == 8);
  shim.deliver(shim.status(0, 2, 0xff));
  CHECK(shim.exchange.busy(0));  // the copy has no data
  if (comes_unasked) shim.expire();
  const auto pulls = shim.take_all(PacketType::kPull);
  REQUIRE(pulls.size() == 1);
  CHECK(pulls[0].held_mask() == 0);
  for (uint32_t fragment = 0; fragment < 8; ++fragment) {
    Answer answer = shim.relaxed_result(0, 2, 2, fragment, 50.0f);
    answer.header.payload_bytes = kFragmentBytes / 2;
    answer.payload.resize(kFragmentBytes / 2);
    shim.deliver(answer);
  }
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(holds(shim, 48.0f));
}

TEST_CASE("the copy's memory is the model plus gradients for a staleness above one") {
  const auto bytes = [](uint32_t staleness) {
    Shim shim({.sync = {.model = SyncModel::kEssp, .staleness = staleness}});
    return shim.exchange.statistics().shadow_bytes;
  };
  CHECK(bytes(0) == kChunkBytes);
  CHECK(bytes(1) == kChunkBytes);
  CHECK(bytes(3) == 3 * kChunkBytes + 2 * sizeof(float));
  CHECK(Shim().exchange.statistics().shadow_bytes == 0);
}

}  // namespace pbox::test::exchange_cached_test
