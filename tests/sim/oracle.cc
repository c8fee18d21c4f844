#include "tests/sim/oracle.h"

#include <algorithm>

#include "pipeline/optimizer/reference.h"
#include "pipeline/reduce/reference.h"

namespace pbox::sim {

optimizer::OptimizerSpec optimizer_of(const JobOptions& job) {
  optimizer::OptimizerSpec spec;
  spec.kind = job.optimizer;
  if (job.is_relaxed()) {  // one whose steps are whole numbers (updates.h)
    spec.learning_rate = 0.5f;
    spec.weight_decay = 0;
    return spec;
  }
  spec.learning_rate = 0.0625f;
  spec.momentum = 0.5f;
  spec.weight_decay = 0.01f;
  return spec;
}

Oracle::Oracle(const Gradients& gradients)
    : gradients_(gradients), tensors_(gradients.options().tensors.size()) {}

const std::vector<std::byte>& Oracle::result(uint32_t tensor, uint32_t round) {
  auto& results = tensors_[tensor].results;
  results.reserve(gradients_.options().rounds);
  while (results.size() <= round) next(tensor);
  return results[round];
}

void Oracle::next(uint32_t index) {
  const JobOptions& job = gradients_.options();
  Tensor& tensor = tensors_[index];
  const auto round = static_cast<uint32_t>(tensor.results.size());
  const uint32_t elements = job.tensors[index].elements;
  const bool optimizes = job.mode == pipeline::Mode::kOptimize;
  const uint32_t all = (1u << job.workers) - 1;
  // Initial weights are rank 0's.
  const uint32_t ranks = optimizes && round == 0 ? 1 : all;
  std::vector<float> values(elements);
  gradients_.sum(ranks, index, round, 0, values);
  if (optimizes && round == 0) {
    tensor.weights = values;
    tensor.state.resize(elements * optimizer::state_floats_per_element(job.optimizer));
  } else if (optimizes) {
    step(tensor, values, round);
  } else if (job.reduction == pipeline::Reduction::kMean) {
    reduce::reference::scale(values.data(), 1.0f / static_cast<float>(job.workers), elements);
  }
  auto& bytes = tensor.results.emplace_back(size_t{elements} * wire::dtype_bytes(job.dtype));
  reduce::reference::narrow(job.dtype, bytes.data(),
                            optimizes ? tensor.weights.data() : values.data(), elements);
}

// A tensor's state lies whole here, and by chunks in the box: no step looks beyond its element.
void Oracle::step(Tensor& tensor, const std::vector<float>& sums, uint32_t round) const {
  const JobOptions& job = gradients_.options();
  const float scale =
      job.reduction == pipeline::Reduction::kMean ? 1.0f / static_cast<float>(job.workers) : 1.0f;
  const optimizer::OptimizerSpec spec = optimizer_of(job);
  const optimizer::StepParameters parameters{.learning_rate = spec.learning_rate,
                                             .weight_decay = spec.weight_decay,
                                             .gradient_scale = scale,
                                             .step = round};
  optimizer::reference::step(job.optimizer, optimizer::step_coefficients(spec, parameters),
                             tensor.weights.data(), tensor.state.data(), sums.data(), sums.size());
}

}  // namespace pbox::sim
