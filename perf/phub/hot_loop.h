// PHub's hot loop without a network: gradients of W workers lie in memory, and threads sum them and
// step the optimizer. The loop uses the product's kernels; what varies is how threads divide the
// work, and whether stores leave the chunk in cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/numa_arena.h"
#include "perf/models.h"

namespace pbox::perf {

enum class Division {
  kTall,         // each thread owns chunks, and takes a chunk through all its sums and its step
  kWide,         // all threads share each chunk; they meet when it is done
  kWidePerPush,  // like kWide, but they also meet after each worker's gradient, as in MXNet
};

struct LoopVariant {
  Division division = Division::kTall;
  uint32_t threads = 1;
  uint64_t chunk_bytes = 32 << 10;  // 0: a chunk is a whole tensor
  bool sums_bypass_cache = false;
  bool steps_bypass_cache = false;
};

class HotLoop {
 public:
  // If `steps` is set, the weights of each finished chunk take a step with Nesterov's momentum,
  // PHub's optimizer. Throws std::runtime_error if the memory cannot be allocated.
  HotLoop(const std::vector<ModelTensor>& tensors, uint32_t workers, bool steps);

  // Sums all gradients once, and steps all weights once.
  void pass(const LoopVariant& variant);

  double gradient_bytes() const;      // sum over the workers
  uint64_t count_wrong_sums() const;  // among those of the last pass
  std::span<const float> weights() const { return {weights_, floats_}; }

 private:
  // Floats [begin, begin + count), in whole cache lines.
  struct Chunk {
    uint64_t begin = 0, count = 0;
  };
  struct Kernels;  // the functions and coefficients of one pass

  std::vector<Chunk> chunks_of(uint64_t chunk_bytes) const;
  void sum(const Kernels& kernels, const Chunk& chunk, size_t worker) const;
  void step(const Kernels& kernels, const Chunk& chunk) const;
  void run_tall(const Kernels& kernels, const LoopVariant& variant) const;
  void run_wide(const Kernels& kernels, const LoopVariant& variant) const;

  bool steps_;
  std::vector<Chunk> tensors_;
  uint64_t floats_ = 0;
  NumaArena arena_;
  std::vector<float*> gradients_;  // by worker
  float* sums_ = nullptr;
  float* weights_ = nullptr;
  float* velocities_ = nullptr;
};

}  // namespace pbox::perf
