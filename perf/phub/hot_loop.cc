#include "perf/phub/hot_loop.h"

#include <algorithm>
#include <barrier>
#include <functional>
#include <stdexcept>
#include <thread>

#include "base/check.h"
#include "base/cpu_set.h"
#include "perf/peers/work.h"
#include "perf/phub/streaming.h"
#include "pipeline/optimizer/optimizer.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kSeed = 3;
// An odd number of cache lines: arrays that are read together must not begin at the same offset in
// their pages (cores.md).
constexpr size_t kStaggerBytes = 1093 * kCacheLineBytes;

uint64_t in_lines(uint64_t floats) {
  return align_up(floats, kStreamingFloats);
}

// Runs work(index) on `count` threads, each pinned to one CPU. Threads share CPUs if there are not
// enough.
void run_on_threads(uint32_t count, const std::function<void(uint32_t)>& work) {
  const auto allowed = current_affinity();
  std::vector<std::jthread> threads;
  for (uint32_t index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      // Threads that cannot be pinned run where the kernel puts them.
      if (allowed.ok()) {
        const auto& cpus = allowed->cpus;
        static_cast<void>(pin_current_thread({{cpus[index % cpus.size()]}}).ok());
      }
      work(index);
    });
  }
}

}  // namespace

struct HotLoop::Kernels {
  std::function<void(float*, const float*, size_t)> store, add;
  optimizer::StepFunction step = nullptr;
  optimizer::StepCoefficients coefficients;
};

HotLoop::HotLoop(const std::vector<ModelTensor>& tensors, uint32_t workers, bool steps)
    : steps_(steps) {
  PBOX_CHECK(workers > 0 && workers <= kPatternRanksMax);
  for (const ModelTensor& tensor : tensors) {
    tensors_.push_back({floats_, in_lines(tensor.elements)});
    floats_ += tensors_.back().count;
  }
  const size_t array_bytes = floats_ * sizeof(float) + kStaggerBytes;
  auto made = NumaArena::create((workers + 3) * array_bytes);
  if (!made) throw std::runtime_error(made.error().message);
  arena_ = std::move(*made);
  const auto take = [&] { return reinterpret_cast<float*>(arena_.take(array_bytes)); };
  sums_ = take();
  weights_ = take();
  velocities_ = take();
  for (uint32_t worker = 0; worker < workers; ++worker) {
    gradients_.push_back(take());
    fill_gradient({gradients_.back(), floats_}, kSeed, 0, worker, 0);
  }
}

double HotLoop::gradient_bytes() const {
  return static_cast<double>(gradients_.size() * floats_ * sizeof(float));
}

uint64_t HotLoop::count_wrong_sums() const {
  return perf::count_wrong_sums({sums_, floats_}, kSeed, 0,
                                static_cast<uint32_t>(gradients_.size()), 0);
}

std::vector<HotLoop::Chunk> HotLoop::chunks_of(uint64_t chunk_bytes) const {
  if (chunk_bytes == 0) return tensors_;
  const uint64_t floats = std::max<uint64_t>(chunk_bytes / sizeof(float), kStreamingFloats);
  std::vector<Chunk> chunks;
  for (const Chunk& tensor : tensors_) {
    for (uint64_t at = 0; at < tensor.count; at += floats) {
      chunks.push_back({tensor.begin + at, std::min(floats, tensor.count - at)});
    }
  }
  return chunks;
}

void HotLoop::sum(const Kernels& kernels, const Chunk& chunk, size_t worker) const {
  const auto& add = worker == 0 ? kernels.store : kernels.add;
  add(sums_ + chunk.begin, gradients_[worker] + chunk.begin, chunk.count);
}

void HotLoop::step(const Kernels& kernels, const Chunk& chunk) const {
  if (!steps_) return;
  kernels.step(kernels.coefficients, weights_ + chunk.begin, velocities_ + chunk.begin, chunk.count,
               sums_ + chunk.begin, chunk.count);
}

// Assigns chunks to threads, the largest first, each to the thread with the fewest bytes so far.
// The product places chunks on pipelines in the same way.
void HotLoop::run_tall(const Kernels& kernels, const LoopVariant& variant) const {
  std::vector<Chunk> chunks = chunks_of(variant.chunk_bytes);
  std::stable_sort(chunks.begin(), chunks.end(),
                   [](const Chunk& a, const Chunk& b) { return a.count > b.count; });
  std::vector<std::vector<Chunk>> owned(variant.threads);
  std::vector<uint64_t> loads(variant.threads);
  for (const Chunk& chunk : chunks) {
    const auto least = std::min_element(loads.begin(), loads.end()) - loads.begin();
    owned[static_cast<size_t>(least)].push_back(chunk);
    loads[static_cast<size_t>(least)] += chunk.count;
  }
  run_on_threads(variant.threads, [&](uint32_t thread) {
    for (const Chunk& chunk : owned[thread]) {
      for (size_t worker = 0; worker < gradients_.size(); ++worker) sum(kernels, chunk, worker);
      step(kernels, chunk);
    }
  });
}

void HotLoop::run_wide(const Kernels& kernels, const LoopVariant& variant) const {
  const std::vector<Chunk> chunks = chunks_of(variant.chunk_bytes);
  std::barrier meet(variant.threads);
  run_on_threads(variant.threads, [&](uint32_t thread) {
    for (const Chunk& chunk : chunks) {
      // This thread's lines of the chunk. A chunk with fewer lines than threads leaves some idle.
      const uint64_t share = in_lines((chunk.count + variant.threads - 1) / variant.threads);
      const uint64_t from = std::min(chunk.count, thread * share);
      const Chunk part{chunk.begin + from, std::min(share, chunk.count - from)};
      for (size_t worker = 0; worker < gradients_.size(); ++worker) {
        sum(kernels, part, worker);
        if (variant.division == Division::kWidePerPush) meet.arrive_and_wait();
      }
      step(kernels, part);
      meet.arrive_and_wait();
    }
  });
}

void HotLoop::pass(const LoopVariant& variant) {
  PBOX_CHECK(variant.threads > 0);
  const StreamingKernels streaming = streaming_kernels();
  const auto& product = reduce::kernels();
  const auto f32 = static_cast<size_t>(wire::Dtype::kF32);
  const auto cached = [](reduce::AccumulateFunction run) {
    return [run](float* to, const float* from, size_t count) {
      run(to, reinterpret_cast<const std::byte*>(from), count, FLT_MAX);
    };
  };
  const optimizer::OptimizerSpec spec{
      .kind = optimizer::OptimizerKind::kNesterov, .learning_rate = 0x1.0p-20f, .momentum = 0.9f};
  Kernels kernels;
  if (variant.sums_bypass_cache) {
    kernels.store = streaming.store;
    kernels.add = streaming.add;
  } else {
    kernels.store = cached(product.store[f32]);
    kernels.add = cached(product.add[f32]);
  }
  kernels.step = variant.steps_bypass_cache
                     ? streaming.nesterov
                     : optimizer::kernels().step[static_cast<size_t>(spec.kind)];
  kernels.coefficients =
      optimizer::step_coefficients(spec, optimizer::step_parameters(spec, 1.0f, 0.0f, 1.0f, 1));
  if (variant.division == Division::kTall) {
    run_tall(kernels, variant);
  } else {
    run_wide(kernels, variant);
  }
}

}  // namespace pbox::perf
