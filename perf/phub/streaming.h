// PHub's aggregator and optimizer that bypass the cache: they prefetch with the non-temporal hint
// and write with non-temporal stores. They are compared with the product's kernels, which leave
// chunks in cache.
//
// For all functions: arrays are aligned to 64 bytes, and `count` is a multiple of kStreamingFloats.
// The results equal those of the product's kernels bit for bit.
#pragma once

#include <cstddef>

#include "pipeline/optimizer/optimizer.h"

namespace pbox::perf {

inline constexpr size_t kStreamingFloats = 16;  // one cache line

struct StreamingKernels {
  void (*store)(float* sum, const float* source, size_t count);
  void (*add)(float* sum, const float* source, size_t count);
  optimizer::StepFunction nesterov;
};

// Returns the kernels of the best target of this CPU.
StreamingKernels streaming_kernels();

}  // namespace pbox::perf
