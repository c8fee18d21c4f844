// Compressed tensors: the pushes that ranks must send, and the results that boxes must make of
// them, bit for bit. Both follow from the definition of blocks (nic/quantize/reference.h), not from
// anything that a rank or box reports.
//
// The first element of each block has the largest integer as its value, and the others are smaller
// by so much that a residue cannot make one of them the largest. So every block of a push has the
// scale 1, its first element has no residue, and sums of pushes are whole numbers, exact in any
// order. The other elements are not whole numbers, so they have residues.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

// Fills in the values that a rank pushes. All processes of a rank push the same values.
// `chunk_elements`: number of elements of a whole chunk.
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
  // One value for each element of a chunk.
  using Values = std::vector<float>;

  BlockOracle(const std::string& job, uint32_t part, pipeline::Reduction reduction,
              uint32_t workers);

  void add(const Chunk& chunk) { chunks_[chunk.id].chunk = chunk; }
  bool has(uint32_t chunk) const { return chunks_.contains(chunk); }
  wire::Dtype dtype(uint32_t chunk) const { return at(chunk).chunk.dtype; }
  // Returns how many rounds of the rank's pushes are known.
  uint32_t pushed_rounds(uint32_t chunk, uint32_t rank) const;
  // Records the rank's next push, which carries these values.
  void push(uint32_t chunk, uint32_t rank, const Values& values);
  // Records that the rank's next push carries weights in full.
  void push_weights(uint32_t chunk, uint32_t rank) {
    chunks_.at(chunk).pushes[rank].emplace_back();
  }

  // Adds up the values that the pushes of `ranks` (a bit mask) carry, from element `first` of the
  // chunk on.
  void sum(uint32_t chunk, uint32_t round, uint32_t ranks, uint32_t first,
           std::span<float> sums) const;
  // Returns the blocks that a box makes of `values` plus `residue`. Sets `residue` to what the
  // blocks do not carry.
  std::vector<std::byte> result_of(uint32_t chunk, uint32_t round, const Values& values,
                                   Values& residue) const;
  // Returns what is wrong with a result that a box has made of all ranks' pushes; nothing if it is
  // right. `residue` is what earlier results have left; it is set to what this one leaves.
  std::optional<std::string> made(uint32_t chunk, uint32_t round, Values& residue,
                                  const std::byte* blocks);
  // Returns what is wrong with a result that a rank has given back to a box. It must be one that
  // some box has made.
  std::optional<std::string> given_back(uint32_t chunk, uint32_t round,
                                        const std::byte* blocks) const;
  // Returns what is wrong with the values that a rank has as a result.
  std::optional<std::string> consumed(uint32_t chunk, uint32_t round,
                                      const std::byte* values) const;

 private:
  struct State {
    Chunk chunk;
    // By rank: the residue, and the pushes by round.
    std::map<uint32_t, Values> residues;
    std::map<uint32_t, std::vector<std::vector<std::byte>>> pushes;
    // By round: every result that boxes have made. A box that has lost its state makes it again.
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
