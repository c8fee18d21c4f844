// The box's optimizer on a few elements. A rank that knows their gradients steps them itself, and
// compares the box's weights with its own bit for bit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "pipeline/optimizer/optimizer.h"

namespace pbox::perf {

// Returns the optimizer of a played job: "sgd", "nesterov" or "adam"; "none" is mode aggregate.
// Throws std::runtime_error for another name.
optimizer::OptimizerSpec played_optimizer(const std::string& name);

class WeightOracle {
 public:
  // Weights of a played job before its first step.
  static constexpr float kFirstWeight = 1.0f;

  WeightOracle(const optimizer::OptimizerSpec& spec, size_t count);

  // Steps every element once. `gradients`: [count], the sum over the ranks.
  void step(std::span<const float> gradients);
  std::span<const float> weights() const { return weights_; }

 private:
  optimizer::OptimizerSpec spec_;
  uint64_t steps_ = 0;
  std::vector<float> weights_, state_;
};

}  // namespace pbox::perf
