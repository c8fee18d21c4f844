#include "pipeline/state/backup_block.h"

#include <algorithm>

#include "base/check.h"
#include "base/numa_arena.h"

namespace pbox::pipeline {
namespace {

constexpr size_t kFloatsPerCacheLine = kCacheLineBytes / sizeof(float);
// Each 16 bits, the least first.
constexpr size_t kRounds = 0, kSteps = 4, kElements = 8, kStateFloats = 10;
constexpr size_t kCountsFloats = kFloatsPerCacheLine;

size_t cache_lines(size_t floats) {
  return align_up(floats, kFloatsPerCacheLine);
}

void put(float* counts, size_t words, uint64_t value) {
  for (size_t word = 0; word < words; ++word) {
    counts[word] = static_cast<float>(value >> (16 * word) & 0xffff);
  }
}

// Nothing if some word is none: a block that was never sealed, or is not one.
std::optional<uint64_t> get(const float* counts, size_t words) {
  uint64_t value = 0;
  for (size_t word = 0; word < words; ++word) {
    const float part = counts[word];
    if (!(part >= 0 && part <= 0xffff)) return std::nullopt;
    value |= uint64_t{static_cast<uint16_t>(part)} << (16 * word);
  }
  return value;
}

}  // namespace

BackupBlock::BackupBlock(optimizer::OptimizerKind kind, uint32_t elements)
    : state(cache_lines(elements)),
      counts(state + cache_lines(optimizer::state_floats_per_element(kind) * size_t{elements})),
      floats(counts + kCountsFloats) {}

void seal(float* block, optimizer::OptimizerKind kind, uint32_t elements, uint64_t rounds_finished,
          uint64_t steps) {
  float* counts = block + BackupBlock(kind, elements).counts;
  put(counts + kRounds, 4, rounds_finished);
  put(counts + kSteps, 4, steps);
  put(counts + kElements, 2, elements);
  put(counts + kStateFloats, 1, optimizer::state_floats_per_element(kind));
}

std::optional<ChunkState> unseal(std::span<const float> block, uint32_t chunk) {
  if (block.size() < kCountsFloats) return std::nullopt;
  const float* counts = block.data() + block.size() - kCountsFloats;
  const auto rounds = get(counts + kRounds, 4), steps = get(counts + kSteps, 4);
  const auto elements = get(counts + kElements, 2), state = get(counts + kStateFloats, 1);
  if (!rounds || !steps || !elements || !state || *rounds == 0) return std::nullopt;
  const size_t begin = cache_lines(*elements), floats = *state * *elements;
  if (begin + cache_lines(floats) + kCountsFloats != block.size()) return std::nullopt;
  ChunkState found{.chunk = chunk,
                   .rounds_finished = *rounds,
                   .steps = *steps,
                   .values = {block.begin(), block.begin() + static_cast<ptrdiff_t>(*elements)},
                   .contributors = {},
                   .fragment_bytes = 0};
  const auto state_begin = block.begin() + static_cast<ptrdiff_t>(begin);
  found.values.insert(found.values.end(), state_begin,
                      state_begin + static_cast<ptrdiff_t>(floats));
  return found;
}

std::vector<float> block_of(const ChunkState& state, optimizer::OptimizerKind kind,
                            uint32_t elements) {
  PBOX_CHECK(state.values.size() == state_values(kind, elements));
  const BackupBlock layout(kind, elements);
  std::vector<float> block(layout.floats, 0.0f);
  std::copy_n(state.values.begin(), elements, block.begin());
  std::copy(state.values.begin() + elements, state.values.end(),
            block.begin() + static_cast<ptrdiff_t>(layout.state));
  seal(block.data(), kind, elements, state.rounds_finished, state.steps);
  return block;
}

}  // namespace pbox::pipeline
