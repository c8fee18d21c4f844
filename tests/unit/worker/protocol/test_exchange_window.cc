// Tests the bytes in flight once the path has been measured, and which chunks may exceed them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <vector>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test {
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

}  // namespace pbox::test
