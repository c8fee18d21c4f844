// Hand-written kernels that find the highest rate of this machine for the memory traffic of a sum,
// which reads two arrays and writes one. They serve comparisons only.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pbox::perf {

// Reads `accumulator` and `source`, and writes [count] floats to `accumulator`. Variants that
// bypass the cache write to `other` instead. Requires 64-byte aligned arrays and a multiple of 1024
// as count.
using LimitFunction = void (*)(float* accumulator, const float* source, float* other, size_t count);

struct MemoryLimit {
  std::string name;
  LimitFunction run;
};

// Returns all variants for all vector targets of this CPU.
std::vector<MemoryLimit> sum_shaped_limits();

// Computes STREAM's triad, other[i] = accumulator[i] + 3 * source[i], as the compiler translates
// the plain loop (McCalpin, "STREAM: Sustainable Memory Bandwidth in High Performance Computers").
void stream_triad(float* accumulator, const float* source, float* other, size_t count);

}  // namespace pbox::perf
