#include "tests/sim/gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "pipeline/reduce/reference.h"

namespace pbox::sim {

Gradients::Gradients(uint64_t seed, uint32_t job, const JobOptions& options)
    : stream_(seed * 64 + job), options_(options) {
  if (!options.pushes_unsound || options.guard.policy != wire::Guard::kReject) return;
  Rng rng(stream_ ^ 0x2545f4914f6cdd1dull);
  Rejected rejected;
  rejected.rank = static_cast<uint32_t>(rng.below(options.workers));
  rejected.tensor = static_cast<uint32_t>(rng.below(options.tensors.size()));
  rejected.round = static_cast<uint32_t>(rng.below(options.rounds));
  rejected.element = static_cast<uint32_t>(rng.below(options.tensors[rejected.tensor].elements));
  rejected_ = rejected;
}

// Round 0 of a job in mode optimize is weights, which have no unsound values.
Gradients::Digits::Digits(const Gradients& gradients, uint32_t rank, uint32_t process,
                          uint32_t tensor, uint32_t round)
    : stream_(((((gradients.stream_ * 8 + rank) * 64 + tensor) * 4096 + round) * 64 + process) *
              0xd1342543de82ef95ull),
      has_unsound_(gradients.options_.pushes_unsound &&
                   gradients.options_.guard.policy == wire::Guard::kZero &&
                   (gradients.options_.mode == pipeline::Mode::kAggregate || round > 0)) {}

float Gradients::unsound_value(uint64_t element) const {
  const float beyond = 2 * options_.guard.max_abs;
  switch (element % 3) {
    case 0: return std::numeric_limits<float>::quiet_NaN();
    case 1: return -std::numeric_limits<float>::infinity();
    default: return beyond > 0 ? beyond : std::numeric_limits<float>::infinity();
  }
}

// One draw of 64 bits gives the digits of 16 elements.
void Gradients::Digits::draw(uint64_t block) {
  block_ = block;
  bits_ = Rng(stream_ + block).next();
}

void Gradients::fill(uint32_t rank, uint32_t process, uint32_t tensor, uint32_t round,
                     std::vector<std::byte>& bytes) const {
  const uint32_t elements = options_.tensors[tensor].elements;
  std::vector<float> values(elements);
  Digits digits(*this, rank, process, tensor, round);
  for (uint32_t element = 0; element < elements; ++element) {
    values[element] = static_cast<float>(digits.at(element) << (3 * (rank % kRanksToldApart)));
    if (digits.is_unsound(element)) values[element] = unsound_value(element);
  }
  if (rejected_ && rejected_->rank == rank && rejected_->tensor == tensor &&
      rejected_->round == round) {
    values[rejected_->element] = unsound_value(rejected_->element);
  }
  bytes.resize(size_t{elements} * wire::dtype_bytes(options_.dtype));
  reduce::reference::narrow(options_.dtype, bytes.data(), values.data(), elements);
}

void Gradients::sum(uint32_t ranks, uint32_t tensor, uint32_t round, uint64_t first,
                    std::span<float> sums) const {
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    Digits digits(*this, rank, 0, tensor, round);
    for (size_t index = 0; index < sums.size(); ++index) {
      sums[index] += static_cast<float>(digits.at(first + index) << (3 * rank));
    }
  }
}

std::string Gradients::explain(double sum, uint32_t ranks, uint32_t tensor, uint32_t round,
                               uint64_t element) const {
  if (!(sum >= 0 && sum < 0x1p24) || std::rint(sum) != sum) {
    return "the sum " + std::to_string(sum) + " cannot be a sum of contributions";
  }
  const auto whole = static_cast<uint32_t>(sum);
  std::string text;
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    const uint32_t found = whole >> (3 * rank) & 7;
    const uint32_t expected =
        (ranks >> rank & 1) != 0 ? Digits(*this, rank, 0, tensor, round).at(element) : 0;
    if (found == expected) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank);
    if (found == 0) {
      text += ": missing";
    } else if (expected == 0) {
      text += ": counted twice";
    } else {
      text += found == 2 * expected ? ": twice, or of another round" : ": of another round";
    }
  }
  return text.empty() ? "the sum is right" : text;
}

}  // namespace pbox::sim
