// Compressed tensors in mode optimize: the weights that all ranks must have after each round, and
// the deltas that boxes must send, bit for bit. Both follow from the pushes that BlockOracle knows.
// The jobs have an optimizer without state. With model `drop`, SyncReplay makes the results, and
// this class keeps them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/block_oracle.h"

namespace pbox::sim {

class DeltaOracle {
 public:
  using Values = BlockOracle::Values;

  // `blocks` outlives this.
  DeltaOracle(const JobOptions& job, const BlockOracle& blocks) : job_(job), blocks_(blocks) {}

  // Sets the initial weights of a chunk, which are rank 0's.
  void begin(uint32_t chunk, const Values& weights);

  // The state of a chunk at a box: the weights that ranks have, and the optimizer's own weights
  // (`master`). Empty until the box has made its first result of the chunk.
  struct Held {
    Values weights, master;
  };
  // Returns what is wrong with the result that a box has made of this round, and updates `held`.
  // After the round the box keeps `weights`. It has sent `delta`, or the weights in full if `delta`
  // is null.
  std::optional<std::string> made(uint32_t chunk, uint32_t round, Held& held,
                                  const std::byte* delta, const Values& weights);
  // Returns what is wrong with the values that a rank has as a result.
  std::optional<std::string> consumed(uint32_t chunk, uint32_t round,
                                      const std::byte* values) const;

  // For model `drop`: records the weights that the chunk's box has after the round.
  void record(uint32_t chunk, uint32_t round, const Values& weights) {
    results_[chunk][round].push_back(weights);
  }
  // Returns the newest round after which a box has had these weights; nothing if there is none.
  std::optional<uint32_t> round_of(uint32_t chunk, const std::byte* weights) const;
  // Returns what is wrong with weights that a rank has read in an operation for this round.
  std::optional<std::string> read(uint32_t rank, uint32_t chunk, uint32_t round,
                                  const std::byte* weights);
  // Called when the job has begun anew. A rank may still read a result of the previous run.
  void begin_run() { read_.clear(); }

 private:
  void step(uint32_t chunk, uint32_t round, Values& master) const;

  const JobOptions& job_;
  const BlockOracle& blocks_;
  // By chunk and round: all results that boxes have made. A box that has lost its state makes a
  // round again.
  std::map<uint32_t, std::map<uint32_t, std::vector<Values>>> results_;
  // For model `drop`: by rank and chunk, the round whose weights the rank has read last.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> read_;
};

}  // namespace pbox::sim
