#include "tests/sim/delta_oracle.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "nic/quantize/reference.h"
#include "pipeline/optimizer/reference.h"
#include "tests/sim/oracle.h"

namespace pbox::sim {

void DeltaOracle::begin(uint32_t chunk, const Values& weights) {
  results_[chunk][0] = {weights};
}

void DeltaOracle::step(uint32_t chunk, uint32_t round, Values& master) const {
  Values sums(master.size());
  blocks_.sum(chunk, round, (1u << job_.workers) - 1, 0, sums);
  const optimizer::OptimizerSpec spec = optimizer_of(job_);
  const bool is_mean = job_.reduction == pipeline::Reduction::kMean;
  const optimizer::StepParameters parameters{
      .learning_rate = spec.learning_rate,
      .weight_decay = spec.weight_decay,
      .gradient_scale = is_mean ? 1.0f / static_cast<float>(job_.workers) : 1.0f,
      .step = round};
  optimizer::reference::step(spec.kind, optimizer::step_coefficients(spec, parameters),
                             master.data(), nullptr, sums.data(), sums.size());
}

std::optional<std::string> DeltaOracle::made(uint32_t chunk, uint32_t round, Held& held,
                                             const std::byte* delta, const Values& weights) {
  auto& results = results_[chunk][round];
  if (held.weights.empty() || delta == nullptr) {
    held = {weights, weights};
    const bool is_known = std::find(results.begin(), results.end(), weights) != results.end();
    if (is_known) return std::nullopt;
    return "a box has other weights than some box has made";
  }
  step(chunk, round, held.master);
  Values difference(held.weights.size());
  std::transform(held.weights.begin(), held.weights.end(), difference.begin(),
                 [](float weight) { return -weight; });
  const std::vector<std::byte> expected = blocks_.result_of(chunk, round, held.master, difference);
  quantize::reference::accumulate(blocks_.dtype(chunk), held.weights.data(), expected.data(),
                                  held.weights.size(), FLT_MAX, true, false);
  results.push_back(held.weights);
  if (std::memcmp(expected.data(), delta, expected.size()) != 0) {
    return "the delta differs from the oracle's";
  }
  if (held.weights != weights) return "the delta does not lead to the weights that the box keeps";
  return std::nullopt;
}

std::optional<std::string> DeltaOracle::consumed(uint32_t chunk, uint32_t round,
                                                 const std::byte* values) const {
  const auto of_chunk = results_.find(chunk);
  if (of_chunk == results_.end()) return "no box has made this result";
  const auto found = of_chunk->second.find(round);
  if (found == of_chunk->second.end()) return "no box has made this result";
  for (const Values& result : found->second) {
    if (std::memcmp(result.data(), values, result.size() * sizeof(float)) == 0) return std::nullopt;
  }
  return "the weights differ from all that boxes have made";
}

std::optional<uint32_t> DeltaOracle::round_of(uint32_t chunk, const std::byte* weights) const {
  const auto of_chunk = results_.find(chunk);
  if (of_chunk == results_.end()) return std::nullopt;
  for (auto at = of_chunk->second.rbegin(); at != of_chunk->second.rend(); ++at) {
    for (const Values& result : at->second) {
      if (std::memcmp(result.data(), weights, result.size() * sizeof(float)) == 0) return at->first;
    }
  }
  return std::nullopt;
}

std::optional<std::string> DeltaOracle::read(uint32_t rank, uint32_t chunk, uint32_t round,
                                             const std::byte* weights) {
  const auto found = round_of(chunk, weights);
  if (!found) return "the weights differ from those after any round";
  uint32_t& before = read_[{rank, chunk}];
  if (*found < std::max(before, round)) {
    return "weights of round " + std::to_string(*found) + ", after those of round " +
           std::to_string(before);
  }
  before = *found;
  return std::nullopt;
}

}  // namespace pbox::sim
