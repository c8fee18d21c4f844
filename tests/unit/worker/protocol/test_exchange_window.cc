// Tests the bytes in flight once the path has been measured, and which chunks may exceed them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <vector>

#include "nic/wire/chunk_layout.h"
#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_window_test {
namespace {

using wire::PacketType;

constexpr uint32_t kChunks = 200;
// time that the path takes for each chunk, one after the other
constexpr uint64_t kChunkNs = 1'000'000;

// Returns the chunks whose pushes have left since the last call.
std::vector<uint32_t> pushed_chunks(Shim& shim) {
  std::vector<uint32_t> chunks;
  for (const Pushed& packet : shim.take_all(PacketType::kPush)) {
    if (packet.header.fragment == 0) chunks.push_back(packet.header.chunk);
  }
  return chunks;
}

// Starts a tensor of many chunks and finishes some of them at the path's pace. Returns those in
// flight, in push order.
std::deque<uint32_t> measured(Shim& shim) {
  shim.start(0);
  std::deque<uint32_t> in_flight;
  for (uint32_t done = 0; done < kChunks / 2; ++done) {
    for (const uint32_t chunk : pushed_chunks(shim)) in_flight.push_back(chunk);
    shim.now_ns += kChunkNs;
    shim.deliver_result(in_flight.front(), 0, 1.0f);
    in_flight.pop_front();
  }
  for (const uint32_t chunk : pushed_chunks(shim)) in_flight.push_back(chunk);
  return in_flight;
}

ShimOptions with_urgent_tensors() {
  return {.tensor_chunks = {kChunks, 1, 1}, .credit_bytes = 16 * kChunkBytes};
}

}  // namespace

TEST_CASE("an urgent chunk may exceed a full path, and the next one may when it is back") {
  Shim shim(with_urgent_tensors());
  const auto in_flight = measured(shim);
  CHECK(in_flight.size() >= 2);
  CHECK(in_flight.size() < 8);
  shim.start(1, 1.0f, 2);
  CHECK(pushed_chunks(shim) == std::vector<uint32_t>{kChunks});
  shim.start(2, 1.0f, 1);
  CHECK(pushed_chunks(shim).empty());
  shim.now_ns += kChunkNs;
  shim.deliver_result(kChunks, 0, 1.0f);
  const auto next = pushed_chunks(shim);
  REQUIRE_FALSE(next.empty());
  CHECK(next.front() == kChunks + 1);
}

TEST_CASE("a chunk that is not more urgent than those on the path waits for room") {
  Shim shim(with_urgent_tensors());
  measured(shim);
  shim.start(1, 1.0f, 0);
  CHECK(pushed_chunks(shim).empty());
}

TEST_CASE("the box's credit bounds urgent chunks too") {
  auto options = with_urgent_tensors();
  options.credit_bytes = 2 * kChunkBytes;
  Shim shim(options);
  measured(shim);
  shim.start(1, 1.0f, 2);
  CHECK(pushed_chunks(shim).empty());
}

TEST_CASE("chunks whose successors are back no longer count as on the path") {
  Shim shim(with_urgent_tensors());
  auto in_flight = measured(shim);
  const uint32_t first = in_flight.front();
  in_flight.pop_front();
  uint32_t back = 0;
  for (; back < 20; ++back) {  // the first chunk's result is late
    REQUIRE_FALSE(in_flight.empty());
    shim.now_ns += kChunkNs;
    shim.deliver_result(in_flight.front(), 0, 1.0f);
    in_flight.pop_front();
    const auto next = pushed_chunks(shim);
    CHECK(next.size() >= 1);
    CHECK(std::find(next.begin(), next.end(), first) == next.end());
    in_flight.insert(in_flight.end(), next.begin(), next.end());
  }
  CHECK(in_flight.size() < 8);
  shim.deliver_result(first, 0, 1.0f);
  CHECK(pushed_chunks(shim).empty());  // it made room long ago
}

// Returns the fragments that were pushed, and the number of PULLs in `pulls`.
std::vector<uint16_t> pushed_fragments(Shim& shim, size_t& pulls) {
  std::vector<uint16_t> fragments;
  pulls = 0;
  for (const Pushed& packet : shim.take_all()) {
    if (packet.header.type() == PacketType::kPull) ++pulls;
    if (packet.header.type() == PacketType::kPush) fragments.push_back(packet.header.fragment);
  }
  return fragments;
}

TEST_CASE("an idle lane sends no more of a chunk than its credit, and asks before it goes on") {
  Shim shim({.credit_bytes = 3 * kFragmentBytes});
  size_t pulls = 0;
  shim.start(0, 1.0f);
  // two of three slots: the PULL takes one too
  CHECK(pushed_fragments(shim, pulls) == std::vector<uint16_t>{0, 1});
  CHECK(pulls == 1);
  CHECK(pushed_fragments(shim, pulls).empty());
  shim.deliver(shim.status(0, 0, 0b0011));
  CHECK(pushed_fragments(shim, pulls) == std::vector<uint16_t>{2, 3});
  CHECK(pulls == 0);
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
  shim.deliver_result(0, 0, 5.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
}

TEST_CASE("a lane whose credit is below a fragment sends one at a time") {
  Shim shim({.credit_bytes = kFragmentBytes / 2});
  size_t pulls = 0;
  shim.start(0, 1.0f);
  for (uint16_t fragment = 0; fragment < 4; ++fragment) {
    CHECK(pushed_fragments(shim, pulls) == std::vector<uint16_t>{fragment});
    CHECK(pulls == (fragment < 3 ? 1 : 0));
    if (fragment < 3) shim.deliver(shim.status(0, 0, (2u << fragment) - 1));
  }
}

TEST_CASE("a fragment of a portion that is lost is sent again") {
  Shim shim({.credit_bytes = 3 * kFragmentBytes});
  size_t pulls = 0;
  shim.start(0, 1.0f);
  CHECK(pushed_fragments(shim, pulls).size() == 2);
  shim.deliver(shim.status(0, 0, 0b0010));
  CHECK(pushed_fragments(shim, pulls) == std::vector<uint16_t>{0, 2, 3});
  CHECK(shim.exchange.statistics().retransmitted_fragments == 1);
}

TEST_CASE("an answer from before the last portion does not send that portion again") {
  Shim shim({.credit_bytes = 3 * kFragmentBytes});
  size_t pulls = 0;
  shim.start(0, 1.0f);
  CHECK(pushed_fragments(shim, pulls).size() == 2);
  const Answer old = shim.status(0, 0, 0b0011);
  shim.now_ns += 100'000;
  shim.deliver(old);
  CHECK(pushed_fragments(shim, pulls) == std::vector<uint16_t>{2, 3});
  shim.deliver(old);
  CHECK(pushed_fragments(shim, pulls).empty());
  CHECK(shim.exchange.statistics().retransmitted_fragments == 0);
}

TEST_CASE("a chunk of one element takes as much credit as a whole fragment") {
  worker::SessionSpec session;
  session.epoch = 1;
  session.fragment_bytes = kFragmentBytes;
  session.chunk_bytes = kChunkBytes;
  session.pipelines.push_back({kSpi, 4 * kFragmentBytes, *nic::parse_endpoint("10.0.0.1", 9542)});
  session.chunk_pipeline.assign(10, 0);
  worker::Exchange exchange(
      session, std::vector<worker::TensorSpec>(10, {.name = "t", .elements = 1}), {}, 1);
  std::vector<float> values(10);
  for (uint32_t tensor = 0; tensor < values.size(); ++tensor) {
    auto* value = reinterpret_cast<std::byte*>(&values[tensor]);
    exchange.start({.tensor = tensor, .input = value, .output = value});
  }
  CHECK(exchange.to_send(0, kStartNs).size() == 4);
}

TEST_CASE(
    "a chunk that the box has whole leaves the window if the box holds its round, or an upper box "
    "may wait for other racks") {
  for (const auto& [holds_rounds, has_upper_box] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    Shim shim({.tensor_chunks = {3},
               .credit_bytes = kChunkBytes,
               .holds_rounds = holds_rounds,
               .has_upper_box = has_upper_box});
    shim.start(0);
    CHECK(shim.take_all().size() == kChunkBytes / kFragmentBytes);  // the first chunk
    shim.deliver(shim.status(0, 0, wire::full_mask(kChunkBytes / kFragmentBytes)));
    const auto next = shim.take_all();
    const bool leaves = holds_rounds || has_upper_box;
    REQUIRE(next.empty() == !leaves);
    if (leaves) CHECK(next[0].header.chunk == 1);
  }
}

TEST_CASE("a result of a held round tells nothing of the path's time") {
  for (const bool holds_rounds : {false, true}) {
    Shim shim({.holds_rounds = holds_rounds});
    shim.start(0);
    shim.take_all();
    shim.now_ns += 5'000'000'000;
    shim.deliver_result(0, 0, 1.0f);
    CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
    CHECK((shim.exchange.statistics().smoothed_rtt_us == 0) == holds_rounds);
  }
}

}  // namespace pbox::test::exchange_window_test
