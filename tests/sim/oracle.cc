#include "tests/sim/oracle.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "pipeline/optimizer/reference.h"
#include "pipeline/reduce/reference.h"

namespace pbox::sim {

optimizer::OptimizerSpec optimizer_of(const JobOptions& job) {
  optimizer::OptimizerSpec spec;
  spec.kind = job.optimizer;
  if (job.is_relaxed()) {  // an optimizer whose steps are whole numbers (updates.h)
    spec.learning_rate = 0.5f;
    spec.weight_decay = 0;
    return spec;
  }
  spec.learning_rate = 0.0625f;
  spec.momentum = 0.5f;
  spec.weight_decay = 0.01f;
  return spec;
}

Oracle::Oracle(const Gradients& gradients, uint32_t chunk_elements)
    : gradients_(gradients),
      chunk_elements_(chunk_elements),
      tensors_(gradients.options().tensors.size()) {
  for (uint32_t index = 0; index < tensors_.size(); ++index) {
    const uint32_t elements = gradients.options().tensors[index].elements;
    for (uint32_t first = 0; first < elements; first += chunk_elements) {
      tensors_[index].chunks.push_back(
          {.first = first, .elements = std::min(chunk_elements, elements - first)});
    }
  }
}

const std::vector<std::byte>& Oracle::result(uint32_t tensor, uint32_t round) {
  const JobOptions& job = gradients_.options();
  auto& results = tensors_[tensor].results;
  results.reserve(job.rounds);  // references that were returned must stay valid
  while (results.size() <= round) {
    results.emplace_back(size_t{job.tensors[tensor].elements} * wire::dtype_bytes(job.dtype));
  }
  for (Chunk& chunk : tensors_[tensor].chunks) {
    while (chunk.rounds <= round) next(tensor, chunk);
  }
  return results[round];
}

void Oracle::begin_with(uint32_t tensor, uint32_t first_element, State state) {
  Chunk& chunk = tensors_[tensor].chunks[first_element / chunk_elements_];
  PBOX_CHECK(chunk.rounds == 0);
  chunk.weights = std::move(state.weights);
  chunk.state = std::move(state.optimizer_state);
  chunk.since = 0 - static_cast<uint32_t>(state.steps);
  chunk.is_restored = true;
}

bool Oracle::has_had(uint32_t tensor, uint32_t first_element, uint32_t round, const State& state) {
  result(tensor, round);
  const auto& states = tensors_[tensor].chunks[first_element / chunk_elements_].states[round];
  return std::find(states.begin(), states.end(), state) != states.end();
}

void Oracle::restart_optimizer(uint32_t tensor, uint32_t first_element, uint32_t round,
                               const State* from) {
  const wire::Dtype dtype = gradients_.options().dtype;
  const std::byte* weights =
      result(tensor, round).data() + size_t{first_element} * wire::dtype_bytes(dtype);
  Chunk& chunk = tensors_[tensor].chunks[first_element / chunk_elements_];
  const uint32_t rounds = std::exchange(chunk.rounds, round + 1);
  chunk.since = round - static_cast<uint32_t>(from != nullptr ? from->steps : 0);
  if (gradients_.options().racks.empty()) {
    reduce::reference::store(dtype, chunk.weights.data(), weights, chunk.elements, FLT_MAX);
  } else if (rounds > chunk.rounds) {
    PBOX_CHECK(rounds == chunk.rounds + 1);  // the result of the next round was computed already
    chunk.weights = chunk.former_weights;
  }
  std::fill(chunk.state.begin(), chunk.state.end(), 0.0f);
  if (from != nullptr) chunk.state = from->optimizer_state;
  keep(chunk);
}

// Keeps the state after the last computed round.
void Oracle::keep(Chunk& chunk) const {
  if (!gradients_.options().has_snapshots) return;
  const uint32_t round = chunk.rounds - 1;
  chunk.states[round].push_back({chunk.weights, chunk.state, uint32_t{round - chunk.since}});
}

void Oracle::next(uint32_t tensor, Chunk& chunk) {
  const JobOptions& job = gradients_.options();
  const uint32_t round = chunk.rounds++;
  const bool optimizes = job.mode == pipeline::Mode::kOptimize;
  const uint32_t all = (1u << job.workers) - 1;
  // The initial weights are rank 0's.
  const uint32_t ranks = optimizes && round == 0 ? 1 : all;
  std::vector<float> values(chunk.elements);
  gradients_.sum(ranks, tensor, round, chunk.first, values);
  const bool is_gradient = !optimizes || round > 0;
  const bool is_mean = job.reduction == pipeline::Reduction::kMean;
  const auto divisor = static_cast<float>(job.weights(ranks, tensor, round));
  // The box divides a weighted sum before the step. The step itself divides any other sum.
  if (is_gradient && is_mean && (job.weighted || !optimizes)) {
    reduce::reference::scale(values.data(), 1.0f / divisor, chunk.elements);
  }
  if (optimizes && round == 0 && !chunk.is_restored) {
    chunk.weights = values;
    chunk.state.resize(chunk.elements * optimizer::state_floats_per_element(job.optimizer));
  } else if (optimizes && round > 0) {
    if (!job.racks.empty()) chunk.former_weights = chunk.weights;
    step(tensor, chunk, values, round);
  }
  if (optimizes) keep(chunk);
  std::byte* result =
      tensors_[tensor].results[round].data() + size_t{chunk.first} * wire::dtype_bytes(job.dtype);
  reduce::reference::narrow(job.dtype, result, optimizes ? chunk.weights.data() : values.data(),
                            chunk.elements);
}

void Oracle::step(uint32_t tensor, Chunk& chunk, const std::vector<float>& sums,
                  uint32_t round) const {
  const JobOptions& job = gradients_.options();
  const bool divides = job.reduction == pipeline::Reduction::kMean && !job.weighted;
  const float scale = divides ? 1.0f / static_cast<float>(job.workers) : 1.0f;
  const optimizer::OptimizerSpec spec = optimizer_of(job);
  const optimizer::StepParameters parameters{.learning_rate = spec.learning_rate,
                                             .weight_decay = spec.weight_decay,
                                             .gradient_scale = scale,
                                             .step = round - chunk.since};
  const auto coefficients = optimizer::step_coefficients(spec, parameters);
  if (job.tensors[tensor].row_elements == 0) {
    optimizer::reference::step(job.optimizer, coefficients, chunk.weights.data(),
                               chunk.state.data(), sums.data(), sums.size());
    return;
  }
  // Every element of a row that some rank pushes has a sum above 0 (gradients.h).
  const size_t slots = optimizer::state_floats_per_element(job.optimizer);
  for (size_t at = 0; at < sums.size(); ++at) {
    if (sums[at] == 0) continue;
    float state[2] = {};
    for (size_t slot = 0; slot < slots; ++slot) state[slot] = chunk.state[slot * sums.size() + at];
    optimizer::reference::step(job.optimizer, coefficients, &chunk.weights[at], state, &sums[at],
                               1);
    for (size_t slot = 0; slot < slots; ++slot) chunk.state[slot * sums.size() + at] = state[slot];
  }
}

}  // namespace pbox::sim
