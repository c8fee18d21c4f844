// The best that this machine can do for the traffic of a sum: two arrays read, one written. Written
// by hand for comparisons only.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pbox::perf {

// Reads `accumulator` and `source`, and writes [count] floats: to `accumulator`, or those variants
// that bypass the cache to `other`. All 64-byte aligned, count a multiple of 1024.
using LimitFunction = void (*)(float* accumulator, const float* source, float* other, size_t count);

struct MemoryLimit {
  std::string name;
  LimitFunction run;
};

// All variants for all vector targets of this CPU.
std::vector<MemoryLimit> sum_shaped_limits();

// STREAM's triad, other[i] = accumulator[i] + 3 * source[i], as the compiler makes it of plain C
// (McCalpin, "STREAM: Sustainable Memory Bandwidth in High Performance Computers").
void stream_triad(float* accumulator, const float* source, float* other, size_t count);

}  // namespace pbox::perf
