// Divides a job into parts, each of which one box owns. Pure: every rank computes the same parts
// from the same tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/protocol/session_spec.h"

namespace pbox::worker {

// The consecutive whole chunks of one tensor that are in one part.
struct Piece {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  uint64_t elements = 0;
};

// Returns the pieces of each part, in tensor order. A tensor's chunks are divided evenly, so that
// an urgent tensor uses the bandwidth of all boxes. The chunks left over go to the parts with the
// fewest bytes. A part may be empty if there are fewer chunks than parts. chunk_bytes and parts
// must be positive.
std::vector<std::vector<Piece>> cut_into_parts(const std::vector<TensorSpec>& tensors,
                                               uint32_t chunk_bytes, uint32_t parts);

}  // namespace pbox::worker
