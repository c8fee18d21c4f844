#include "perf/memory_limits.h"

#include <iterator>

// This file is compiled once per target: foreach_target.h includes it again with HWY_TARGET set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "perf/memory_limits.cc"
// clang-format off: foreach_target.h must come first
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace pbox::perf::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kLineFloats = 16;

// Prefetches the lines that lie kLinesAhead after those of a turn. With 0, only the hardware
// prefetches.
template <size_t kTurnLines, size_t kLinesAhead>
HWY_INLINE void prefetch_turn(const float* from) {
  if constexpr (kLinesAhead != 0) {
    for (size_t line = 0; line < kTurnLines; ++line) {
      hwy::Prefetch(from + (line + kLinesAhead) * kLineFloats);
    }
  }
}

template <size_t kTurnLines, bool kBypassesCache>
HWY_INLINE void sum_turn(const float* accumulator, const float* source, float* to) {
  const hn::ScalableTag<float> d;
  for (size_t at = 0; at < kTurnLines * kLineFloats; at += hn::Lanes(d)) {
    const auto sum = hn::Add(hn::Load(d, accumulator + at), hn::Load(d, source + at));
    if constexpr (kBypassesCache) {
      hn::Stream(sum, d, to + at);
    } else {
      hn::Store(sum, d, to + at);
    }
  }
}

// Computes a += b.
template <size_t kTurnLines, size_t kAccumulatorAhead, size_t kSourceAhead>
void update(float* accumulator, const float* source, float*, size_t count) {
  for (size_t i = 0; i < count; i += kTurnLines * kLineFloats) {
    prefetch_turn<kTurnLines, kAccumulatorAhead>(accumulator + i);
    prefetch_turn<kTurnLines, kSourceAhead>(source + i);
    sum_turn<kTurnLines, false>(accumulator + i, source + i, accumulator + i);
  }
}

// Computes a += b in both halves alternately, which gives the prefetchers and the DRAM banks twice
// as many streams.
void update_halves(float* accumulator, const float* source, float*, size_t count) {
  const size_t half = count / 2;
  for (size_t i = 0; i < half; i += 8 * kLineFloats) {
    sum_turn<8, false>(accumulator + i, source + i, accumulator + i);
    sum_turn<8, false>(accumulator + half + i, source + half + i, accumulator + half + i);
  }
}

// Computes c = a + b with streaming stores. The DRAM traffic is that of a += b, because lines that
// are overwritten are not fetched first.
template <size_t kLinesAhead>
void stream_out(float* accumulator, const float* source, float* other, size_t count) {
  for (size_t i = 0; i < count; i += 8 * kLineFloats) {
    prefetch_turn<8, kLinesAhead>(accumulator + i);
    prefetch_turn<8, kLinesAhead>(source + i);
    sum_turn<8, true>(accumulator + i, source + i, other + i);
  }
  hwy::FlushStream();
}

// Returns all variants. Each distance was the fastest on some machine or memory placement.
std::vector<MemoryLimit> variants() {
  const std::string target = hwy::TargetName(HWY_TARGET);
  return {{target + " update, 1 line a turn", update<1, 0, 0>},
          {target + " update, 4 lines a turn", update<4, 0, 0>},
          {target + " update, 8 lines a turn", update<8, 0, 0>},
          {target + " update, prefetch 128 B", update<2, 2, 2>},
          {target + " update, prefetch 256 B", update<4, 4, 4>},
          {target + " update, prefetch 2 KiB", update<8, 32, 32>},
          {target + " update, prefetch accumulator 1 KiB", update<4, 16, 0>},
          {target + " update, two places", update_halves},
          {target + " streaming store", stream_out<0>},
          {target + " streaming store, prefetch 1 KiB", stream_out<16>}};
}

}  // namespace pbox::perf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pbox::perf {

HWY_EXPORT(variants);

std::vector<MemoryLimit> sum_shaped_limits() {
  std::vector<MemoryLimit> all;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR || target == HWY_EMU128) continue;
    std::vector<MemoryLimit> some;
    if constexpr (std::size(HWY_DISPATCH_TABLE(variants)) == 1) {  // built for one target only
      some = HWY_DISPATCH_TABLE(variants)[0]();
    } else {
      hwy::ChosenTarget chosen;
      chosen.Update(target);
      some = HWY_DISPATCH_TABLE(variants)[chosen.GetIndex()]();
    }
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void stream_triad(float* accumulator, const float* source, float* other, size_t count) {
  for (size_t i = 0; i < count; ++i) other[i] = accumulator[i] + 3.0f * source[i];
}

}  // namespace pbox::perf
#endif  // HWY_ONCE
