#include "tests/sim/block_oracle.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "base/rng.h"
#include "nic/quantize/reference.h"

namespace pbox::sim {

void fill_compressed(const TensorOptions& tensor, uint64_t stream, uint32_t chunk_elements,
                     std::span<float> values) {
  const wire::Dtype dtype = wire::payload_dtype(tensor.compression);
  const uint32_t block = wire::block_layout(dtype).elements;
  const float most = quantize::reference::integer_max(dtype);
  const auto steps = static_cast<uint64_t>(2 * (most - 2) * 16);  // each is 1/16
  Rng rng(stream);
  for (size_t index = 0; index < values.size(); ++index) {
    const bool is_first = index % chunk_elements % block == 0;
    const float drawn = static_cast<float>(rng.below(steps + 1)) / 16 - (most - 2);
    values[index] = is_first ? most : drawn;
  }
}

BlockOracle::BlockOracle(const std::string& job, uint32_t part, pipeline::Reduction reduction,
                         uint32_t workers)
    : seed_(quantize::hash_of(job)), part_(part), reduction_(reduction), workers_(workers) {}

std::vector<std::byte> BlockOracle::encoded(const Chunk& chunk, const Values& values,
                                            Values& residue, uint64_t seed, uint32_t rank,
                                            uint32_t round, uint64_t tensor,
                                            uint64_t first_element) {
  residue.resize(chunk.elements);
  std::vector<std::byte> blocks(wire::payload_bytes(chunk.dtype, chunk.elements));
  quantize::reference::encode(chunk.dtype, blocks.data(), values.data(), residue.data(),
                              chunk.elements,
                              quantize::key_of({.seed = seed,
                                                .tensor = tensor,
                                                .first_element = first_element,
                                                .rank = rank,
                                                .round = round}));
  return blocks;
}

uint32_t BlockOracle::pushed_rounds(uint32_t chunk, uint32_t rank) const {
  const auto found = at(chunk).pushes.find(rank);
  return found == at(chunk).pushes.end() ? 0 : static_cast<uint32_t>(found->second.size());
}

void BlockOracle::push(uint32_t id, uint32_t rank, const Values& values) {
  State& state = chunks_.at(id);
  auto& pushes = state.pushes[rank];
  const auto round = static_cast<uint32_t>(pushes.size());
  pushes.push_back(encoded(state.chunk, values, state.residues[rank], seed_, rank, round,
                           state.chunk.tensor_hash, state.chunk.first_element));
}

void BlockOracle::sum(uint32_t id, uint32_t round, uint32_t ranks, uint32_t first,
                      std::span<float> sums) const {
  const State& state = at(id);
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    const std::byte* push = state.pushes.at(rank).at(round).data();
    for (size_t index = 0; index < sums.size(); ++index) {
      sums[index] += quantize::reference::load_element(state.chunk.dtype, push, first + index);
    }
  }
}

std::vector<std::byte> BlockOracle::result_of(uint32_t id, uint32_t round, const Values& values,
                                              Values& residue) const {
  return encoded(at(id).chunk, values, residue, seed_, quantize::kBoxRank, round,
                 uint64_t{part_} << 32 | id, 0);
}

std::optional<std::string> BlockOracle::made(uint32_t id, uint32_t round, Values& residue,
                                             const std::byte* blocks) {
  State& state = chunks_.at(id);
  Values sums(state.chunk.elements);
  sum(id, round, (1u << workers_) - 1, 0, sums);
  if (reduction_ == pipeline::Reduction::kMean) {
    for (float& value : sums) value *= 1.0f / static_cast<float>(workers_);
  }
  const auto expected = result_of(id, round, sums, residue);
  state.results[round].push_back(expected);
  if (std::memcmp(expected.data(), blocks, expected.size()) == 0) return std::nullopt;
  return "the result differs from the oracle's blocks";
}

std::optional<std::string> BlockOracle::given_back(uint32_t id, uint32_t round,
                                                   const std::byte* blocks) const {
  const auto found = at(id).results.find(round);
  if (found != at(id).results.end()) {
    for (const auto& result : found->second) {
      if (std::memcmp(result.data(), blocks, result.size()) == 0) return std::nullopt;
    }
  }
  return "a rank has given back another result than a box has made";
}

std::optional<std::string> BlockOracle::consumed(uint32_t id, uint32_t round,
                                                 const std::byte* values) const {
  const State& state = at(id);
  const auto found = state.results.find(round);
  if (found == state.results.end()) return "no box has made this result";
  Values decoded(state.chunk.elements);
  for (const auto& result : found->second) {
    quantize::reference::accumulate(state.chunk.dtype, decoded.data(), result.data(),
                                    decoded.size(), FLT_MAX, false, false);
    if (std::memcmp(decoded.data(), values, decoded.size() * sizeof(float)) == 0) {
      return std::nullopt;
    }
  }
  return "the result differs from all that boxes have made";
}

}  // namespace pbox::sim
