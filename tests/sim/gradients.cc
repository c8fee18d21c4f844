#include "tests/sim/gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/rng.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/reduce/reference.h"
#include "tests/sim/block_oracle.h"

namespace pbox::sim {

Gradients::Gradients(uint64_t seed, uint32_t job, const JobOptions& options)
    : stream_(seed * 64 + job), options_(options) {
  if (!options.pushes_unsound || options.guard.policy != wire::Guard::kReject) return;
  if (options.is_collective) return;  // CollectiveOracle draws it
  Rng rng(stream_ ^ 0x2545f4914f6cdd1dull);
  Rejected rejected;
  rejected.rank = static_cast<uint32_t>(rng.below(options.workers));
  rejected.tensor = static_cast<uint32_t>(rng.below(options.tensors.size()));
  rejected.round = static_cast<uint32_t>(rng.below(options.rounds));
  rejected.element = static_cast<uint32_t>(rng.below(options.tensors[rejected.tensor].elements));
  rejected_ = rejected;
}

std::span<const uint8_t> Gradients::digits(uint32_t rank, uint32_t process, uint32_t tensor,
                                           uint32_t round) const {
  constexpr size_t kDrawnBytesMax = 64u << 20;
  const uint64_t stream = (((stream_ * 8 + rank) * 64 + tensor) * 4096 + round) * 64 + process;
  const auto known = drawn_.find(stream);
  if (known != drawn_.end()) return known->second;
  if (drawn_bytes_ > kDrawnBytesMax) {
    drawn_.clear();
    drawn_bytes_ = 0;
  }
  drawn_bytes_ += options_.tensors[tensor].elements;
  return drawn_[stream] = draw_digits(stream * 0xd1342543de82ef95ull, tensor, round);
}

// One draw of 64 bits gives the digits of 16 elements, four bits each. The first element of a
// fragment is never unsound, so a fragment with a contribution shows it. Round 0 of a job in mode
// optimize carries weights, which have no unsound values.
std::vector<uint8_t> Gradients::draw_digits(uint64_t stream, uint32_t tensor,
                                            uint32_t round) const {
  constexpr uint32_t kUnsound = 15;
  constexpr size_t kOfDraw = 16;
  const bool has_unsound = options_.pushes_unsound && options_.guard.policy == wire::Guard::kZero &&
                           (options_.mode == pipeline::Mode::kAggregate || round > 0);
  const size_t elements = options_.tensors[tensor].elements;
  const size_t draws = (elements + kOfDraw - 1) / kOfDraw;
  std::vector<uint8_t> digits(draws * kOfDraw);
  for (size_t draw = 0; draw < draws; ++draw) {
    uint64_t bits = Rng(stream + draw).next();
    for (size_t index = 0; index < kOfDraw; ++index, bits >>= 4) {
      const auto drawn = static_cast<uint32_t>(bits & 15);
      const bool is_unsound = has_unsound && index > 0 && drawn == kUnsound;
      digits[draw * kOfDraw + index] = static_cast<uint8_t>(is_unsound ? 0 : 1 + drawn % 3);
    }
  }
  digits.resize(elements);
  leave_rows_out(stream, tensor, round, digits);
  if (options_.pushes_zeros) make_zeros(tensor, round, stream, digits);
  return digits;
}

// Makes some, most or all fragments of a tensor zero in most rounds. In some of these rounds the
// same fragments are zero on all ranks, so that the results are zero too; in others each rank has
// its own. A few of these fragments are zero except for their last element.
void Gradients::make_zeros(uint32_t tensor, uint32_t round, uint64_t stream,
                           std::vector<uint8_t>& digits) const {
  if (options_.tensors[tensor].row_elements > 0) return;
  Rng of_all((stream_ * 64 + tensor) * 4096 + round);
  constexpr uint64_t kZeros[] = {0, 4, 14, 16};  // number of zero fragments in 16
  const uint64_t zeros = kZeros[of_all.below(std::size(kZeros))];
  Rng rng(of_all.below(2) == 0 ? stream ^ 0x632be59bd9b4e019ull : of_all.next());
  const uint32_t element_bytes = wire::dtype_bytes(options_.dtype);
  const size_t chunk = options_.chunk_bytes / element_bytes;
  const size_t fragment = wire::fragment_bytes_for_mtu(options_.path_mtu, false) / element_bytes;
  for (size_t first = 0; first < digits.size(); first += chunk) {
    const size_t end = std::min(digits.size(), first + chunk);
    for (size_t at = first; at < end; at += fragment) {
      const uint64_t draw = rng.next();
      if (draw % 16 >= zeros) continue;
      const size_t count = std::min(fragment, end - at) - ((draw >> 8) % 8 == 0 ? 1 : 0);
      std::fill_n(digits.begin() + static_cast<ptrdiff_t>(at), count, uint8_t{0});
    }
  }
}

// Leaves rows of a table out: a rank pushes all rows in some rounds, none or few in others.
void Gradients::leave_rows_out(uint64_t stream, uint32_t tensor, uint32_t round,
                               std::vector<uint8_t>& digits) const {
  const uint32_t row_elements = options_.tensors[tensor].row_elements;
  if (row_elements == 0 || round == 0) return;
  Rng rng(stream ^ 0x9e3779b97f4a7c15ull);
  constexpr uint64_t kPushed[] = {0, 1, 8, 60, 64};  // number of pushed rows in 64
  const uint64_t pushed = kPushed[rng.below(std::size(kPushed))];
  for (size_t first = 0; first < digits.size(); first += row_elements) {
    if (rng.below(64) < pushed) continue;
    const size_t end = std::min(digits.size(), first + row_elements);
    std::fill(digits.begin() + static_cast<ptrdiff_t>(first),
              digits.begin() + static_cast<ptrdiff_t>(end), uint8_t{0});
  }
}

float unsound_value(const wire::GuardSpec& guard, uint64_t element) {
  const float beyond = 2 * guard.max_abs;
  switch (element % 3) {
    case 0: return std::numeric_limits<float>::quiet_NaN();
    case 1: return -std::numeric_limits<float>::infinity();
    default: return beyond > 0 ? beyond : std::numeric_limits<float>::infinity();
  }
}

void Gradients::fill(uint32_t rank, uint32_t process, uint32_t tensor, uint32_t round,
                     std::vector<std::byte>& bytes) const {
  const uint32_t elements = options_.tensors[tensor].elements;
  std::vector<float> values(elements);
  if (options_.tensors[tensor].compression != wire::Compression::kNone) {
    bytes.resize(values.size() * sizeof(float));
    fill_compressed(rank, tensor, round, values);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  const auto own = digits(rank, process, tensor, round);
  const uint32_t shift = 3 * (rank % kRanksToldApart);
  for (uint32_t element = 0; element < elements; ++element) {
    values[element] = static_cast<float>(uint32_t{own[element]} << shift);
  }
  for (uint32_t element = 0; element < elements; ++element) {
    const bool is_unsound =
        own[element] == 0 && options_.tensors[tensor].row_elements == 0 && !options_.pushes_zeros;
    if (is_unsound) values[element] = unsound_value(options_.guard, element);
  }
  if (rejected_ && rejected_->rank == rank && rejected_->tensor == tensor &&
      rejected_->round == round) {
    values[rejected_->element] = unsound_value(options_.guard, rejected_->element);
  }
  bytes.resize(size_t{elements} * wire::dtype_bytes(options_.dtype));
  reduce::reference::narrow(options_.dtype, bytes.data(), values.data(), elements);
}

void Gradients::fill_compressed(uint32_t rank, uint32_t tensor, uint32_t round,
                                std::span<float> values) const {
  const uint64_t stream = (((stream_ * 8 + rank) * 64 + tensor) * 4096 + round) * 64;
  const auto chunk_elements = static_cast<uint32_t>(options_.chunk_bytes / sizeof(float));
  sim::fill_compressed(options_.tensors[tensor], stream * 0xd1342543de82ef95ull, chunk_elements,
                       values);
}

void Gradients::sum(uint32_t ranks, uint32_t tensor, uint32_t round, uint64_t first,
                    std::span<float> sums) const {
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    const auto own = digits(rank, 0, tensor, round).subspan(first, sums.size());
    for (size_t index = 0; index < sums.size(); ++index) {
      sums[index] += static_cast<float>(uint32_t{own[index]} << (3 * rank));
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
        (ranks >> rank & 1) != 0 ? digits(rank, 0, tensor, round)[element] : 0u;
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
