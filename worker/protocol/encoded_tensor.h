// A tensor that travels as block-scaled integers (nic/wire/blocks.h): its pushes in blocks, and the
// residue of its gradients. It outlives sessions: a push is encoded once, and is sent again with
// the same bits, also to another box. Used by the thread that drives the exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "nic/quantize/rounding.h"
#include "nic/wire/blocks.h"

namespace pbox::worker {

class EncodedTensor {
 public:
  // `elements`: number in the tensor's piece that this exchange has, in chunks of `chunk_elements`.
  // `source`: complete except for the round; its first_element is that of the piece.
  EncodedTensor(wire::Dtype dtype, uint64_t elements, uint32_t chunk_elements,
                const quantize::RoundingSource& source);

  // Returns the bytes of the tensor's pushes, or of one copy of its results, in blocks.
  static uint64_t bytes(wire::Dtype dtype, uint64_t elements, uint32_t chunk_elements);

  // Returns where the chunk whose first element is `first_element` begins in such a copy.
  uint64_t offset(uint64_t first_element) const {
    PBOX_DCHECK(first_element % chunk_elements_ == 0);
    return first_element / chunk_elements_ * chunk_bytes_;
  }
  const std::byte* push(uint64_t first_element) const {
    PBOX_DCHECK(first_element < residue_.size());
    return blocks_.data() + offset(first_element);
  }

  // Encodes the push of one chunk's round from `count` values and the residue. Updates the residue.
  void encode(uint64_t first_element, const float* values, uint32_t count, uint32_t round);
  // Writes the first `count` elements of a result into `values`.
  void decode(const std::byte* blocks, uint32_t count, float* values) const;

 private:
  wire::Dtype dtype_;
  uint32_t chunk_elements_;
  uint32_t chunk_bytes_;  // the size of a whole chunk, in blocks
  quantize::RoundingSource source_;
  std::vector<std::byte> blocks_;
  std::vector<float> residue_;
};

}  // namespace pbox::worker
