#include "tests/sim/gradients.h"

#include <cmath>

#include "base/rng.h"
#include "pipeline/reduce/reference.h"

namespace pbox::sim {

uint32_t Gradients::digit(uint32_t rank, uint32_t process, uint32_t tensor, uint32_t round,
                          uint64_t element) const {
  // One draw of 64 bits gives 16 elements' digits.
  const uint64_t place = (((stream_ * 8 + rank) * 64 + tensor) * 4096 + round) * 64 + process;
  const uint64_t bits = Rng(place * 0xd1342543de82ef95ull + element / 16).next();
  return 1 + static_cast<uint32_t>((bits >> (4 * (element % 16))) & 15) % 3;
}

void Gradients::fill(uint32_t rank, uint32_t process, uint32_t tensor, uint32_t round,
                     std::vector<std::byte>& bytes) const {
  const uint32_t elements = options_.tensors[tensor].elements;
  std::vector<float> values(elements);
  for (uint32_t element = 0; element < elements; ++element) {
    values[element] =
        static_cast<float>(digit(rank, process, tensor, round, element) << (3 * rank));
  }
  bytes.resize(size_t{elements} * wire::dtype_bytes(options_.dtype));
  reduce::reference::narrow(options_.dtype, bytes.data(), values.data(), elements);
}

float Gradients::sum(uint32_t ranks, uint32_t tensor, uint32_t round, uint64_t element) const {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if ((ranks >> rank & 1) != 0) sum += digit(rank, 0, tensor, round, element) << (3 * rank);
  }
  return static_cast<float>(sum);
}

std::string Gradients::explain(double sum, uint32_t ranks, uint32_t tensor, uint32_t round,
                               uint64_t element) const {
  if (!(sum >= 0 && sum < 0x1p24) || std::rint(sum) != sum) {
    return "the sum " + std::to_string(sum) + " is none of contributions";
  }
  const auto whole = static_cast<uint32_t>(sum);
  std::string text;
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    const uint32_t found = whole >> (3 * rank) & 7;
    const uint32_t expected = (ranks >> rank & 1) != 0 ? digit(rank, 0, tensor, round, element) : 0;
    if (found == expected) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank);
    if (found == 0) {
      text += ": missing";
    } else if (expected == 0) {
      text += ": counted already";
    } else {
      text += found == 2 * expected ? ": twice, or of another round" : ": of another round";
    }
  }
  return text.empty() ? "the sum is right" : text;
}

}  // namespace pbox::sim
