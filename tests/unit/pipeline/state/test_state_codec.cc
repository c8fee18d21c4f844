// The one codec of a chunk's state: each form has its bytes, and gives back what was written.
#include <catch2/catch.hpp>

#include "pipeline/state/state_codec.h"

namespace pbox::test::state_codec_test {
namespace {

using optimizer::OptimizerKind;
using pipeline::ChunkState;
using pipeline::StateLayout;
using pipeline::StateView;

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd, OptimizerKind::kMomentum,
                                    OptimizerKind::kAdam};

ChunkState sample(OptimizerKind kind, uint32_t elements) {
  ChunkState state{
      .chunk = 7, .rounds_finished = 12, .steps = 11, .values = {}, .contributors = {}};
  for (size_t index = 0; index < pipeline::state_values(kind, elements); ++index) {
    state.values.push_back(static_cast<float>(index) + 0.5f);
  }
  return state;
}

}  // namespace

TEST_CASE("a packed state is the weights followed by the optimizer state") {
  const StateLayout layout = StateLayout::packed(OptimizerKind::kAdam, 5);
  CHECK(layout.optimizer_state == 5);
  CHECK(layout.optimizer_floats == 10);
  CHECK(layout.floats == 15);
  CHECK_FALSE(layout.has_counters());
  const ChunkState state = sample(OptimizerKind::kAdam, 5);
  const auto view = decode(state.values, layout);
  REQUIRE(view);
  CHECK(view->weights.data() == state.values.data());
  CHECK(view->weights.size() == 5);
  CHECK(view->optimizer_state.front() == 5.5f);
  CHECK(to_chunk_state(*view).values == state.values);
  std::vector<float> copy(layout.floats);
  encode(*view, layout, copy);
  CHECK(copy == state.values);
}

TEST_CASE("a block pads its sections to cache lines and ends with its counters") {
  const ChunkState state{.chunk = 0,
                         .rounds_finished = 0x0004000300020001,
                         .steps = 0x70006,
                         .values = {1, 2, 3, -1, -2, -3},
                         .contributors = {}};
  std::vector<float> expected(48, 0.0f);
  for (const size_t index : {0u, 1u, 2u}) {
    expected[index] = static_cast<float>(index + 1);
    expected[16 + index] = -expected[index];
  }
  const float counters[] = {1, 2, 3, 4, 6, 7, 0, 0, 3, 0, 1};
  std::copy(std::begin(counters), std::end(counters), expected.begin() + 32);
  CHECK(pipeline::encode_block(state, OptimizerKind::kMomentum, 3) == expected);
}

TEST_CASE("a block gives back the state that it was made of") {
  for (const OptimizerKind kind : kKinds) {
    for (const uint32_t elements : {1u, 15u, 16u, 17u, 100u}) {
      const ChunkState state = sample(kind, elements);
      const auto block = pipeline::encode_block(state, kind, elements);
      CHECK(block.size() == StateLayout::block(kind, elements).floats);
      const auto decoded = pipeline::decode_block(block, state.chunk);
      REQUIRE(decoded);
      CHECK(decoded->chunk == state.chunk);
      CHECK(decoded->rounds_finished == state.rounds_finished);
      CHECK(decoded->steps == state.steps);
      CHECK(decoded->values == state.values);
    }
  }
}

TEST_CASE("a relaxed job's block gives back clocks and contributors too") {
  constexpr size_t kRanks = 3;
  for (const OptimizerKind kind : kKinds) {
    ChunkState state = sample(kind, 100);
    state.fragment_bytes = 0x12345;
    state.contributors = {1, 0xffff, 2};
    state.clocks = {0, 0x0004000300020001, UINT64_MAX, 4, 5, 6, 7, 8, 9};
    const auto block = pipeline::encode_block(state, kind, 100, kRanks);
    const StateLayout layout = StateLayout::block(kind, 100, kRanks);
    CHECK(block.size() == layout.floats);
    CHECK(layout.clocks % 16 == 0);
    const auto decoded = pipeline::decode_block(block, state.chunk);
    REQUIRE(decoded);
    CHECK(decoded->values == state.values);
    CHECK(decoded->fragment_bytes == state.fragment_bytes);
    CHECK(decoded->contributors == state.contributors);
    CHECK(decoded->clocks == state.clocks);
    for (const size_t bad : {layout.clocks, layout.clocks + 1, layout.clocks + 3}) {
      auto other = block;
      other[bad] = 70'000;  // does not fit into 16 bits
      CHECK_FALSE(pipeline::decode_block(other, 7));
    }
    auto other = block;
    other[layout.clocks] = 65;  // more contributors than a chunk has fragments
    CHECK_FALSE(pipeline::decode_block(other, 7));
    other[layout.clocks] = 3;
    other[layout.clocks + 1] = 3 * kRanks + 65;  // more clocks than there is room for
    CHECK_FALSE(pipeline::decode_block(other, 7));
  }
}

TEST_CASE("a snapshot's record names the chunk, the number of values and the steps") {
  const std::vector<float> values = {1, 2, 3, 4};
  const StateView view{.chunk = 9,
                       .rounds_finished = 4,
                       .steps = 3,
                       .weights = {values.data(), 2},
                       .optimizer_state = {values.data() + 2, 2}};
  const auto record = record_of(view);
  CHECK(record.chunk == 9);
  CHECK(record.value_count == 4);
  CHECK(record.steps == 3);
}

TEST_CASE("the checksum covers values, rounds, steps and clocks") {
  const ChunkState state = sample(OptimizerKind::kMomentum, 3);
  const auto differs = [&](void (*change)(ChunkState&)) {
    ChunkState other = state;
    change(other);
    return checksum(other) != checksum(state);
  };
  CHECK(differs([](ChunkState& other) { other.values[5] = 0; }));
  CHECK(differs([](ChunkState& other) { ++other.rounds_finished; }));
  CHECK(differs([](ChunkState& other) { ++other.steps; }));
  CHECK(differs([](ChunkState& other) { other.clocks.push_back(1); }));
}

TEST_CASE("the optimizer state of fragments is joined by slots, and divided again") {
  // Two slots of five elements, in fragments of two: the tens are the slot, the ones the element.
  const std::vector<float> fragments = {0, 1, 10, 11, 2, 3, 12, 13, 4, 14};
  const std::vector<float> whole = {0, 1, 2, 3, 4, 10, 11, 12, 13, 14};
  std::vector<float> joined(10), divided(10);
  pipeline::join_fragments(fragments, 5, 2, joined);
  CHECK(joined == whole);
  pipeline::split_into_fragments(whole, 5, 2, divided);
  CHECK(divided == fragments);
  pipeline::join_fragments(whole, 5, 8, joined);  // one fragment
  CHECK(joined == whole);
  pipeline::join_fragments({}, 5, 2, {});  // an optimizer without state
}

}  // namespace pbox::test::state_codec_test
