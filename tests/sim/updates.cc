#include "tests/sim/updates.h"

#include <algorithm>

#include "pipeline/reduce/reference.h"
#include "tests/sim/oracle.h"

namespace pbox::sim {

Updates::Updates(const JobOptions& options)
    : options_(options),
      bits_(bits(options)),
      alternates_(options.sync.model != wire::SyncModel::kDrop &&
                  2 * options.rounds < (1u << bits_)) {}

uint32_t Updates::bits(const JobOptions& options) {
  switch (options.dtype) {
    case wire::Dtype::kF32: return 24 / options.workers;
    case wire::Dtype::kF16: return 11 / options.workers;
    case wire::Dtype::kBf16: return 8 / options.workers;
    default: break;  // types of collectives only
  }
  return 1;
}

uint32_t Updates::rounds_max(const JobOptions& options) {
  return (1u << std::min(bits(options), 12u)) - 1;
}

uint32_t Updates::digit(uint32_t rank, uint32_t round, uint64_t element) const {
  return 1 + (alternates_ ? static_cast<uint32_t>(rank + round + element) & 1 : 0);
}

// Returns the sum of the digits of all rounds below `round` that count.
uint32_t Updates::sum_below(uint32_t rank, uint32_t round, uint64_t element) const {
  const uint32_t first = first_[rank > 0];
  if (round <= first) return 0;
  const uint32_t rounds = round - first;
  const uint32_t begins_with_two = digit(rank, first, element) - 1;
  return rounds + (alternates_ ? (rounds + begins_with_two) / 2 : 0);
}

bool Updates::pushes(uint32_t rank, uint32_t round, uint32_t tensor, uint64_t element) const {
  const uint32_t row_elements = options_.tensors[tensor].row_elements;
  if (row_elements == 0 || round == 0) return true;
  const uint64_t row = element / row_elements;
  switch ((row + rank) % 4) {
    case 0: return true;
    case 1: return (round + row / 4) % 2 == 0;
    case 2: return (round + row / 4) % 5 == 0;
    default: return false;
  }
}

void Updates::fill(uint32_t rank, uint32_t round, uint32_t tensor,
                   std::vector<std::byte>& bytes) const {
  const size_t elements = bytes.size() / wire::dtype_bytes(options_.dtype);
  std::vector<float> values(elements);
  const bool is_mean = options_.reduction == pipeline::Reduction::kMean;
  const float share = is_mean ? static_cast<float>(options_.workers) : 1.0f;
  const float factor = round == 0 ? 1.0f : -share / optimizer_of(options_).learning_rate;
  // Digits depend on whether the element's number is even.
  const float of_even = factor * static_cast<float>(digit(rank, round, 0) << (bits_ * rank));
  const float of_odd = factor * static_cast<float>(digit(rank, round, 1) << (bits_ * rank));
  for (size_t element = 0; element < elements && round < options_.rounds; ++element) {
    if (!pushes(rank, round, tensor, element)) continue;
    values[element] = (element & 1) == 0 ? of_even : of_odd;
  }
  reduce::reference::narrow(options_.dtype, bytes.data(), values.data(), elements);
}

std::optional<std::vector<uint32_t>> Updates::whole(const std::byte* weights,
                                                    uint32_t count) const {
  const auto end = static_cast<float>(uint64_t{1} << (bits_ * options_.workers));
  std::vector<uint32_t> numbers(count);
  for (uint32_t index = 0; index < count; ++index) {
    const float weight = reduce::reference::load_element(options_.dtype, weights, index);
    if (!(weight >= 0 && weight < end)) return std::nullopt;
    numbers[index] = static_cast<uint32_t>(weight);
    if (static_cast<float>(numbers[index]) != weight) return std::nullopt;
  }
  return numbers;
}

std::optional<uint32_t> Updates::count_rows(uint32_t rank, std::span<const uint32_t> weights,
                                            uint32_t tensor, uint64_t first, uint32_t most) const {
  std::vector<uint32_t> sums(weights.size());
  std::optional<uint32_t> found;
  for (uint32_t rounds = first_[rank > 0];; ++rounds) {
    bool fits = true;
    for (size_t index = 0; index < weights.size(); ++index) {
      const uint32_t own = weights[index] >> (bits_ * rank) & ((1u << bits_) - 1);
      fits = fits && own == sums[index];
    }
    if (fits) found = rounds;
    if (rounds >= most) return found;
    for (size_t index = 0; index < weights.size(); ++index) {
      if (!pushes(rank, rounds, tensor, first + index)) continue;
      sums[index] += digit(rank, rounds, first + index);
    }
  }
}

std::optional<uint32_t> Updates::count(uint32_t rank, std::span<const uint32_t> weights,
                                       uint32_t tensor, uint64_t first, uint32_t most) const {
  if (options_.tensors[tensor].row_elements > 0) {
    return count_rows(rank, weights, tensor, first, most);
  }
  const auto digit_of = [&](uint32_t weight) {
    return weight >> (bits_ * rank) & ((1u << bits_) - 1);
  };
  uint32_t rounds = first_[rank > 0];
  while (rounds < options_.rounds && sum_below(rank, rounds, first) < digit_of(weights.front())) {
    ++rounds;
  }
  const uint32_t expected[2] = {sum_below(rank, rounds, first), sum_below(rank, rounds, first + 1)};
  uint32_t differences = 0;
  for (size_t index = 0; index < weights.size(); ++index) {
    differences |= digit_of(weights[index]) ^ expected[index & 1];
  }
  return differences == 0 ? std::optional(rounds) : std::nullopt;
}

}  // namespace pbox::sim
