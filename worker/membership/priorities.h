// Which priority each tensor has under the job's policy, and how the forward order is learned (P3):
// backward passes the layers from the last to the first, so the tensor whose gradient is started
// last is the one that the next forward needs first.
//
// Pure; the I/O thread's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nic/wire/schedule.h"

namespace pbox::worker {

class Priorities {
 public:
  // `registered`: by tensor, the larger, the earlier.
  Priorities(wire::PriorityPolicy policy, std::vector<int32_t> registered);

  // What holds for what is started from now on. `by_tensor`: one per tensor, or empty: those
  // registered, and in forward order until it is learned.
  void set(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor);

  wire::PriorityPolicy policy() const { return policy_; }
  std::span<const int32_t> by_tensor() const { return by_tensor_; }
  // Of an operation that may state a priority of its own.
  int32_t of(uint32_t tensor, std::optional<int32_t> own) const;

  bool is_to_be_learned() const {
    return policy_ == wire::PriorityPolicy::kForwardOrder && by_tensor_.empty();
  }
  // The order is that of the starts of this round, which none of the tensors has begun.
  void learn_from(uint32_t round);
  // A tensor is started. With the last one of the round that is learned from, the priorities that
  // follow, else nothing.
  std::optional<std::vector<int32_t>> note_start(uint32_t tensor, uint32_t round);

 private:
  wire::PriorityPolicy policy_;
  std::vector<int32_t> registered_;
  std::vector<int32_t> by_tensor_;
  uint32_t learned_round_ = 0;
  std::vector<int32_t> places_;  // by tensor, in the order of starts, from 1; 0: not started yet
  int32_t started_ = 0;
};

}  // namespace pbox::worker
