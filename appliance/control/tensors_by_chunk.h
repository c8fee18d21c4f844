// Maps a chunk's number to the tensor that contains it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "appliance/control/job_spec.h"
#include "appliance/control/job_view.h"
#include "base/check.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::control {

// `spec` must outlive this object. Chunks have the numbers that cut_into_chunks() gives them.
class TensorsByChunk {
 public:
  explicit TensorsByChunk(const JobSpec& spec) : spec_(spec) {
    PBOX_CHECK(!spec.tensors.empty());
    size_t end = 0;
    for (const TensorSpec& tensor : spec.tensors) {
      ends_.push_back(end += wire::chunk_count(tensor.bytes(), spec.chunk_bytes));
    }
  }
  size_t index(uint32_t chunk) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), chunk);
    return std::min(static_cast<size_t>(end - ends_.begin()), ends_.size() - 1);
  }
  const std::string& name(uint32_t chunk) const { return spec_.tensors[index(chunk)].name; }

 private:
  const JobSpec& spec_;
  std::vector<size_t> ends_;
};

// Decodes a place that a session stores as chunk << 32 | round.
inline PlaceView place_of(uint64_t chunk_round, const TensorsByChunk& tensors) {
  return {tensors.name(static_cast<uint32_t>(chunk_round >> 32)), chunk_round & UINT32_MAX};
}

}  // namespace pbox::control
