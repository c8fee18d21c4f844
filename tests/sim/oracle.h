// What every result of a job must be, computed from what its workers push and from nothing that a
// box says: sums of whole numbers, and the optimizers' reference.
#pragma once

#include <vector>

#include "tests/sim/gradients.h"

namespace pbox::sim {

class Oracle {
 public:
  explicit Oracle(const Gradients& gradients);

  // Of a whole tensor, as every rank must get it.
  const std::vector<std::byte>& result(uint32_t tensor, uint32_t round);

 private:
  struct Tensor {
    std::vector<std::vector<std::byte>> results;  // by round, as far as asked for
    std::vector<float> weights, state;            // optimize mode, after the last of them
  };

  void next(uint32_t tensor);
  void step(Tensor& tensor, const std::vector<float>& sums, uint32_t round) const;

  const Gradients& gradients_;
  std::vector<Tensor> tensors_;
};

// The optimizer's settings that jobs of the simulator use.
optimizer::OptimizerSpec optimizer_of(const JobOptions& job);

}  // namespace pbox::sim
