// How a job is cut into parts, each of which is on one box. Pure; every rank computes the same from
// the same tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/protocol/session_spec.h"

namespace pbox::worker {

// Of one tensor, what is in one part: whole chunks, in a row.
struct Piece {
  uint32_t tensor = 0;
  uint64_t first_element = 0;
  uint64_t elements = 0;
};

// By part, in the order of tensors. A tensor's chunks are shared out evenly, so that an urgent one
// uses the bandwidth of all boxes; what is left over of each goes where there is least. A part may
// stay empty if there are fewer chunks than parts. chunk_bytes > 0, parts > 0.
std::vector<std::vector<Piece>> cut_into_parts(const std::vector<TensorSpec>& tensors,
                                               uint32_t chunk_bytes, uint32_t parts);

}  // namespace pbox::worker
