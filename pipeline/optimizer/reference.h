// The definition of every optimizer step, one element at a time. The vector kernels do the same
// operations in the same order, so their results equal those of this code bit for bit.
#pragma once

#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "pipeline/optimizer/optimizer.h"

namespace pbox::optimizer::reference {

// Returns the gradient after scaling and weight decay.
inline float effective_gradient(const StepCoefficients& c, float weight, float gradient) {
  return gradient * c.gradient_scale + c.weight_decay * weight;
}

inline void sgd(const StepCoefficients& c, float& weight, float gradient) {
  weight -= c.step_size * effective_gradient(c, weight, gradient);
}

inline void momentum(const StepCoefficients& c, float& weight, float& velocity, float gradient) {
  velocity = c.momentum * velocity + effective_gradient(c, weight, gradient);
  weight -= c.step_size * velocity;
}

inline void nesterov(const StepCoefficients& c, float& weight, float& velocity, float gradient) {
  const float g = effective_gradient(c, weight, gradient);
  velocity = c.momentum * velocity + g;
  weight -= c.step_size * (g + c.momentum * velocity);
}

// Adam and AdamW: the coefficients make one of the two decays vanish exactly.
inline void adam(const StepCoefficients& c, float& weight, float& first, float& second,
                 float gradient) {
  const float g = effective_gradient(c, weight, gradient);
  first = c.beta1 * first + c.one_minus_beta1 * g;
  second = c.beta2 * second + (c.one_minus_beta2 * g) * g;
  const float denominator = std::sqrt(second) * c.inverse_root_correction2 + c.epsilon;
  weight = c.weight_keep * weight - (c.step_size * first) / denominator;
}

inline void adagrad(const StepCoefficients& c, float& weight, float& sum, float gradient) {
  const float g = effective_gradient(c, weight, gradient);
  sum += g * g;
  weight -= (c.step_size * g) / (std::sqrt(sum) + c.epsilon);
}

// Does the same as optimizer.h's step functions, with a state_stride of `count`.
inline void step(OptimizerKind kind, const StepCoefficients& c, float* weights, float* state,
                 const float* gradient, size_t count) {
  PBOX_DCHECK((weights != nullptr && gradient != nullptr) || count == 0);
  for (size_t i = 0; i < count; ++i) {
    switch (kind) {
      case OptimizerKind::kNone: break;
      case OptimizerKind::kSgd: sgd(c, weights[i], gradient[i]); break;
      case OptimizerKind::kMomentum: momentum(c, weights[i], state[i], gradient[i]); break;
      case OptimizerKind::kNesterov: nesterov(c, weights[i], state[i], gradient[i]); break;
      case OptimizerKind::kAdam:
      case OptimizerKind::kAdamW:
        adam(c, weights[i], state[i], state[count + i], gradient[i]);
        break;
      case OptimizerKind::kAdagrad: adagrad(c, weights[i], state[i], gradient[i]); break;
    }
  }
}

}  // namespace pbox::optimizer::reference
