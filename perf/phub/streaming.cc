#include "perf/phub/streaming.h"

// This file is compiled once per target: foreach_target.h includes it again with HWY_TARGET set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "perf/phub/streaming.cc"
// clang-format off: foreach_target.h must come first
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace pbox::perf::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Distance in floats from the line in use to the line that is prefetched: PHub's 0x240 bytes.
inline constexpr size_t kFloatsAhead = 0x240 / sizeof(float);

// Prefetches the line that lies kFloatsAhead after `line`, with the hint that it is used once only
// (prefetchnta on x86), so that it displaces few others.
HWY_INLINE void prefetch(const float* line) {
  __builtin_prefetch(line + kFloatsAhead, 0, 0);
}

// Calls visit(d, i) for each vector. `lines` are the arrays that are read.
template <class Visit, class... Lines>
HWY_INLINE void for_each_vector(size_t count, const Visit& visit, const Lines*... lines) {
  const hn::ScalableTag<float> d;
  for (size_t line = 0; line < count; line += kStreamingFloats) {
    (prefetch(lines + line), ...);
    for (size_t i = line; i < line + kStreamingFloats; i += hn::Lanes(d)) visit(d, i);
  }
  hwy::FlushStream();
}

void store(float* sum, const float* source, size_t count) {
  for_each_vector(
      count, [&](auto d, size_t i) HWY_ATTR { hn::Stream(hn::Load(d, source + i), d, sum + i); },
      source);
}

void add(float* sum, const float* source, size_t count) {
  const auto visit = [&](auto d, size_t i) HWY_ATTR {
    hn::Stream(hn::Add(hn::Load(d, sum + i), hn::Load(d, source + i)), d, sum + i);
  };
  for_each_vector(count, visit, sum, source);
}

// Performs the operations of the product's step, in the same order
// (pipeline/optimizer/reference.h).
void nesterov(const optimizer::StepCoefficients& coefficients, float* weights, float* state,
              size_t /*state_stride*/, const float* gradient, size_t count) {
  const optimizer::StepCoefficients c = coefficients;  // a local copy cannot alias the arrays
  const auto visit = [&](auto d, size_t i) HWY_ATTR {
    const auto momentum = hn::Set(d, c.momentum);
    const auto weight = hn::Load(d, weights + i);
    const auto scaled = hn::Mul(hn::Load(d, gradient + i), hn::Set(d, c.gradient_scale));
    const auto g = hn::Add(scaled, hn::Mul(hn::Set(d, c.weight_decay), weight));
    const auto velocity = hn::Add(hn::Mul(momentum, hn::Load(d, state + i)), g);
    hn::Stream(velocity, d, state + i);
    const auto direction = hn::Add(g, hn::Mul(momentum, velocity));
    hn::Stream(hn::Sub(weight, hn::Mul(hn::Set(d, c.step_size), direction)), d, weights + i);
  };
  for_each_vector(count, visit, weights, state, gradient);
}

StreamingKernels table() {
  return {.store = store, .add = add, .nesterov = nesterov};
}

}  // namespace pbox::perf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pbox::perf {

HWY_EXPORT(table);

StreamingKernels streaming_kernels() {
  return HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace pbox::perf
#endif  // HWY_ONCE
