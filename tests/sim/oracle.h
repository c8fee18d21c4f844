// What every result of a job must be, computed from what its workers push and from nothing that a
// box says: sums of whole numbers, and the optimizers' reference.
#pragma once

#include <vector>

#include "tests/sim/gradients.h"

namespace pbox::sim {

class Oracle {
 public:
  Oracle(const Gradients& gradients, uint32_t chunk_elements);

  // Of a whole tensor, as every rank must get it.
  const std::vector<std::byte>& result(uint32_t tensor, uint32_t round);

  // Optimize mode: of the chunk that begins at this element, the box's state is lost after this
  // round. Its weights go on from the result, the optimizer's steps from the first.
  void restart_optimizer(uint32_t tensor, uint32_t first_element, uint32_t round);

 private:
  // Of a tensor. Optimize mode: weights and state are as after the last of its rounds.
  struct Chunk {
    uint32_t first = 0, elements = 0;
    uint32_t rounds = 0;  // that are computed
    uint32_t since = 0;   // the optimizer's first step is of the round after
    std::vector<float> weights = {}, state = {};
  };
  struct Tensor {
    std::vector<std::vector<std::byte>> results;  // by round, as far as asked for
    std::vector<Chunk> chunks;
  };

  void next(uint32_t tensor, Chunk& chunk);
  void step(Chunk& chunk, const std::vector<float>& sums, uint32_t round) const;

  const Gradients& gradients_;
  uint32_t chunk_elements_;
  std::vector<Tensor> tensors_;
};

// The optimizer's settings that jobs of the simulator use.
optimizer::OptimizerSpec optimizer_of(const JobOptions& job);

}  // namespace pbox::sim
