#include "perf/rack/oracle.h"

#include <stdexcept>

#include "base/check.h"

namespace pbox::perf {

optimizer::OptimizerSpec played_optimizer(const std::string& name) {
  using optimizer::OptimizerKind;
  // Gradients are integers up to some thousands (peers/work.h): weights stay finite.
  optimizer::OptimizerSpec spec{.learning_rate = 0x1.0p-20f, .momentum = 0.9f};
  if (name == "none") return spec;
  if (name == "sgd") spec.kind = OptimizerKind::kSgd;
  if (name == "nesterov") spec.kind = OptimizerKind::kNesterov;
  if (name == "adam") spec.kind = OptimizerKind::kAdam;
  if (spec.kind == OptimizerKind::kNone) {
    throw std::runtime_error("optimizer '" + name + "': use none, sgd, nesterov or adam");
  }
  return spec;
}

WeightOracle::WeightOracle(const optimizer::OptimizerSpec& spec, size_t count)
    : spec_(spec),
      weights_(count, kFirstWeight),
      state_(count * optimizer::state_floats_per_element(spec.kind)) {}

void WeightOracle::step(std::span<const float> gradients) {
  PBOX_CHECK(gradients.size() == weights_.size());
  optimizer::step(spec_,
                  optimizer::step_parameters(spec_, 1.0f, spec_.weight_decay, 1.0f, ++steps_),
                  weights_.data(), state_.data(), gradients.data(), gradients.size());
}

}  // namespace pbox::perf
