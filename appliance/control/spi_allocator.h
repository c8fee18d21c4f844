// Session numbers. An spi names a slot of a pipeline's session table, the pipeline, and a draw that
// is new for each session, so that packets of an earlier session in the same slot are refused.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/limits.h"
#include "base/rng.h"

namespace pbox::appliance {

class SpiAllocator {
 public:
  SpiAllocator(uint32_t pipeline_count, uint64_t seed)
      : used_(pipeline_count, std::vector<bool>(limits::kSessionsPerPipelineMax)), draws_(seed) {}

  // Never 0. Nothing when the pipeline's table is full.
  std::optional<uint32_t> allocate(uint32_t pipeline);
  void release(uint32_t spi);
  uint32_t in_use(uint32_t pipeline) const;

 private:
  std::vector<std::vector<bool>> used_;
  std::vector<uint32_t> next_ = std::vector<uint32_t>(used_.size(), 0);
  Rng draws_;
};

}  // namespace pbox::appliance
