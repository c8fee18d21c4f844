#include "tests/sim/job_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "nic/wire/chunk_layout.h"
#include "pipeline/reduce/reference.h"

namespace pbox::sim {

JobModel::JobModel(uint64_t seed, uint32_t index, const JobOptions& options, HostId first_host)
    : index(index),
      options(options),
      first_host(first_host),
      name("job" + std::to_string(index)),
      gradients(seed, index, options),
      oracle(gradients),
      fragment_bytes_(wire::fragment_bytes_for_mtu(options.path_mtu, false)) {
  const uint32_t chunk_elements = options.chunk_bytes / element_bytes();
  for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
    const uint32_t elements = options.tensors[tensor].elements;
    for (uint32_t first = 0; first < elements; first += chunk_elements) {
      chunks.push_back({tensor, first, std::min(chunk_elements, elements - first)});
    }
  }
  consumed_.resize(chunks.size());
  may_fail = options.rogue;
}

std::optional<std::string> JobModel::wrong(uint32_t id, uint32_t round, uint32_t ranks,
                                           const std::byte* bytes) {
  if (!has_known_sums()) return std::nullopt;
  const Chunk& chunk = chunks[id];
  if (!may_lack_ranks()) {
    const std::byte* expected =
        oracle.result(chunk.tensor, round).data() + size_t{chunk.first_element} * element_bytes();
    if (std::memcmp(bytes, expected, size_t{chunk.elements} * element_bytes()) == 0) {
      return std::nullopt;
    }
    return "the result is not the oracle's";
  }
  const uint32_t fragment_elements = fragment_bytes_ / element_bytes();
  for (uint32_t first = 0; first < chunk.elements; first += fragment_elements) {
    const uint32_t count = std::min(fragment_elements, chunk.elements - first);
    if (auto what = wrong_part(chunk, round, ranks, bytes, first, count)) return what;
  }
  return std::nullopt;
}

// As the box makes it: the sum, divided, narrowed.
float JobModel::value(uint32_t contributors, const Chunk& chunk, uint32_t round,
                      uint32_t element) const {
  const float sum =
      gradients.sum(contributors, chunk.tensor, round, chunk.first_element + uint64_t{element});
  const auto count = static_cast<float>(std::popcount(contributors));
  const float result = options.reduction == pipeline::Reduction::kMean ? sum * (1.0f / count) : sum;
  std::array<std::byte, 4> bytes;
  reduce::reference::narrow(options.dtype, bytes.data(), &result, 1);
  return reduce::reference::load_element(options.dtype, bytes.data(), 0);
}

// A fragment has whole contributions: there is one set of ranks whose sum is all of its elements.
std::optional<std::string> JobModel::wrong_part(const Chunk& chunk, uint32_t round, uint32_t ranks,
                                                const std::byte* bytes, uint32_t first,
                                                uint32_t count) {
  // Mostly everybody is in.
  for (uint32_t contributors = all_ranks(); contributors > 0; --contributors) {
    if ((contributors & ranks) != ranks) continue;
    bool fits = true;
    for (uint32_t element = first; element < first + count && fits; ++element) {
      fits = reduce::reference::load_element(options.dtype, bytes, element) ==
             value(contributors, chunk, round, element);
    }
    if (fits) return std::nullopt;
  }
  return "elements from " + std::to_string(first) + " on are no sum of ranks that has all of " +
         std::to_string(ranks);
}

std::optional<std::string> JobModel::consume(uint32_t rank, uint32_t id, uint32_t round,
                                             const std::byte* bytes) {
  if (!has_known_sums()) return std::nullopt;
  if (!may_lack_ranks()) return wrong(id, round, 0, bytes);
  const size_t size = size_t{chunks[id].elements} * element_bytes();
  Consumed& consumed = consumed_[id][round];
  if (consumed.ranks.empty()) consumed.bytes.assign(bytes, bytes + size);
  consumed.ranks.insert(rank);
  if (std::memcmp(consumed.bytes.data(), bytes, size) != 0) {
    return "rank " + std::to_string(*consumed.ranks.begin()) + " has consumed another result";
  }
  return wrong(id, round, 0, bytes);
}

void JobModel::forget(uint32_t rank) {
  for (auto& rounds : consumed_) {
    for (auto& [round, consumed] : rounds) consumed.ranks.erase(rank);
  }
}

}  // namespace pbox::sim
