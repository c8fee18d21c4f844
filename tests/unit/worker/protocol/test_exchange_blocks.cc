// Compressed tensors: what a worker encodes, sends again, keeps for recovery and decodes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cfloat>

#include "nic/quantize/reference.h"
#include "tests/unit/worker/protocol/shim.h"

namespace pbox::test::exchange_blocks_test {
namespace {

using wire::Compression;
using wire::Dtype;
using wire::PacketType;

constexpr uint32_t kChunkFloats = kChunkBytes / sizeof(float);
constexpr Compression kFormats[] = {Compression::kQ8, Compression::kQ4};

ShimOptions options_of(Compression compression) {
  return {.tensor_chunks = {2}, .has_shadow = true, .compression = compression};
}

void start(Shim& shim, uint32_t round) {
  auto& buffer = shim.buffer(0);
  for (size_t i = 0; i < buffer.size(); ++i) {
    buffer[i] = static_cast<float>(i % 37) - 18.3f * static_cast<float>(round + 1);
  }
  auto* data = reinterpret_cast<std::byte*>(buffer.data());
  shim.exchange.start({.tensor = 0, .input = data, .output = data});
}

std::vector<std::byte> encoded(Dtype dtype, const float* values, std::vector<float>& residue,
                               uint32_t chunk, uint32_t round) {
  std::vector<std::byte> blocks(wire::payload_bytes(dtype, kChunkFloats));
  quantize::reference::encode(dtype, blocks.data(), values, residue.data(), kChunkFloats,
                              quantize::key_of({.seed = 0,
                                                .tensor = quantize::hash_of("t"),
                                                .first_element = chunk * kChunkFloats,
                                                .rank = 0,
                                                .round = round}));
  return blocks;
}

// The bytes of a chunk's packets of this type, which must be whole, in any order.
std::vector<std::byte> bytes_of(const std::vector<Pushed>& packets, PacketType type, Dtype dtype,
                                uint32_t chunk, uint32_t fragment_bytes) {
  std::vector<std::byte> bytes(wire::payload_bytes(dtype, kChunkFloats));
  const uint32_t stride = wire::fragment_bytes_of(dtype, fragment_bytes);
  size_t taken = 0;
  for (const Pushed& packet : packets) {
    if (packet.header.type() != type || packet.header.chunk != chunk) continue;
    REQUIRE((packet.header.dtype_scale & 15) == static_cast<uint32_t>(dtype));
    REQUIRE(packet.header.fragment * stride + packet.payload.size() <= bytes.size());
    std::copy(packet.payload.begin(), packet.payload.end(),
              bytes.begin() + packet.header.fragment * stride);
    taken += packet.payload.size();
  }
  REQUIRE(taken == bytes.size());
  return bytes;
}

// The packets of a chunk's result in these blocks.
std::vector<Answer> result_of(Shim& shim, Dtype dtype, uint32_t chunk, uint32_t round,
                              const std::vector<std::byte>& blocks) {
  const uint32_t stride = wire::fragment_bytes_of(dtype, shim.session.fragment_bytes);
  std::vector<Answer> answers;
  for (uint32_t at = 0; at < blocks.size(); at += stride) {
    Answer& answer = answers.emplace_back(shim.result(chunk, round, at / stride, 0));
    const auto length = std::min<size_t>(stride, blocks.size() - at);
    answer.payload.assign(blocks.begin() + at, blocks.begin() + ptrdiff_t(at + length));
    answer.header.payload_bytes = static_cast<uint16_t>(length);
    answer.header.dtype_scale = static_cast<uint16_t>(dtype);
  }
  return answers;
}

std::vector<float> decoded(Dtype dtype, const std::vector<std::byte>& blocks) {
  std::vector<float> values(kChunkFloats);
  quantize::reference::accumulate(dtype, values.data(), blocks.data(), kChunkFloats, FLT_MAX, false,
                                  false);
  return values;
}

void finish_round(Shim& shim, Dtype dtype, uint32_t round, const std::vector<std::byte>& blocks) {
  for (const uint32_t chunk : {0u, 1u}) {
    for (const Answer& answer : result_of(shim, dtype, chunk, round, blocks)) shim.deliver(answer);
  }
  REQUIRE(shim.exchange.take_completed().size() == 1);
}

}  // namespace

TEST_CASE("a compressed push is the gradient and the residue, and results are decoded") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    auto options = options_of(compression);
    options.has_shadow = GENERATE(false, true);
    Shim shim(options);
    std::vector<float> residues[2] = {std::vector<float>(kChunkFloats),
                                      std::vector<float>(kChunkFloats)};
    for (uint32_t round = 0; round < 3; ++round) {
      start(shim, round);
      const auto sent = shim.take_all();
      for (const uint32_t chunk : {0u, 1u}) {
        const auto expected = encoded(dtype, shim.buffer(0).data() + chunk * kChunkFloats,
                                      residues[chunk], chunk, round);
        CHECK(bytes_of(sent, PacketType::kPush, dtype, chunk, kFragmentBytes) == expected);
      }
      std::vector<float> none(kChunkFloats);
      const std::vector<float> sums(kChunkFloats, 5.0f + static_cast<float>(round));
      const auto blocks = encoded(dtype, sums.data(), none, 9, round);
      finish_round(shim, dtype, round, blocks);
      const auto result = decoded(dtype, blocks);
      for (const uint32_t chunk : {0u, 1u}) {
        CHECK(std::equal(result.begin(), result.end(),
                         shim.buffer(0).begin() + chunk * kChunkFloats));
      }
    }
  }
}

TEST_CASE("with a shadow a compressed input stays unchanged until the chunk's result is complete") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    Shim shim(options_of(compression));
    CHECK(shim.exchange.statistics().shadow_bytes == 2 * wire::payload_bytes(dtype, kChunkFloats));
    start(shim, 0);
    const auto before = shim.buffer(0);
    shim.take_all();
    std::vector<float> none(kChunkFloats);
    const std::vector<float> sums(kChunkFloats, 5.0f);
    const auto answers = result_of(shim, dtype, 0, 0, encoded(dtype, sums.data(), none, 9, 0));
    for (size_t index = 0; index + 1 < answers.size(); ++index) shim.deliver(answers[index]);
    CHECK(shim.buffer(0) == before);
    shim.deliver(answers.back());
    CHECK(shim.buffer(0)[0] != before[0]);
    CHECK(shim.buffer(0)[kChunkFloats] == before[kChunkFloats]);
  }
}

TEST_CASE("a fragment that was lost, and a push to another box, have the bits of the first copy") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    Shim shim(options_of(compression));
    start(shim, 0);
    const auto first = shim.take_all();
    const auto push = bytes_of(first, PacketType::kPush, dtype, 1, kFragmentBytes);
    shim.deliver(shim.status(1, 0, 0));
    const auto again = shim.take_all();
    CHECK(bytes_of(again, PacketType::kPush, dtype, 1, kFragmentBytes) == push);
    // The next box's path is narrower, so its fragments are smaller.
    shim.session.fragment_bytes = 512;
    REQUIRE(shim.resume({0, 0}).ok());
    shim.take_all();
    shim.deliver(shim.status(1, 0, 0));
    CHECK(bytes_of(shim.take_all(), PacketType::kPush, dtype, 1, 512) == push);
  }
}

TEST_CASE("a compressed result is given back to a box that lost it as it came") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    Shim shim(options_of(compression));
    start(shim, 0);
    shim.take_all();
    std::vector<float> none(kChunkFloats);
    const std::vector<float> sums(kChunkFloats, 2.7f);
    const auto blocks = encoded(dtype, sums.data(), none, 9, 0);
    finish_round(shim, dtype, 0, blocks);
    start(shim, 1);
    const auto pushed = bytes_of(shim.take_all(), PacketType::kPush, dtype, 0, kFragmentBytes);
    shim.session.fragment_bytes = 512;
    REQUIRE(shim.resume({0, 0}, {0, 1}).ok());
    const auto given = shim.take_all();
    for (const uint32_t chunk : {0u, 1u}) {
      CHECK(bytes_of(given, PacketType::kState, dtype, chunk, 512) == blocks);
    }
    for (const Answer& answer : result_of(shim, dtype, 0, 0, blocks)) shim.deliver(answer);
    shim.take_all();
    shim.deliver(shim.status(0, 1, 0));
    CHECK(bytes_of(shim.take_all(), PacketType::kPush, dtype, 0, 512) == pushed);
  }
}

TEST_CASE("a compressed result of another type or length is rejected") {
  for (const Compression compression : kFormats) {
    const Dtype dtype = wire::payload_dtype(compression);
    Shim shim(options_of(compression));
    start(shim, 0);
    shim.take_all();
    std::vector<float> none(kChunkFloats);
    const std::vector<float> sums(kChunkFloats, 2.7f);
    auto answers = result_of(shim, dtype, 0, 0, encoded(dtype, sums.data(), none, 9, 0));
    Answer other = answers[0];
    other.header.dtype_scale = 0;
    shim.deliver(other);
    shim.deliver(shim.result(0, 0, 0, 1.0f));
    other = answers[0];
    other.payload.pop_back();
    --other.header.payload_bytes;
    shim.deliver(other);
    CHECK(shim.exchange.statistics().rejected_packets == 3);
    CHECK(shim.exchange.statistics().bytes_pulled == 0);
  }
}

}  // namespace pbox::test::exchange_blocks_test
