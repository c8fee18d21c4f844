// The correct results of a job, computed only from the workers' pushes and not from anything that a
// box reports. It uses sums of whole numbers and the optimizers' reference implementations.
#pragma once

#include <map>
#include <vector>

#include "tests/sim/gradients.h"

namespace pbox::sim {

class Oracle {
 public:
  Oracle(const Gradients& gradients, uint32_t chunk_elements);

  // Returns the result of a whole tensor, which every rank must get.
  const std::vector<std::byte>& result(uint32_t tensor, uint32_t round);

  // Weights and optimizer state of a chunk, as the box lays them out, and the optimizer's steps.
  struct State {
    std::vector<float> weights, optimizer_state;
    uint64_t steps = 0;
    bool operator==(const State&) const = default;
  };

  // For mode optimize: called when the box's state of the chunk that begins at this element is lost
  // after this round. The weights continue from the result, and the optimizer's steps start again,
  // or continue with the optimizer state of `from`. In two levels the racks' boxes have the result
  // in f32; otherwise it has the job's type.
  void restart_optimizer(uint32_t tensor, uint32_t first_element, uint32_t round,
                         const State* from = nullptr);

  // For mode optimize: lets the chunk begin with this state from a snapshot, whatever rank 0
  // pushes.
  void begin_with(uint32_t tensor, uint32_t first_element, State state);

  // For mode optimize, in a job with snapshots: returns whether the chunk that begins at this
  // element has had this state after this round. A round may have two such states, if it was lost
  // with its box and made again.
  bool has_had(uint32_t tensor, uint32_t first_element, uint32_t round, const State& state);

 private:
  // A chunk of a tensor. In mode optimize, weights and state are those after the last computed
  // round.
  struct Chunk {
    uint32_t first = 0, elements = 0;
    uint32_t rounds = 0;  // number of computed rounds
    uint32_t since = 0;   // the round before the optimizer's first step; modulo 2^32
    std::vector<float> weights = {}, state = {};
    bool is_restored = false;
    std::vector<float> former_weights = {};  // with two levels: weights after the previous round
    std::map<uint32_t, std::vector<State>> states = {};  // by round, in jobs with snapshots
  };
  struct Tensor {
    std::vector<std::vector<std::byte>> results;  // by round, as far as computed
    std::vector<Chunk> chunks;
  };

  void next(uint32_t tensor, Chunk& chunk);
  void keep(Chunk& chunk) const;
  void step(uint32_t tensor, Chunk& chunk, const std::vector<float>& sums, uint32_t round) const;

  const Gradients& gradients_;
  uint32_t chunk_elements_;
  std::vector<Tensor> tensors_;
};

// Returns the optimizer settings that the simulator's jobs use.
optimizer::OptimizerSpec optimizer_of(const JobOptions& job);

}  // namespace pbox::sim
