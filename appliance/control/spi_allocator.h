// Allocates session numbers (spi). An spi consists of a slot of a pipeline's session table, the
// pipeline, and a random number that is new for each session. The random number makes the box
// reject packets of an earlier session in the same slot, and those of a stranger who guesses.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/entropy.h"
#include "base/limits.h"

namespace pbox::control {

class SpiAllocator {
 public:
  SpiAllocator(uint32_t pipeline_count, Draws draw)
      : used_(pipeline_count, std::vector<bool>(limits::kSessionsPerPipelineMax)),
        in_use_(pipeline_count),
        draw_(std::move(draw)) {
    PBOX_CHECK(draw_ != nullptr);
  }

  // Returns an spi, never 0; nullopt if the pipeline's table is full.
  std::optional<uint32_t> allocate(uint32_t pipeline);
  void release(uint32_t spi);
  uint32_t in_use(uint32_t pipeline) const { return in_use_.at(pipeline); }

 private:
  std::vector<std::vector<bool>> used_;
  std::vector<uint32_t> in_use_;  // number of used slots, by pipeline
  std::vector<uint32_t> next_ = std::vector<uint32_t>(used_.size(), 0);
  Draws draw_;
};

}  // namespace pbox::control
