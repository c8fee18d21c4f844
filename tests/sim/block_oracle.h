// Compressed tensors: what ranks must push and boxes must make of it, bit for bit, by the
// definition of blocks (nic/quantize/reference.h) and not by anything that a rank or box reports.
//
// The first element of each block has the largest integer as its value, and the others are smaller
// by so much that a residue cannot make one of them the largest. So every block of a push has the
// scale 1, its first element has no residue, and sums of pushes are whole numbers, exact in any
// order. The other elements are no whole numbers, so they have residues.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

// Fills in the values that the rank pushes, any of its processes. `chunk_elements`: of whole
// chunks.
void fill_compressed(const TensorOptions& tensor, uint64_t stream, uint32_t chunk_elements,
                     std::span<float> values);

class BlockOracle {
 public:
  struct Chunk {
    uint32_t id = 0;
    wire::Dtype dtype = wire::Dtype::kQ8;
    uint64_t tensor_hash = 0;
    uint32_t first_element = 0, elements = 0;
  };
  // `values(rank, round)`: what the rank pushes of the chunk.
  using Values = std::vector<float>;

  BlockOracle(const std::string& job, uint32_t part, pipeline::Reduction reduction,
              uint32_t workers);

  void add(const Chunk& chunk) { chunks_[chunk.id].chunk = chunk; }
  bool has(uint32_t chunk) const { return chunks_.contains(chunk); }
  wire::Dtype dtype(uint32_t chunk) const { return at(chunk).chunk.dtype; }
  // How many rounds of the rank's pushes are known.
  uint32_t pushed_rounds(uint32_t chunk, uint32_t rank) const;
  // The rank's next push is of these values.
  void push(uint32_t chunk, uint32_t rank, const Values& values);
  // The rank's next push is of weights, in full.
  void push_weights(uint32_t chunk, uint32_t rank) {
    chunks_.at(chunk).pushes[rank].emplace_back();
  }

  // Adds up what the pushes of `ranks` carry, from element `first` of the chunk on.
  void sum(uint32_t chunk, uint32_t round, uint32_t ranks, uint32_t first,
           std::span<float> sums) const;
  // Returns a box's blocks of these values and this residue, which is changed to what they leave.
  std::vector<std::byte> result_of(uint32_t chunk, uint32_t round, const Values& values,
                                   Values& residue) const;
  // A box has made a result of all ranks' pushes, with this residue of earlier ones, which is
  // changed to what this one leaves. Returns what is wrong with it.
  std::optional<std::string> made(uint32_t chunk, uint32_t round, Values& residue,
                                  const std::byte* blocks);
  // A box has a result that a rank has given back: one that some box has made.
  std::optional<std::string> given_back(uint32_t chunk, uint32_t round,
                                        const std::byte* blocks) const;
  // A rank has these values as a result.
  std::optional<std::string> consumed(uint32_t chunk, uint32_t round,
                                      const std::byte* values) const;

 private:
  struct State {
    Chunk chunk;
    // By rank: the residue, and the pushes by round.
    std::map<uint32_t, Values> residues;
    std::map<uint32_t, std::vector<std::vector<std::byte>>> pushes;
    // By round: a box that has lost its state makes a round again.
    std::map<uint32_t, std::vector<std::vector<std::byte>>> results;
  };
  const State& at(uint32_t chunk) const { return chunks_.at(chunk); }
  static std::vector<std::byte> encoded(const Chunk& chunk, const Values& values, Values& residue,
                                        uint64_t seed, uint32_t rank, uint32_t round,
                                        uint64_t tensor, uint64_t first_element);

  uint64_t seed_;
  uint32_t part_;
  pipeline::Reduction reduction_;
  uint32_t workers_;
  std::map<uint32_t, State> chunks_;
};

}  // namespace pbox::sim
