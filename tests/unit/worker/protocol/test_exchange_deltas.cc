// Compressed tensors in mode optimize: initial weights in full, then gradients in blocks and deltas
// of weights; weights for a worker that lacks those to which a delta belongs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cfloat>

#include "nic/quantize/reference.h"
#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_deltas_test {
namespace {

using wire::Compression;
using wire::Dtype;
using wire::PacketType;
using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr uint32_t kChunkFloats = kChunkBytes / sizeof(float);
constexpr Compression kFormats[] = {Compression::kQ8, Compression::kQ4};

ShimOptions options_of(Compression compression) {
  return {.tensor_chunks = {2}, .has_shadow = true, .optimizes = true, .compression = compression};
}

// With model drop a job does not survive its box, so the worker keeps no shadow.
ShimOptions dropping(Compression compression) {
  return {.tensor_chunks = {2},
          .optimizes = true,
          .sync = {.model = wire::SyncModel::kDrop, .quorum = 1},
          .compression = compression};
}

void start(Shim& shim, uint32_t round) {
  auto& buffer = shim.buffer(0);
  for (size_t i = 0; i < buffer.size(); ++i) {
    buffer[i] = static_cast<float>(i % 37) - 18.3f * static_cast<float>(round + 1);
  }
  auto* data = reinterpret_cast<std::byte*>(buffer.data());
  shim.exchange.start({.tensor = 0, .input = data, .output = data});
}

Bytes bytes_of(const Floats& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes delta_of(Dtype dtype, float value) {
  const Floats values(kChunkFloats, value);
  Floats none(kChunkFloats);
  Bytes blocks(wire::payload_bytes(dtype, kChunkFloats));
  quantize::reference::encode(dtype, blocks.data(), values.data(), none.data(), kChunkFloats, {});
  return blocks;
}

void add_delta(Dtype dtype, const Bytes& delta, Floats& weights) {
  quantize::reference::accumulate(dtype, weights.data(), delta.data(), kChunkFloats, FLT_MAX, true,
                                  false);
}

std::vector<Answer> result_of(Shim& shim, Dtype dtype, uint32_t chunk, uint32_t round,
                              const Bytes& bytes) {
  const uint32_t stride = wire::fragment_bytes_of(dtype, shim.session.fragment_bytes);
  std::vector<Answer> answers;
  for (uint32_t at = 0; at < bytes.size(); at += stride) {
    Answer& answer = answers.emplace_back(shim.result(chunk, round, at / stride, 0));
    const auto length = std::min<size_t>(stride, bytes.size() - at);
    answer.payload.assign(bytes.begin() + at, bytes.begin() + ptrdiff_t(at + length));
    answer.header.payload_bytes = static_cast<uint16_t>(length);
    answer.header.dtype_scale = static_cast<uint16_t>(dtype);
  }
  return answers;
}

void deliver_all(Shim& shim, const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) shim.deliver(answer);
}

// All bytes of a chunk's packets of this type, in order.
Bytes payload_of(const std::vector<Pushed>& packets, PacketType type, Dtype dtype, uint32_t chunk) {
  Bytes bytes;
  for (const Pushed& packet : packets) {
    if (packet.header.type() != type || packet.header.chunk != chunk) continue;
    CHECK((packet.header.dtype_scale & 15) == static_cast<uint32_t>(dtype));
    bytes.insert(bytes.end(), packet.payload.begin(), packet.payload.end());
  }
  return bytes;
}

Floats chunk_of(Shim& shim, uint32_t chunk) {
  const auto begin = shim.buffer(0).begin() + chunk * kChunkFloats;
  return {begin, begin + kChunkFloats};
}

// Runs round 0, which gives every chunk these weights.
void begin(Shim& shim, const Floats& weights) {
  start(shim, 0);
  shim.take_all();
  for (const uint32_t chunk : {0u, 1u}) {
    deliver_all(shim, result_of(shim, Dtype::kF32, chunk, 0, bytes_of(weights)));
  }
  REQUIRE(shim.exchange.take_completed().size() == 1);
}

}  // namespace

TEST_CASE("initial weights are pushed in full, gradients in blocks, and deltas are added") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    Shim shim(options_of(compression));
    CHECK(shim.exchange.statistics().shadow_bytes == 0);
    start(shim, 0);
    const Bytes initial = payload_of(shim.take_all(), PacketType::kPush, Dtype::kF32, 1);
    CHECK(initial == bytes_of(chunk_of(shim, 1)));
    Floats weights(kChunkFloats, 0.75f);
    for (const uint32_t chunk : {0u, 1u}) {
      deliver_all(shim, result_of(shim, Dtype::kF32, chunk, 0, bytes_of(weights)));
    }
    CHECK(chunk_of(shim, 1) == weights);
    REQUIRE(shim.exchange.take_completed().size() == 1);
    Floats residue(kChunkFloats);
    for (uint32_t round = 1; round < 4; ++round) {
      start(shim, round);
      Bytes expected(wire::payload_bytes(dtype, kChunkFloats));
      quantize::reference::encode(dtype, expected.data(), chunk_of(shim, 1).data(), residue.data(),
                                  kChunkFloats,
                                  quantize::key_of({.seed = 0,
                                                    .tensor = quantize::hash_of("t"),
                                                    .first_element = kChunkFloats,
                                                    .rank = 0,
                                                    .round = round}));
      CHECK(payload_of(shim.take_all(), PacketType::kPush, dtype, 1) == expected);
      const Bytes delta = delta_of(dtype, 0.1f * static_cast<float>(round));
      add_delta(dtype, delta, weights);
      const Floats before = chunk_of(shim, 0);
      const auto answers = result_of(shim, dtype, 0, round, delta);
      for (size_t index = 0; index + 1 < answers.size(); ++index) shim.deliver(answers[index]);
      CHECK(chunk_of(shim, 0) == before);  // nothing is added in part
      shim.deliver(answers.back());
      deliver_all(shim, result_of(shim, dtype, 1, round, delta));
      CHECK(chunk_of(shim, 0) == weights);
      CHECK(chunk_of(shim, 1) == weights);
      REQUIRE(shim.exchange.take_completed().size() == 1);
    }
  }
}

TEST_CASE("weights are given back in full to a box that lost them, and pushes go on in blocks") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    Shim shim(options_of(compression));
    Floats weights(kChunkFloats, 2.5f);
    begin(shim, weights);
    start(shim, 1);
    const Bytes pushed = payload_of(shim.take_all(), PacketType::kPush, dtype, 0);
    const Bytes delta = delta_of(dtype, 0.3f);
    deliver_all(shim, result_of(shim, dtype, 1, 1, delta));  // chunk 1 alone is in round 2
    Floats advanced = weights;
    add_delta(dtype, delta, advanced);
    REQUIRE(shim.resume({0, 1}, {0, 1}).ok());
    const auto given = shim.take_all();
    CHECK(payload_of(given, PacketType::kState, Dtype::kF32, 0) == bytes_of(weights));
    CHECK(payload_of(given, PacketType::kState, Dtype::kF32, 1) == bytes_of(advanced));
    deliver_all(shim, result_of(shim, Dtype::kF32, 0, 0, bytes_of(weights)));
    deliver_all(shim, result_of(shim, Dtype::kF32, 1, 1, bytes_of(advanced)));
    shim.take_all();
    shim.deliver(shim.status(0, 1, 0));
    CHECK(payload_of(shim.take_all(), PacketType::kPush, dtype, 0) == pushed);
    deliver_all(shim, result_of(shim, dtype, 0, 1, delta));
    CHECK(chunk_of(shim, 0) == advanced);
    CHECK(chunk_of(shim, 1) == advanced);
  }
}

TEST_CASE("a box that has only the weights of a round sends them instead of the delta") {
  const Dtype dtype = Dtype::kQ8;
  Shim shim(options_of(Compression::kQ8));
  begin(shim, Floats(kChunkFloats, 2.5f));
  start(shim, 1);
  shim.take_all();
  const auto deltas = result_of(shim, dtype, 0, 1, delta_of(dtype, 0.3f));
  REQUIRE(deltas.size() > 1);
  shim.deliver(deltas[0]);  // from a box that is lost afterwards
  const Floats weights(kChunkFloats, 2.75f);
  const auto full = result_of(shim, Dtype::kF32, 0, 1, bytes_of(weights));
  shim.deliver(full[0]);
  shim.deliver(deltas[0]);  // too late: the weights replace it
  for (size_t index = 1; index < full.size(); ++index) shim.deliver(full[index]);
  CHECK(chunk_of(shim, 0) == weights);
  deliver_all(shim, deltas);
  CHECK(chunk_of(shim, 0) == weights);
}

TEST_CASE("a process in a lost rank's place fetches weights, and adds no delta to others") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    auto options = options_of(compression);
    options.open_rounds = {3, 3};
    Shim shim(options);
    auto* data = reinterpret_cast<std::byte*>(shim.buffer(0).data());
    shim.exchange.start({.tensor = 0, .output = data, .fetch = true});
    for (const Pushed& packet : shim.take_all()) {
      CHECK(packet.header.type() == PacketType::kPull);
      CHECK(packet.header.dtype_scale == 0);
    }
    // The round that was open has finished meanwhile: its predecessor's push was in.
    const Floats weights(kChunkFloats, 4.0f);
    Answer finished = shim.status(0, 2, ~uint64_t{0});
    const uint32_t finished_round = 4;
    std::memcpy(finished.payload.data() + offsetof(wire::StatusPayload, finished_round),
                &finished_round, sizeof(finished_round));
    shim.deliver(finished);
    deliver_all(shim, result_of(shim, Dtype::kF32, 0, 3, bytes_of(weights)));
    deliver_all(shim, result_of(shim, Dtype::kF32, 1, 2, bytes_of(weights)));
    REQUIRE(shim.exchange.take_completed().size() == 1);
    CHECK(chunk_of(shim, 0) == weights);

    start(shim, 3);
    const auto pushes = shim.take_all();
    CHECK_FALSE(payload_of(pushes, PacketType::kPush, dtype, 0).empty());
    // Chunk 0 has the weights of round 3 already, so its delta must not be added to them.
    const Bytes delta = delta_of(dtype, 1.0f);
    deliver_all(shim, result_of(shim, dtype, 0, 3, delta));
    deliver_all(shim, result_of(shim, dtype, 1, 3, delta));
    CHECK(shim.take_all(PacketType::kPull).empty());
    CHECK(chunk_of(shim, 0) == weights);
    Floats advanced = weights;
    add_delta(dtype, delta, advanced);
    CHECK(chunk_of(shim, 1) == advanced);
    CHECK(shim.exchange.take_completed().size() == 1);
  }
}

TEST_CASE("a process that has no weights asks for them instead of a delta") {
  const Dtype dtype = Dtype::kQ4;
  auto options = options_of(Compression::kQ4);
  options.open_rounds = {3, 3};
  Shim shim(options);
  start(shim, 3);
  shim.take_all();
  shim.deliver(result_of(shim, dtype, 0, 3, delta_of(dtype, 1.0f))[0]);
  const auto pulls = shim.take_all(PacketType::kPull);
  REQUIRE(pulls.size() == 1);
  CHECK(pulls[0].header.chunk == 0);
  CHECK(pulls[0].header.dtype_scale == 0);
  CHECK(pulls[0].held_mask() == 0);
  // A STATUS of the finished round, whose push had fewer fragments, asks for nothing.
  shim.deliver(shim.status(0, 3, 1));
  CHECK(shim.take_all(PacketType::kPush).empty());
  const Floats weights(kChunkFloats, 4.0f);
  deliver_all(shim, result_of(shim, Dtype::kF32, 0, 3, bytes_of(weights)));
  CHECK(chunk_of(shim, 0) == weights);
}

TEST_CASE("with model drop deltas are added to the round before, whatever round was pushed") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    Shim shim(dropping(compression));
    const Floats initial(kChunkFloats, 1.5f);
    begin(shim, initial);
    Floats first = initial, second(kChunkFloats, 2.25f);
    const Bytes delta = delta_of(dtype, 0.4f);

    // The push of round 1 is late for chunk 0, whose newest result is of round 2.
    start(shim, 1);
    shim.take_all();
    shim.deliver(result_of(shim, dtype, 0, 2, delta)[0]);
    const auto pulls = shim.take_all(PacketType::kPull);
    REQUIRE(pulls.size() == 1);
    CHECK(pulls[0].header.chunk == 0);
    CHECK(pulls[0].header.dtype_scale == static_cast<uint16_t>(Dtype::kF32));
    deliver_all(shim, result_of(shim, Dtype::kF32, 0, 2, bytes_of(second)));
    CHECK(chunk_of(shim, 0) == second);
    deliver_all(shim, result_of(shim, dtype, 1, 1, delta));
    add_delta(dtype, delta, first);
    CHECK(chunk_of(shim, 1) == first);
    REQUIRE(shim.exchange.take_completed().size() == 1);

    // The next push is of round 2 in both chunks. Chunk 0 has that round's weights already.
    start(shim, 2);
    for (const Pushed& packet : shim.take_all()) CHECK(packet.header.round == 2);
    deliver_all(shim, result_of(shim, dtype, 0, 2, delta));
    CHECK(chunk_of(shim, 0) == second);
    deliver_all(shim, result_of(shim, dtype, 1, 2, delta));
    add_delta(dtype, delta, first);
    CHECK(chunk_of(shim, 1) == first);
    REQUIRE(shim.exchange.take_completed().size() == 1);

    start(shim, 3);
    shim.take_all();
    deliver_all(shim, result_of(shim, dtype, 0, 2, delta));  // a stale one
    deliver_all(shim, result_of(shim, dtype, 0, 3, delta));
    deliver_all(shim, result_of(shim, dtype, 0, 3, delta));
    deliver_all(shim, result_of(shim, dtype, 1, 3, delta));
    add_delta(dtype, delta, second);
    add_delta(dtype, delta, first);
    CHECK(chunk_of(shim, 0) == second);
    CHECK(chunk_of(shim, 1) == first);
    CHECK(shim.exchange.take_completed().size() == 1);
  }
}

TEST_CASE("with model drop weights of a newer round replace fragments of a delta") {
  const Dtype dtype = Dtype::kQ8;
  Shim shim(dropping(Compression::kQ8));
  begin(shim, Floats(kChunkFloats, 1.5f));
  start(shim, 1);
  shim.take_all();
  const Bytes delta = delta_of(dtype, 0.4f);
  shim.deliver(result_of(shim, dtype, 0, 1, delta)[0]);
  const auto former = result_of(shim, Dtype::kF32, 0, 2, bytes_of(Floats(kChunkFloats, 7.0f)));
  shim.deliver(former[0]);
  deliver_all(shim, result_of(shim, dtype, 0, 3, delta));  // it cannot be added to half of them
  const Floats weights(kChunkFloats, 2.75f);
  const auto newest = result_of(shim, Dtype::kF32, 0, 3, bytes_of(weights));
  for (size_t index = 1; index < newest.size(); ++index) shim.deliver(newest[index]);
  CHECK(chunk_of(shim, 0) != weights);  // its first fragment is still missing
  shim.expire();
  for (const Pushed& packet : shim.take_all(PacketType::kPull)) {
    if (packet.header.chunk != 0) continue;
    CHECK(packet.header.round == 3);
    CHECK(packet.header.dtype_scale == static_cast<uint16_t>(Dtype::kF32));
    CHECK(packet.held_mask() == 0b1110);
  }
  shim.deliver(newest[0]);
  CHECK(chunk_of(shim, 0) == weights);
  deliver_all(shim, result_of(shim, dtype, 1, 1, delta));
  REQUIRE(shim.exchange.take_completed().size() == 1);
  // The next delta is added to the weights that came in full.
  start(shim, 2);
  shim.take_all();
  deliver_all(shim, result_of(shim, dtype, 0, 4, delta));
  Floats advanced = weights;
  add_delta(dtype, delta, advanced);
  CHECK(chunk_of(shim, 0) == advanced);
}

TEST_CASE("a PULL says which form of the result it is for") {
  Shim shim(options_of(Compression::kQ8));
  start(shim, 0);
  shim.take_all();
  shim.expire();
  for (const Pushed& packet : shim.take_all(PacketType::kPull)) {
    CHECK(packet.header.dtype_scale == static_cast<uint16_t>(Dtype::kF32));
  }
  const Floats weights(kChunkFloats, 1.0f);
  for (const uint32_t chunk : {0u, 1u}) {
    deliver_all(shim, result_of(shim, Dtype::kF32, chunk, 0, bytes_of(weights)));
  }
  shim.exchange.take_completed();
  start(shim, 1);
  shim.take_all();
  shim.expire();
  const auto pulls = shim.take_all(PacketType::kPull);
  REQUIRE_FALSE(pulls.empty());
  for (const Pushed& packet : pulls) {
    CHECK(packet.header.dtype_scale == static_cast<uint16_t>(Dtype::kQ8));
  }
}

}  // namespace pbox::test::exchange_deltas_test
