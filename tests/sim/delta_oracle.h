// Compressed tensors in mode optimize: the weights that all ranks must have after each round, and
// the deltas that boxes must send, bit for bit, from the pushes that BlockOracle knows. Their jobs
// have an optimizer without state.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/block_oracle.h"

namespace pbox::sim {

class DeltaOracle {
 public:
  using Values = BlockOracle::Values;

  // `blocks` outlives this.
  DeltaOracle(const JobOptions& job, const BlockOracle& blocks) : job_(job), blocks_(blocks) {}

  // The initial weights of a chunk, which are rank 0's.
  void begin(uint32_t chunk, const Values& weights);

  // A box has this of a chunk: the weights that ranks have, and the optimizer's own. Empty if it
  // has just been given the chunk, or has come by the weights in another way than by a step.
  struct Held {
    Values weights, master;
  };
  // A box has made the result of this round, which takes `held` to `weights`. It has sent it as
  // `delta`, or as the weights if that is null. Returns what is wrong.
  std::optional<std::string> made(uint32_t chunk, uint32_t round, Held& held,
                                  const std::byte* delta, const Values& weights);
  // A rank has these values as a result.
  std::optional<std::string> consumed(uint32_t chunk, uint32_t round,
                                      const std::byte* values) const;

 private:
  void step(uint32_t chunk, uint32_t round, Values& master) const;

  const JobOptions& job_;
  const BlockOracle& blocks_;
  // By chunk and round: a box that has lost its state makes a round again.
  std::map<uint32_t, std::map<uint32_t, std::vector<Values>>> results_;
};

}  // namespace pbox::sim
