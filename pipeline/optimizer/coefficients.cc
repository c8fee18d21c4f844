#include <cmath>

#include "base/check.h"
#include "pipeline/optimizer/optimizer.h"

namespace pbox::optimizer {

StepParameters step_parameters(const OptimizerSpec& spec, float lr_scale, float weight_decay,
                               float gradient_scale, uint64_t step) {
  return {.learning_rate = spec.learning_rate * lr_scale,
          .weight_decay = weight_decay,
          .gradient_scale = gradient_scale,
          .step = step};
}

StepCoefficients step_coefficients(const OptimizerSpec& spec, const StepParameters& parameters) {
  StepCoefficients c;
  c.gradient_scale = parameters.gradient_scale;
  c.weight_decay = parameters.weight_decay;
  c.momentum = spec.momentum;
  c.epsilon = spec.epsilon;
  c.step_size = parameters.learning_rate;
  if (state_floats_per_element(spec.kind) < 2) return c;

  PBOX_DCHECK(parameters.step > 0);
  // In f32, 1 - beta^step would lose most of its digits.
  const double beta1 = spec.beta1;
  const double beta2 = spec.beta2;
  const double step = static_cast<double>(parameters.step);
  c.beta1 = spec.beta1;
  c.one_minus_beta1 = static_cast<float>(1.0 - beta1);
  c.beta2 = spec.beta2;
  c.one_minus_beta2 = static_cast<float>(1.0 - beta2);
  c.inverse_root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step)));
  c.step_size = static_cast<float>(static_cast<double>(parameters.learning_rate) /
                                   (1.0 - std::pow(beta1, step)));
  if (spec.kind == OptimizerKind::kAdamW) {
    c.weight_keep = static_cast<float>(1.0 - static_cast<double>(parameters.learning_rate) *
                                                 static_cast<double>(parameters.weight_decay));
    c.weight_decay = 0.0f;
  }
  return c;
}

}  // namespace pbox::optimizer
