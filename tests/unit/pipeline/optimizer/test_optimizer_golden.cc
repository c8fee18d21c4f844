// Compares several steps of every optimizer with torch.optim's own results.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "pipeline/optimizer/optimizer.h"
#include "pipeline/reduce/reduce.h"
#include "tests/golden/optimizer_golden.h"

using namespace pbox;
using namespace pbox::optimizer;

namespace {

// Tolerance: 1e-6 of the weight, or 1e-6 where a step crosses zero and digits cancel.
bool agrees(float actual, float expected) {
  return std::fabs(actual - expected) <= 1e-6f * std::fmax(1.0f, std::fabs(expected));
}

// Runs a case on one target. Returns the number of weights, over all steps, that differ from
// `expected`.
size_t disagreements(int64_t target, const OptimizerSpec& spec, const float* expected) {
  const StepFunction step = kernels_for(target).step[static_cast<size_t>(spec.kind)];
  std::vector<float> weights(std::begin(golden::kInitial), std::end(golden::kInitial));
  std::vector<float> state(golden::kWeights * state_floats_per_element(spec.kind));
  size_t count = 0;
  for (size_t round = 0; round < golden::kSteps; ++round) {
    const auto parameters = step_parameters(spec, 1.0f, spec.weight_decay, 1.0f, round + 1);
    step(step_coefficients(spec, parameters), weights.data(), state.data(), golden::kWeights,
         golden::kGradients + round * golden::kWeights, golden::kWeights);
    for (size_t i = 0; i < golden::kWeights; ++i) {
      if (!agrees(weights[i], expected[round * golden::kWeights + i])) ++count;
    }
  }
  return count;
}

uint64_t fnv1a(uint64_t digest, const float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    unsigned char bytes[sizeof(float)];
    std::memcpy(bytes, values + i, sizeof bytes);
    for (const unsigned char byte : bytes) digest = (digest ^ byte) * 0x100000001b3ull;
  }
  return digest;
}

}  // namespace

TEST_CASE("every optimizer follows torch.optim on every target") {
  for (const auto& target : reduce::supported_targets()) {
    for (const golden::Case& example : golden::kCases) {
      INFO(target.name << ": " << example.name);
      CHECK(disagreements(target.target, example.spec, example.weights) == 0);
    }
  }
}

TEST_CASE("a golden weight changed in its sixth digit is detected") {
  const int64_t target = kernels().target;
  for (const golden::Case& example : golden::kCases) {
    std::vector<float> altered(std::begin(example.weights), std::end(example.weights));
    altered[altered.size() / 2] += 1e-5f;
    INFO(example.name);
    CHECK(disagreements(target, example.spec, altered.data()) == 1);
  }
}

TEST_CASE("the golden table is unchanged since torch wrote it") {
  uint64_t digest = 0xcbf29ce484222325ull;
  digest = fnv1a(digest, golden::kInitial, std::size(golden::kInitial));
  digest = fnv1a(digest, golden::kGradients, std::size(golden::kGradients));
  for (const golden::Case& example : golden::kCases) {
    digest = fnv1a(digest, example.weights, std::size(example.weights));
  }
  CHECK(digest == golden::kChecksum);
}
