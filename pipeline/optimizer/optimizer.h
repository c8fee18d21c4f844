// Fused optimizer steps: one pass over a chunk's weights, optimizer state and summed gradient while
// they are in cache, vectorised for the CPU that is found at start.
//
// The formulas are those of torch.optim, and the results agree with it up to rounding:
//   SGD, momentum (dampening 0): Sutskever et al., "On the importance of initialization and
//     momentum in deep learning", ICML 2013, in torch's form: the rate multiplies the velocity.
//   Nesterov: the same paper, section 2; also PHub's NAG (Luo et al., SoCC 2018).
//   Adam: Kingma and Ba, ICLR 2015, algorithm 1. Weight decay is added to the gradient.
//   AdamW: Loshchilov and Hutter, ICLR 2019, algorithm 2. Weight decay shrinks the weights.
//   Adagrad: Duchi et al., JMLR 2011, figure 1, diagonal, with torch's epsilon outside of the root.
//
// Rows of a table that no rank has pushed are not stepped, so their state stays as it is ("lazy"
// Adam, as in torch.optim.SparseAdam).
//
// All targets agree bit for bit with reference.h, because multiplications and additions are never
// fused. Numbers are dimensionless f32. No function allocates or throws. Any thread may call them;
// on the data path only the pipeline's core that owns the chunk does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pbox::optimizer {

enum class OptimizerKind : uint8_t { kNone, kSgd, kMomentum, kNesterov, kAdam, kAdamW, kAdagrad };

// OptimizerKind values are in [0, kOptimizerKindCount), and index tables.
inline constexpr size_t kOptimizerKindCount = 7;
inline constexpr const char* kOptimizerKindNames[kOptimizerKindCount] = {
    "none", "sgd", "momentum", "nesterov", "adam", "adamw", "adagrad"};

// A job's optimizer. Fields that its kind does not use are ignored. Defaults are torch's.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kNone;
  float learning_rate = 1e-3f;
  float momentum = 0.0f;  // kMomentum, kNesterov
  float beta1 = 0.9f;     // kAdam, kAdamW
  float beta2 = 0.999f;
  float epsilon = 1e-8f;  // kAdagrad too
  float weight_decay = 0.0f;
};

// The parameters that vary by tensor and by round.
struct StepParameters {
  float learning_rate = 0.0f;   // for this tensor, in this round
  float weight_decay = 0.0f;    // for this tensor
  float gradient_scale = 1.0f;  // multiplies the gradient first: 1/workers turns a sum into a mean
  uint64_t step = 1;            // from 1; Adam's bias corrections depend on it
};

// Returns a tensor's parameters. The learning rate is the job's times the tensor's `lr_scale`; the
// decay is the tensor's own.
StepParameters step_parameters(const OptimizerSpec& spec, float lr_scale, float weight_decay,
                               float gradient_scale, uint64_t step);

// Returns the number of f32 of optimizer state per weight: 0 (none, SGD), 1 (momentum, Nesterov,
// Adagrad) or 2 (Adam, AdamW). The state of a new job is all zero.
constexpr size_t state_floats_per_element(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kNone:
    case OptimizerKind::kSgd: return 0;
    case OptimizerKind::kMomentum:
    case OptimizerKind::kNesterov:
    case OptimizerKind::kAdagrad: return 1;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW: return 2;
  }
  return 0;
}

// The coefficients that a kernel needs, computed in double and rounded once.
struct StepCoefficients {
  float gradient_scale = 1.0f;
  float weight_decay = 0.0f;  // multiplied by the weight and added to the gradient; 0 for AdamW
  float weight_keep = 1.0f;   // AdamW: 1 - learning_rate * weight_decay
  float momentum = 0.0f;
  float beta1 = 0.0f;
  float one_minus_beta1 = 1.0f;
  float beta2 = 0.0f;
  float one_minus_beta2 = 1.0f;
  float inverse_root_correction2 = 1.0f;  // 1 / sqrt(1 - beta2^step)
  float epsilon = 0.0f;
  float step_size = 0.0f;  // learning_rate; for Adam, divided by 1 - beta1^step
};

StepCoefficients step_coefficients(const OptimizerSpec& spec, const StepParameters& parameters);

// Steps `count` elements of `weights` by `gradient`, which is the sum of the workers' gradients and
// is not changed. `state`: the momentum (Adam: the first moment; Adagrad: the sum of squares); null
// if the optimizer has none. Adam's second moment begins `state_stride` floats after it, at least
// `count`. The arrays do not overlap.
using StepFunction = void (*)(const StepCoefficients& coefficients, float* weights, float* state,
                              size_t state_stride, const float* gradient, size_t count);

// Applies one step to one chunk, whose state is [state_floats_per_element][count]. Does nothing for
// kNone.
void step(const OptimizerSpec& spec, const StepParameters& parameters, float* weights, float* state,
          const float* gradient, size_t count);

// The step functions for one instruction set.
struct Kernels {
  int64_t target = 0;                                    // a HWY_* target bit
  std::array<StepFunction, kOptimizerKindCount> step{};  // indexed by OptimizerKind
};

// Returns the table of the best target for this CPU, chosen on the first call. The returned
// reference stays valid.
const Kernels& kernels();

// Returns the table of one of reduce::supported_targets(). Only for tests and benchmarks.
Kernels kernels_for(int64_t target);

}  // namespace pbox::optimizer
