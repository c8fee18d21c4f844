#include <catch2/catch.hpp>
#include <functional>

#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test {

using wire::PacketType;

TEST_CASE("a tensor is complete with the last fragment of its last chunk, in place") {
  Shim shim({.tensor_chunks = {2}});
  shim.start(0, 1.0f);
  shim.take_all();
  shim.deliver_result(1, 0, 20.0f);
  for (const uint32_t fragment : {3u, 0u, 2u}) shim.deliver(shim.result(0, 0, fragment, 10.0f));
  CHECK(shim.exchange.busy(0));
  CHECK(shim.exchange.take_completed().empty());
  shim.deliver(shim.result(0, 0, 1, 10.0f));
  CHECK_FALSE(shim.exchange.busy(0));
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{0});
  CHECK(shim.exchange.take_completed().empty());
  const auto& buffer = shim.buffer(0);
  for (size_t index = 0; index < buffer.size(); ++index) {
    REQUIRE(buffer[index] == (index < kChunkBytes / sizeof(float) ? 10.0f : 20.0f));
  }
  CHECK(shim.exchange.statistics().bytes_pulled == 2 * kChunkBytes);
}

TEST_CASE("a result in a different buffer leaves the input unchanged") {
  Shim shim;
  const std::vector<float> input(kChunkBytes / sizeof(float), 3.0f);
  std::vector<float> output(kChunkBytes / sizeof(float), 0.0f);
  shim.exchange.start({.tensor = 0,
                       .input = reinterpret_cast<const std::byte*>(input.data()),
                       .output = reinterpret_cast<std::byte*>(output.data())});
  shim.take_all();
  shim.deliver_result(0, 0, 6.0f);
  CHECK(input == std::vector<float>(kChunkBytes / sizeof(float), 3.0f));
  CHECK(output == std::vector<float>(kChunkBytes / sizeof(float), 6.0f));
}

TEST_CASE("tensors are reported in the order they complete") {
  Shim shim({.tensor_chunks = {1, 1, 1}});
  for (uint32_t tensor = 0; tensor < 3; ++tensor) shim.start(tensor);
  shim.take_all();
  for (const uint32_t chunk : {2u, 0u, 1u}) shim.deliver_result(chunk, 0, 1.0f);
  CHECK(shim.exchange.take_completed() == std::vector<uint32_t>{2, 0, 1});
}

TEST_CASE("each round of a tensor has the next number") {
  Shim shim;
  for (uint32_t round = 0; round < 3; ++round) {
    shim.start(0);
    const auto pushed = shim.take_all();
    REQUIRE(pushed.size() == 4);
    CHECK(pushed[0].header.round == round);
    shim.deliver_result(0, round, 1.0f);
  }
}

TEST_CASE("a result that is stale, foreign or malformed is counted and changes nothing") {
  struct Row {
    const char* description;
    std::function<void(Answer&)> change;
    bool stale;  // otherwise rejected
  };
  const Row rows[] = {
      {"the round before", [](Answer& a) { a.header.round = 0; }, true},
      {"a later round", [](Answer& a) { a.header.round = 2; }, true},
      {"a fragment that is here", [](Answer& a) { a.header.fragment = 2; }, true},
      {"a chunk that is not in flight", [](Answer& a) { a.header.chunk = 1; }, true},
      {"a chunk out of range", [](Answer& a) { a.header.chunk = 2; }, false},
      {"another session", [](Answer& a) { a.header.spi ^= 1u << 24; }, false},
      {"this session's own direction", [](Answer& a) { a.header.spi = kSpi; }, false},
      {"an older epoch", [](Answer& a) { a.header.epoch = 4; }, false},
      {"a newer epoch", [](Answer& a) { a.header.epoch = 6; }, false},
      {"another generation", [](Answer& a) { a.header.generation = 7; }, false},
      {"a fragment out of range", [](Answer& a) { a.header.fragment = 4; }, false},
      {"a fragment beyond any mask", [](Answer& a) { a.header.fragment = 64; }, false},
      {"another dtype", [](Answer& a) { a.header.dtype_scale = 1; }, false},
      {"a short payload",
       [](Answer& a) {
         a.header.payload_bytes = 1020;
         a.payload.resize(1020);
       },
       false},
      {"a long payload",
       [](Answer& a) {
         a.header.payload_bytes = 1028;
         a.payload.resize(1028);
       },
       false},
      {"a type for boxes", [](Answer& a) { a.header.set_type(PacketType::kPush); }, false},
      {"a reserved flag", [](Answer& a) { a.header.flags = 0x80; }, false},
  };
  for (const Row& row : rows) {
    INFO(row.description);
    Shim shim({.tensor_chunks = {1, 1}});
    shim.start(0);
    shim.take_all();
    shim.deliver_result(0, 0, 1.0f);
    shim.start(0, 7.0f);
    shim.take_all();
    shim.deliver(shim.result(0, 1, 2, 7.0f));
    const auto before = shim.exchange.statistics();
    Answer answer = shim.result(0, 1, 0, 99.0f);
    row.change(answer);
    shim.deliver(answer);
    const auto after = shim.exchange.statistics();
    CHECK(after.stale_packets - before.stale_packets == (row.stale ? 1 : 0));
    CHECK(after.rejected_packets - before.rejected_packets == (row.stale ? 0 : 1));
    CHECK(after.bytes_pulled == before.bytes_pulled);
    for (const float value : shim.buffer(0)) REQUIRE(value == 7.0f);
    CHECK(shim.exchange.busy(0));
  }
}

TEST_CASE("a result with a wrong tag or cut short is rejected and does not count as heard") {
  Shim shim;
  shim.start(0, 7.0f);
  shim.take_all();
  const Answer answer = shim.result(0, 0, 0, 99.0f);
  std::vector<std::byte> bytes(sizeof(wire::Header));
  std::memcpy(bytes.data(), &answer.header, sizeof(wire::Header));
  bytes.insert(bytes.end(), answer.payload.begin(), answer.payload.end());
  bytes.resize(bytes.size() + limits::kTagBytes);  // a tag of zeros
  for (const size_t length : {bytes.size(), bytes.size() - 1, size_t{55}, size_t{0}}) {
    const nic::RxPacket packet{bytes.data(), static_cast<uint32_t>(length), {}};
    shim.exchange.on_burst(0, {&packet, 1}, shim.now_ns + 1000);
  }
  CHECK(shim.exchange.statistics().rejected_packets == 4);
  CHECK(shim.buffer(0)[0] == 7.0f);
  CHECK(shim.exchange.laggard(0, shim.now_ns + 1000).silent_ns == 1000);
}

TEST_CASE("a STATUS of a wrong length or another round moves nothing") {
  Shim shim;
  shim.start(0);
  shim.take_all();
  Answer shortened = shim.status(0, 0, 0);
  shortened.payload.resize(16);
  shortened.header.payload_bytes = 16;
  shim.deliver(shortened);
  shim.deliver(shim.status(0, 1, 0));
  CHECK(shim.take_all().empty());
  CHECK(shim.exchange.statistics().rejected_packets == 1);
  CHECK(shim.exchange.statistics().stale_packets == 1);
}

TEST_CASE("chunk times are recorded on request, up to the given capacity") {
  Shim shim({.tensor_chunks = {3}});
  const auto exchange = [&](uint32_t round) {
    shim.start(0);
    shim.take_all();
    for (const uint32_t chunk : {0u, 1u, 2u}) {
      shim.now_ns += 1000;
      shim.deliver(shim.result(chunk, round, 0, 1.0f));
      shim.now_ns += 1000;
      for (uint32_t fragment = 1; fragment < kChunkBytes / kFragmentBytes; ++fragment) {
        shim.deliver(shim.result(chunk, round, fragment, 1.0f));
      }
    }
  };
  std::vector<worker::ChunkTimes> times(8);
  exchange(0);
  CHECK(shim.exchange.take_chunk_times(times) == 0);
  shim.exchange.trace_chunks(4);
  const uint64_t started_ns = shim.now_ns;
  exchange(1);
  exchange(2);
  CHECK(shim.exchange.take_chunk_times({times.data(), 1}) == 1);
  CHECK(times[0].chunk == 0);
  REQUIRE(shim.exchange.take_chunk_times(times) == 3);
  CHECK(times[0].chunk == 1);
  CHECK(times[0].round == 1);
  CHECK(times[0].pushed_ns == started_ns);
  CHECK(times[0].sent_ns == started_ns);
  CHECK(times[0].answered_ns == started_ns + 3000);
  CHECK(times[0].completed_ns == started_ns + 4000);
  CHECK(times[2].round == 2);
  exchange(3);
  CHECK(shim.exchange.take_chunk_times(times) == 3);
  shim.exchange.trace_chunks(0);
  exchange(4);
  CHECK(shim.exchange.take_chunk_times(times) == 0);
}

TEST_CASE("a round is finished when every tensor has completed it, and idle time is not counted") {
  Shim shim({.tensor_chunks = {1, 2}});
  const auto exchange = [&](uint32_t tensor, uint32_t first_chunk, uint32_t chunks, uint32_t round,
                            uint64_t wait_ns) {
    shim.start(tensor);
    shim.take_all();
    shim.now_ns += wait_ns;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      shim.deliver_result(first_chunk + chunk, round, 1.0f);
    }
    shim.exchange.take_completed();
  };
  exchange(0, 0, 1, 0, 1'000'000);
  CHECK(shim.exchange.finished_rounds().rounds == 0);
  shim.now_ns += 50'000'000;  // time spent computing
  exchange(1, 1, 2, 0, 2'000'000);
  const auto first = shim.exchange.finished_rounds();
  CHECK(first.rounds == 1);
  shim.now_ns += 100'000'000;
  exchange(1, 1, 2, 1, 3'000'000);
  CHECK(shim.exchange.finished_rounds().rounds == 1);
  exchange(0, 0, 1, 1, 4'000'000);
  const auto second = shim.exchange.finished_rounds();
  CHECK(second.rounds == 2);
  CHECK(second.at_ns - first.at_ns >= 107'000'000);
  CHECK(second.busy_ns - first.busy_ns >= 7'000'000);
  CHECK(second.busy_ns - first.busy_ns < 8'000'000);
  CHECK(second.lane_busy_ns == std::vector<uint64_t>{second.busy_ns});
}

TEST_CASE("a lane is busy until its last result of a round") {
  Shim shim({.tensor_chunks = {1, 1}, .chunk_pipeline = {0, 1}});
  const auto exchange = [&](uint32_t round) {
    shim.start(0);
    shim.start(1);
    CHECK(shim.take_all().size() == 2 * kChunkBytes / kFragmentBytes);
    shim.now_ns += 1'000'000;
    shim.deliver_result(0, round, 1.0f);
    shim.now_ns += 4'000'000;
    shim.deliver_result(1, round, 1.0f);
    shim.exchange.take_completed();
    shim.now_ns += 50'000'000;
  };
  exchange(0);
  const auto first = shim.exchange.finished_rounds();
  REQUIRE(first.lane_busy_ns.size() == 2);
  CHECK(first.lane_busy_ns[1] == first.busy_ns);
  CHECK(first.busy_ns - first.lane_busy_ns[0] >= 4'000'000);
  exchange(1);
  const auto second = shim.exchange.finished_rounds();
  CHECK(second.lane_busy_ns[0] == 2 * first.lane_busy_ns[0]);
  CHECK(second.lane_busy_ns[1] == 2 * first.lane_busy_ns[1]);
}

TEST_CASE("a round is finished when a tensor has completed it in one of its forms") {
  Shim shim({.tensor_chunks = {1, 1, 1}, .has_choice = true});
  const auto exchange = [&](uint32_t tensor, uint32_t round) {
    shim.start(tensor);
    shim.take_all();
    shim.deliver_result(tensor, round, 1.0f);
    shim.exchange.take_completed();
    return shim.exchange.finished_rounds().rounds;
  };
  CHECK(exchange(0, 0) == 1);
  CHECK(exchange(2, 0) == 1);
  CHECK(exchange(1, 0) == 2);
  CHECK(exchange(1, 1) == 3);
  CHECK(exchange(2, 1) == 3);
}

}  // namespace pbox::test
