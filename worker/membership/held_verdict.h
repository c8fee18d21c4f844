// The newest verdict on a round that this rank holds (proto::StepVerdict), and the loss scale of
// the rounds to come. All parts of a job share it: a verdict that arrives from one box is sent to
// every box, with the loss scale of its round.
//
// Pure; used by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "nic/wire/control.pb.h"
#include "nic/wire/header.h"

namespace pbox::worker {

class HeldVerdict {
 public:
  // A process that takes a lost rank's place does not know the loss scale until set_loss_scale().
  explicit HeldVerdict(bool rejoins) : loss_scale_(rejoins ? 0.0f : 1.0f) {}

  // Applies to rounds whose verdict comes later.
  void set_loss_scale(float loss_scale, uint64_t age) {
    loss_scale_ = loss_scale;
    scale_age_ = age;
  }

  // Takes a verdict that has arrived from a box. Returns false if it is older than the one that is
  // held, or equal to it.
  bool take(const proto::StepVerdict& told) {
    const bool is_same_round = held_ && held_->round() == told.round();
    if (held_ && wire::round_distance(told.round(), held_->round()) < 0) return false;
    if (is_same_round && told.epoch() < held_->epoch()) return false;
    const bool teaches_scale = is_same_round && held_->loss_scale() == 0 && told.loss_scale() > 0;
    if (is_same_round && told.epoch() == held_->epoch() && !teaches_scale) return false;
    proto::StepVerdict taken = told;
    if (is_same_round && held_->loss_scale() > 0) {
      taken.set_loss_scale(held_->loss_scale());
      taken.set_scale_age(held_->scale_age());
    } else if (told.loss_scale() == 0 && !is_same_round) {
      taken.set_loss_scale(loss_scale_);
      taken.set_scale_age(scale_age_);
    }
    held_ = taken;
    ++version_;
    return true;
  }
  // Grows with each verdict taken; 0 before the first.
  uint64_t version() const { return version_; }
  const std::optional<proto::StepVerdict>& held() const { return held_; }

 private:
  std::optional<proto::StepVerdict> held_;
  float loss_scale_;
  uint64_t scale_age_ = 0;
  uint64_t version_ = 0;
};

}  // namespace pbox::worker
