#include "pipeline/state/state_codec.h"

#include <algorithm>

#include "base/check.h"
#include "base/limits.h"
#include "base/numa_arena.h"
#include "nic/wire/crc32c.h"

namespace pbox::pipeline {
namespace {

constexpr size_t kFloatsPerCacheLine = kCacheLineBytes / sizeof(float);

// The counters of a block: offsets in f32 from their beginning, 16 bits each, the lowest first.
constexpr size_t kRounds = 0, kSteps = 4, kElements = 8, kStateFloats = 10, kRanks = 11;
constexpr size_t kCountersFloats = kFloatsPerCacheLine;
// The section of clocks has the same form: the number of contributors, the number of clocks, the
// size of a fragment, and room for all contributors and clocks.
constexpr size_t kContributorCount = 0, kClockCount = 1, kFragmentBytes = 2, kContributors = 4;
constexpr size_t kClocks = kContributors + limits::kFragmentCountMax;
constexpr size_t kFloatsPerClock = 4;

size_t clocks_max(size_t ranks) {
  return kClocksPerRank * ranks + limits::kFragmentCountMax;
}

size_t padded(size_t floats) {
  return align_up(floats, kFloatsPerCacheLine);
}

void put(float* counters, size_t words, uint64_t value) {
  for (size_t word = 0; word < words; ++word) {
    counters[word] = static_cast<float>(value >> (16 * word) & 0xffff);
  }
}

// Returns nullopt if some word is not a number of 16 bits.
std::optional<uint64_t> get(const float* counters, size_t words) {
  uint64_t value = 0;
  for (size_t word = 0; word < words; ++word) {
    const float part = counters[word];
    if (!(part >= 0 && part <= 0xffff)) return std::nullopt;
    value |= uint64_t{static_cast<uint16_t>(part)} << (16 * word);
  }
  return value;
}

StateLayout block_layout(size_t elements, size_t optimizer_floats, size_t ranks) {
  StateLayout layout{.elements = elements, .optimizer_floats = optimizer_floats, .ranks = ranks};
  layout.optimizer_state = padded(elements);
  layout.clocks = layout.optimizer_state + padded(optimizer_floats);
  layout.counters = layout.clocks;
  if (ranks > 0) layout.counters += padded(kClocks + kFloatsPerClock * clocks_max(ranks));
  layout.floats = layout.counters + kCountersFloats;
  return layout;
}

// Returns the layout that a block's own counters state; nullopt if it does not fit the block.
std::optional<StateLayout> layout_of(std::span<const float> block) {
  if (block.size() < kCountersFloats) return std::nullopt;
  const float* counters = block.data() + block.size() - kCountersFloats;
  const auto elements = get(counters + kElements, 2), state = get(counters + kStateFloats, 1);
  const auto ranks = get(counters + kRanks, 1);
  if (!elements || !state || !ranks) return std::nullopt;
  const StateLayout layout = block_layout(*elements, *state * *elements, *ranks);
  if (layout.floats != block.size()) return std::nullopt;
  return layout;
}

// Reads what a ClockWriter has written. Returns false if it is invalid.
bool read_clocks(std::span<const float> block, const StateLayout& layout, ChunkState& state) {
  const float* section = block.data() + layout.clocks;
  const auto contributors = get(section + kContributorCount, 1);
  const auto clocks = get(section + kClockCount, 1);
  const auto fragment_bytes = get(section + kFragmentBytes, 2);
  if (!contributors || !clocks || !fragment_bytes) return false;
  if (*contributors > limits::kFragmentCountMax || *clocks > clocks_max(layout.ranks)) return false;
  state.fragment_bytes = static_cast<uint32_t>(*fragment_bytes);
  for (size_t index = 0; index < *contributors; ++index) {
    const auto count = get(section + kContributors + index, 1);
    if (!count) return false;
    state.contributors.push_back(static_cast<uint16_t>(*count));
  }
  for (size_t index = 0; index < *clocks; ++index) {
    const auto clock = get(section + kClocks + kFloatsPerClock * index, kFloatsPerClock);
    if (!clock) return false;
    state.clocks.push_back(*clock);
  }
  return true;
}

// Calls copy(offset in the form by fragments, offset in the whole form, length) for each piece that
// is contiguous in both.
template <typename Copy>
void for_each_piece(size_t floats, uint32_t elements, uint32_t fragment_elements,
                    const Copy& copy) {
  PBOX_CHECK(fragment_elements > 0 && elements > 0 && floats % elements == 0);
  const size_t slots = floats / elements;
  for (size_t first = 0; first < elements; first += fragment_elements) {
    const size_t length = std::min<size_t>(fragment_elements, elements - first);
    for (size_t slot = 0; slot < slots; ++slot) {
      copy(slots * first + slot * length, slot * elements + first, length);
    }
  }
}

}  // namespace

StateLayout StateLayout::packed(optimizer::OptimizerKind kind, uint32_t elements) {
  StateLayout layout{.elements = elements, .optimizer_state = elements};
  layout.optimizer_floats = optimizer::state_floats_per_element(kind) * layout.elements;
  layout.floats = layout.counters = layout.elements + layout.optimizer_floats;
  return layout;
}

StateLayout StateLayout::block(optimizer::OptimizerKind kind, uint32_t elements, size_t ranks) {
  return block_layout(elements, optimizer::state_floats_per_element(kind) * size_t{elements},
                      ranks);
}

void write_counters(float* block, const StateLayout& layout, uint64_t rounds_finished,
                    uint64_t steps) {
  PBOX_DCHECK(layout.has_counters() && layout.elements > 0 && rounds_finished > 0);
  float* counters = block + layout.counters;
  put(counters + kRounds, 4, rounds_finished);
  put(counters + kSteps, 4, steps);
  put(counters + kElements, 2, layout.elements);
  put(counters + kStateFloats, 1, layout.optimizer_floats / layout.elements);
  put(counters + kRanks, 1, layout.ranks);
}

ClockWriter::ClockWriter(float* block, const StateLayout& layout, uint32_t fragment_bytes)
    : section_(block + layout.clocks), clocks_max_(clocks_max(layout.ranks)) {
  PBOX_DCHECK(layout.ranks > 0 && layout.clocks < layout.counters);
  put(section_ + kContributorCount, 1, 0);
  put(section_ + kClockCount, 1, 0);
  put(section_ + kFragmentBytes, 2, fragment_bytes);
}

void ClockWriter::add_contributor(uint16_t count) {
  PBOX_CHECK(contributors_ < limits::kFragmentCountMax);
  put(section_ + kContributors + contributors_, 1, count);
  put(section_ + kContributorCount, 1, ++contributors_);
}

void ClockWriter::add_clock(uint64_t clock) {
  PBOX_CHECK(clocks_ < clocks_max_);
  put(section_ + kClocks + kFloatsPerClock * clocks_, kFloatsPerClock, clock);
  put(section_ + kClockCount, 1, ++clocks_);
}

void encode(const StateView& state, const StateLayout& layout, std::span<float> to) {
  PBOX_DCHECK(to.size() == layout.floats);
  PBOX_DCHECK(state.weights.size() == layout.elements);
  PBOX_DCHECK(state.optimizer_state.size() == layout.optimizer_floats);
  std::copy(state.weights.begin(), state.weights.end(), to.data());
  std::copy(state.optimizer_state.begin(), state.optimizer_state.end(),
            to.data() + layout.optimizer_state);
  if (layout.has_counters()) {
    write_counters(to.data(), layout, state.rounds_finished, state.steps);
  }
}

std::optional<StateView> decode(std::span<const float> from, const StateLayout& layout) {
  PBOX_CHECK(from.size() == layout.floats);
  StateView state{.weights = from.first(layout.elements),
                  .optimizer_state = from.subspan(layout.optimizer_state, layout.optimizer_floats)};
  if (!layout.has_counters()) return state;
  const float* counters = from.data() + layout.counters;
  const auto rounds = get(counters + kRounds, 4), steps = get(counters + kSteps, 4);
  if (!rounds || !steps || *rounds == 0) return std::nullopt;
  state.rounds_finished = *rounds;
  state.steps = *steps;
  return state;
}

std::array<std::span<const float>, 2> packed_sections(const StateView& state) {
  return {state.weights, state.optimizer_state};
}

void join_fragments(std::span<const float> fragments, uint32_t elements, uint32_t fragment_elements,
                    std::span<float> whole) {
  PBOX_CHECK(fragments.size() == whole.size());
  for_each_piece(whole.size(), elements, fragment_elements, [&](size_t from, size_t to, size_t n) {
    std::copy_n(fragments.begin() + static_cast<ptrdiff_t>(from), n,
                whole.begin() + static_cast<ptrdiff_t>(to));
  });
}

void split_into_fragments(std::span<const float> whole, uint32_t elements,
                          uint32_t fragment_elements, std::span<float> fragments) {
  PBOX_CHECK(fragments.size() == whole.size());
  for_each_piece(whole.size(), elements, fragment_elements, [&](size_t to, size_t from, size_t n) {
    std::copy_n(whole.begin() + static_cast<ptrdiff_t>(from), n,
                fragments.begin() + static_cast<ptrdiff_t>(to));
  });
}

ChunkState to_chunk_state(const StateView& state) {
  ChunkState owned{.chunk = state.chunk,
                   .rounds_finished = state.rounds_finished,
                   .steps = state.steps,
                   .values = {},
                   .contributors = {}};
  owned.values.reserve(state.weights.size() + state.optimizer_state.size());
  for (const auto section : packed_sections(state)) {
    owned.values.insert(owned.values.end(), section.begin(), section.end());
  }
  return owned;
}

std::vector<float> encode_block(const ChunkState& state, optimizer::OptimizerKind kind,
                                uint32_t elements, size_t ranks) {
  auto view = *decode(state.values, StateLayout::packed(kind, elements));
  view.rounds_finished = state.rounds_finished;
  view.steps = state.steps;
  const StateLayout layout = StateLayout::block(kind, elements, ranks);
  std::vector<float> block(layout.floats, 0.0f);
  encode(view, layout, block);
  if (ranks == 0) return block;
  ClockWriter writer(block.data(), layout, state.fragment_bytes);
  for (const uint16_t count : state.contributors) writer.add_contributor(count);
  for (const uint64_t clock : state.clocks) writer.add_clock(clock);
  return block;
}

std::optional<ChunkState> decode_block(std::span<const float> block, uint32_t chunk) {
  const auto layout = layout_of(block);
  if (!layout) return std::nullopt;
  auto view = decode(block, *layout);
  if (!view) return std::nullopt;
  view->chunk = chunk;
  ChunkState state = to_chunk_state(*view);
  if (layout->ranks > 0 && !read_clocks(block, *layout, state)) return std::nullopt;
  return state;
}

StateRecord record_of(const StateView& state) {
  const size_t values = state.weights.size() + state.optimizer_state.size();
  return {.chunk = state.chunk, .value_count = static_cast<uint32_t>(values), .steps = state.steps};
}

uint32_t checksum(const ChunkState& state) {
  std::vector<uint64_t> numbers = {state.rounds_finished, state.steps};
  numbers.insert(numbers.end(), state.clocks.begin(), state.clocks.end());
  const auto values = std::as_bytes(std::span(state.values));
  const auto counters = std::as_bytes(std::span(numbers));
  return wire::crc32c(wire::crc32c(0, values.data(), values.size()), counters.data(),
                      counters.size());
}

}  // namespace pbox::pipeline
