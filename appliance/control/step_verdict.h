// The verdict on a round of a job that clips gradients or skips rounds with unsound values, as the
// control plane knows it. It is a plain value.
#pragma once

#include <cmath>
#include <cstdint>

#include "nic/wire/control.pb.h"
#include "nic/wire/header.h"

namespace pbox::control {

struct StepVerdict {
  uint32_t round = 0;  // modulo 2^32
  uint32_t epoch = 0;  // epoch of the deciding part when it decided
  double norm = 0;     // norm of the gradient of all parts, before the loss scale is undone
  bool is_skip = false;
  // The loss scale that was used, and the number that the application gave with it. A scale of 0 is
  // unknown.
  float loss_scale = 0;
  uint64_t scale_age = 0;

  bool is_same(const StepVerdict& other) const {
    return round == other.round && epoch == other.epoch;
  }
  // Returns whether this verdict is on a later round, or on the same round by a later owner of the
  // deciding part.
  bool is_newer_than(const StepVerdict& other) const {
    const int32_t ahead = wire::round_distance(round, other.round);
    return ahead != 0 ? ahead > 0 : epoch > other.epoch;
  }
};

inline StepVerdict from_message(const proto::StepVerdict& message) {
  return {.round = message.round(),
          .epoch = message.epoch(),
          .norm = message.norm(),
          .is_skip = message.skipped(),
          .loss_scale = message.loss_scale(),
          .scale_age = message.scale_age()};
}

inline proto::StepVerdict to_message(const StepVerdict& verdict) {
  proto::StepVerdict message;
  message.set_round(verdict.round);
  message.set_epoch(verdict.epoch);
  message.set_norm(verdict.norm);
  message.set_skipped(verdict.is_skip);
  message.set_loss_scale(verdict.loss_scale);
  message.set_scale_age(verdict.scale_age);
  return message;
}

// Returns the factor by which the gradient is multiplied. It undoes the loss scale, and clips like
// torch.nn.utils.clip_grad_norm_ unless max_grad_norm is 0. A norm that is not finite gives what
// torch gives.
inline float step_factor(double norm, float loss_scale, float max_grad_norm) {
  const double unscale = 1.0 / static_cast<double>(loss_scale);
  if (max_grad_norm <= 0) return static_cast<float>(unscale);
  const double clip = static_cast<double>(max_grad_norm) / (norm * unscale + 1e-6);
  return static_cast<float>(clip > 1 ? unscale : unscale * clip);
}

}  // namespace pbox::control
