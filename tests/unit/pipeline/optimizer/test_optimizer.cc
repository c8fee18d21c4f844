#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "pipeline/optimizer/optimizer.h"
#include "pipeline/optimizer/reference.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;
using namespace pbox::optimizer;

namespace {

constexpr OptimizerKind kKinds[] = {
    OptimizerKind::kNone, OptimizerKind::kSgd,   OptimizerKind::kMomentum, OptimizerKind::kNesterov,
    OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kAdagrad};

OptimizerSpec spec_of(OptimizerKind kind) {
  return {.kind = kind, .learning_rate = 0.01f, .momentum = 0.9f, .weight_decay = 0.003f};
}

struct Model {
  Model(OptimizerKind kind, size_t count)
      : weights(test::floats(count, 3, false)), state(state_floats_per_element(kind) * count) {}

  std::vector<float> weights;
  std::vector<float> state;
};

void check_equal(const std::vector<float>& left, const std::vector<float>& right) {
  CHECK(test::bits(left.data(), left.size()) == test::bits(right.data(), right.size()));
}

}  // namespace

TEST_CASE("every optimizer equals the reference bit for bit on every target") {
  for (const auto& target : reduce::supported_targets()) {
    for (const OptimizerKind kind : kKinds) {
      for (const size_t count : test::kCounts) {
        INFO(target.name << " kind " << static_cast<int>(kind) << " count " << count);
        Model expected(kind, count), actual(kind, count);
        const auto step = kernels_for(target.target).step[static_cast<size_t>(kind)];
        for (uint64_t round = 1; round <= 4; ++round) {
          const auto gradient = test::floats(count, 100 + round, false);
          const auto parameters = step_parameters(spec_of(kind), 0.5f, 0.02f, 0.125f, round);
          const auto coefficients = step_coefficients(spec_of(kind), parameters);
          reference::step(kind, coefficients, expected.weights.data(), expected.state.data(),
                          gradient.data(), count);
          step(coefficients, actual.weights.data(), actual.state.data(), count, gradient.data(),
               count);
        }
        check_equal(actual.weights, expected.weights);
        check_equal(actual.state, expected.state);
      }
    }
  }
}

TEST_CASE("a non-finite gradient reaches its own weight only") {
  for (const auto& target : reduce::supported_targets()) {
    for (const OptimizerKind kind : kKinds) {
      if (kind == OptimizerKind::kNone) continue;
      INFO(target.name << " kind " << static_cast<int>(kind));
      Model model(kind, 40);
      auto gradient = test::floats(40, 9, false);
      gradient[5] = std::nanf("");
      gradient[37] = std::nanf("");
      const auto parameters = step_parameters(spec_of(kind), 1.0f, 0.0f, 1.0f, 1);
      kernels_for(target.target)
          .step[static_cast<size_t>(kind)](step_coefficients(spec_of(kind), parameters),
                                           model.weights.data(), model.state.data(), 40,
                                           gradient.data(), 40);
      for (size_t i = 0; i < 40; ++i) CHECK(std::isnan(model.weights[i]) == (i == 5 || i == 37));
    }
  }
}

TEST_CASE("step computes the coefficients and uses the best target") {
  for (const OptimizerKind kind : kKinds) {
    INFO("kind " << static_cast<int>(kind));
    Model expected(kind, 33), actual(kind, 33);
    const auto gradient = test::floats(33, 8, false);
    const auto parameters = step_parameters(spec_of(kind), 1.0f, 0.01f, 0.5f, 3);
    reference::step(kind, step_coefficients(spec_of(kind), parameters), expected.weights.data(),
                    expected.state.data(), gradient.data(), 33);
    step(spec_of(kind), parameters, actual.weights.data(), actual.state.data(), gradient.data(),
         33);
    check_equal(actual.weights, expected.weights);
    check_equal(actual.state, expected.state);
    CHECK((actual.weights != Model(kind, 33).weights) == (kind != OptimizerKind::kNone));
  }
}

TEST_CASE("Nesterov is the formula of PHub's NAG") {
  const StepCoefficients c{
      .gradient_scale = 0.0078125f, .weight_decay = 1e-5f, .momentum = 0.9f, .step_size = 0.1f};
  float weight = 0.75f;
  float velocity = -0.25f;
  const float gradient = 12.5f;
  const float scaled = gradient * 0.0078125f + 1e-5f * 0.75f;
  const float expected_velocity = 0.9f * -0.25f + scaled;
  const float expected_weight = 0.75f - 0.1f * (scaled + 0.9f * expected_velocity);
  kernels().step[static_cast<size_t>(OptimizerKind::kNesterov)](c, &weight, &velocity, 1, &gradient,
                                                                1);
  CHECK(velocity == expected_velocity);
  CHECK(weight == expected_weight);
}

TEST_CASE("Adam's bias correction keeps its digits in late steps") {
  const OptimizerSpec spec{.kind = OptimizerKind::kAdam, .learning_rate = 1e-3f};
  const auto first = step_coefficients(spec, step_parameters(spec, 1.0f, 0.0f, 1.0f, 1));
  CHECK(first.step_size == Approx(1e-2).epsilon(1e-6));
  CHECK(first.inverse_root_correction2 == Approx(1.0 / std::sqrt(1e-3)).epsilon(1e-4));
  const auto late = step_coefficients(spec, step_parameters(spec, 1.0f, 0.0f, 1.0f, 10'000'000));
  CHECK(late.step_size == 1e-3f);
  CHECK(late.inverse_root_correction2 == 1.0f);
}

TEST_CASE("each kind has as much state as its formula keeps") {
  CHECK(state_floats_per_element(OptimizerKind::kNone) == 0);
  CHECK(state_floats_per_element(OptimizerKind::kSgd) == 0);
  CHECK(state_floats_per_element(OptimizerKind::kMomentum) == 1);
  CHECK(state_floats_per_element(OptimizerKind::kNesterov) == 1);
  CHECK(state_floats_per_element(OptimizerKind::kAdam) == 2);
  CHECK(state_floats_per_element(OptimizerKind::kAdamW) == 2);
  CHECK(state_floats_per_element(OptimizerKind::kAdagrad) == 1);
}

TEST_CASE("the second moment may lie anywhere behind the first") {
  const auto step_adam = kernels().step[static_cast<size_t>(OptimizerKind::kAdam)];
  const OptimizerSpec spec = spec_of(OptimizerKind::kAdam);
  const auto c = step_coefficients(spec, step_parameters(spec, 1.0f, 0.0f, 1.0f, 1));
  Model close(OptimizerKind::kAdam, 21), apart(OptimizerKind::kAdam, 21);
  apart.state.assign(100 + 21, 0.0f);
  const auto gradient = test::floats(21, 8, false);
  step_adam(c, close.weights.data(), close.state.data(), 21, gradient.data(), 21);
  step_adam(c, apart.weights.data(), apart.state.data(), 100, gradient.data(), 21);
  check_equal(apart.weights, close.weights);
  check_equal({apart.state.begin(), apart.state.begin() + 21},
              {close.state.begin(), close.state.begin() + 21});
  check_equal({apart.state.begin() + 100, apart.state.end()},
              {close.state.begin() + 21, close.state.end()});
  CHECK(std::all_of(apart.state.begin() + 21, apart.state.begin() + 100,
                    [](float value) { return value == 0; }));
}
