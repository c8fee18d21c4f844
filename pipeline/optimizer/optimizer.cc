#include "pipeline/optimizer/optimizer.h"

#include <iterator>

#include "base/check.h"

// This file is compiled once per target: foreach_target.h includes it again with HWY_TARGET set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pipeline/optimizer/optimizer.cc"
// clang-format off: foreach_target.h must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace pbox::optimizer::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One vector's worth of elements, at the same index of each array.
struct Position {
  float* weights;
  float* first_state;
  float* second_state;
  const float* gradient;
};

template <class D>
HWY_INLINE hn::Vec<D> effective_gradient(D d, const StepCoefficients& c, hn::Vec<D> weight,
                                         const Position& at) {
  const auto scaled = hn::Mul(hn::LoadU(d, at.gradient), hn::Set(d, c.gradient_scale));
  return hn::Add(scaled, hn::Mul(hn::Set(d, c.weight_decay), weight));
}

// Each rule steps Lanes(d) elements, with the same operations in the same order as reference.h.
struct Sgd {
  static constexpr size_t kStateFloats = 0;

  template <class D>
  static HWY_INLINE void apply(D d, const StepCoefficients& c, const Position& at) {
    const auto weight = hn::LoadU(d, at.weights);
    const auto g = effective_gradient(d, c, weight, at);
    hn::StoreU(hn::Sub(weight, hn::Mul(hn::Set(d, c.step_size), g)), d, at.weights);
  }
};

template <bool kNesterov>
struct Momentum {
  static constexpr size_t kStateFloats = 1;

  template <class D>
  static HWY_INLINE void apply(D d, const StepCoefficients& c, const Position& at) {
    const auto momentum = hn::Set(d, c.momentum);
    const auto weight = hn::LoadU(d, at.weights);
    const auto g = effective_gradient(d, c, weight, at);
    const auto velocity = hn::Add(hn::Mul(momentum, hn::LoadU(d, at.first_state)), g);
    hn::StoreU(velocity, d, at.first_state);
    auto direction = velocity;
    if constexpr (kNesterov) direction = hn::Add(g, hn::Mul(momentum, velocity));
    hn::StoreU(hn::Sub(weight, hn::Mul(hn::Set(d, c.step_size), direction)), d, at.weights);
  }
};

// Adam and AdamW.
struct Adam {
  static constexpr size_t kStateFloats = 2;

  template <class D>
  static HWY_INLINE void apply(D d, const StepCoefficients& c, const Position& at) {
    const auto weight = hn::LoadU(d, at.weights);
    const auto g = effective_gradient(d, c, weight, at);
    const auto first = hn::Add(hn::Mul(hn::Set(d, c.beta1), hn::LoadU(d, at.first_state)),
                               hn::Mul(hn::Set(d, c.one_minus_beta1), g));
    const auto second = hn::Add(hn::Mul(hn::Set(d, c.beta2), hn::LoadU(d, at.second_state)),
                                hn::Mul(hn::Mul(hn::Set(d, c.one_minus_beta2), g), g));
    hn::StoreU(first, d, at.first_state);
    hn::StoreU(second, d, at.second_state);
    const auto root = hn::Mul(hn::Sqrt(second), hn::Set(d, c.inverse_root_correction2));
    const auto change =
        hn::Div(hn::Mul(hn::Set(d, c.step_size), first), hn::Add(root, hn::Set(d, c.epsilon)));
    hn::StoreU(hn::Sub(hn::Mul(hn::Set(d, c.weight_keep), weight), change), d, at.weights);
  }
};

struct Adagrad {
  static constexpr size_t kStateFloats = 1;

  template <class D>
  static HWY_INLINE void apply(D d, const StepCoefficients& c, const Position& at) {
    const auto weight = hn::LoadU(d, at.weights);
    const auto g = effective_gradient(d, c, weight, at);
    const auto sum = hn::Add(hn::LoadU(d, at.first_state), hn::Mul(g, g));
    hn::StoreU(sum, d, at.first_state);
    const auto change =
        hn::Div(hn::Mul(hn::Set(d, c.step_size), g), hn::Add(hn::Sqrt(sum), hn::Set(d, c.epsilon)));
    hn::StoreU(hn::Sub(weight, change), d, at.weights);
  }
};

// Whole vectors first, then the rest with vectors of one lane and the same operations.
template <class Rule>
void run(const StepCoefficients& coefficients, float* weights, float* state, size_t state_stride,
         const float* gradient, size_t count) {
  PBOX_DCHECK(Rule::kStateFloats < 2 || state_stride >= count);
  PBOX_DCHECK(count == 0 || (weights != nullptr && gradient != nullptr));
  PBOX_DCHECK(count == 0 || Rule::kStateFloats == 0 || state != nullptr);
  const StepCoefficients c = coefficients;  // a local copy cannot alias the arrays
  const auto at = [&](size_t i) HWY_ATTR {
    return Position{.weights = weights + i,
                    .first_state = Rule::kStateFloats >= 1 ? state + i : nullptr,
                    .second_state = Rule::kStateFloats >= 2 ? state + state_stride + i : nullptr,
                    .gradient = gradient + i};
  };
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  PBOX_DCHECK(lanes > 0);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) Rule::apply(d, c, at(i));
  const hn::CappedTag<float, 1> one;
  for (; i < count; ++i) Rule::apply(one, c, at(i));
}

void do_nothing(const StepCoefficients&, float*, float*, size_t, const float*, size_t) {}

Kernels table() {
  return {.target = HWY_TARGET,
          .step = {do_nothing, run<Sgd>, run<Momentum<false>>, run<Momentum<true>>, run<Adam>,
                   run<Adam>, run<Adagrad>}};
}

}  // namespace pbox::optimizer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pbox::optimizer {

HWY_EXPORT(table);

const Kernels& kernels() {
  static const Kernels chosen = kernels_for(hwy::SupportedTargets());
  return chosen;
}

Kernels kernels_for(int64_t target) {
  if constexpr (std::size(HWY_DISPATCH_TABLE(table)) == 1) {  // built for one target only
    return HWY_DISPATCH_TABLE(table)[0]();
  } else {
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    return HWY_DISPATCH_TABLE(table)[chosen.GetIndex()]();
  }
}

void step(const OptimizerSpec& spec, const StepParameters& parameters, float* weights, float* state,
          const float* gradient, size_t count) {
  PBOX_DCHECK(static_cast<size_t>(spec.kind) < kOptimizerKindCount);
  kernels().step[static_cast<size_t>(spec.kind)](step_coefficients(spec, parameters), weights,
                                                 state, count, gradient, count);
}

}  // namespace pbox::optimizer
#endif  // HWY_ONCE
