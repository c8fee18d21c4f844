// The priority of each tensor under the job's policy, and how the forward order is learned (P3).
// The backward pass visits the layers from the last to the first. So the tensor whose gradient is
// started last is the one that the next forward pass needs first.
//
// Pure; used on the I/O thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nic/wire/schedule.h"

namespace pbox::worker {

class Priorities {
 public:
  // `registered`: priority of each tensor; larger goes earlier.
  Priorities(wire::PriorityPolicy policy, std::vector<int32_t> registered);

  // Sets what applies to operations started from now on. `by_tensor` has one priority per tensor.
  // If it is empty, the registered ones apply; with the forward-order policy, until the order is
  // learned.
  void set(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor);

  wire::PriorityPolicy policy() const { return policy_; }
  std::span<const int32_t> by_tensor() const { return by_tensor_; }
  // Returns the priority of an operation on the tensor. `own`: the operation's own priority, if it
  // has one.
  int32_t of(uint32_t tensor, std::optional<int32_t> own) const;

  bool is_to_be_learned() const {
    return policy_ == wire::PriorityPolicy::kForwardOrder && by_tensor_.empty();
  }
  // Learns the order from the starts of this round. No tensor may have started the round.
  void learn_from(uint32_t round);
  // A tensor is started in this round. Returns the learned priorities if this was the last start of
  // the round that is learned from, otherwise nullopt.
  std::optional<std::vector<int32_t>> note_start(uint32_t tensor, uint32_t round);

 private:
  wire::PriorityPolicy policy_;
  std::vector<int32_t> registered_;
  std::vector<int32_t> by_tensor_;
  uint32_t learned_round_ = 0;
  // For each tensor, its position in the order of starts, from 1; 0: not started yet.
  std::vector<int32_t> places_;
  int32_t started_ = 0;
};

}  // namespace pbox::worker
