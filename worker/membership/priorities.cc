#include "worker/membership/priorities.h"

#include <utility>

#include "base/check.h"

namespace pbox::worker {

Priorities::Priorities(wire::PriorityPolicy policy, std::vector<int32_t> registered)
    : policy_(policy), registered_(std::move(registered)) {}

void Priorities::set(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor) {
  policy_ = policy;
  PBOX_CHECK(by_tensor.empty() || by_tensor.size() == registered_.size());
  by_tensor_.assign(by_tensor.begin(), by_tensor.end());
}

int32_t Priorities::of(uint32_t tensor, std::optional<int32_t> own) const {
  PBOX_CHECK(tensor < registered_.size());
  switch (policy_) {
    case wire::PriorityPolicy::kFifo: return 0;
    case wire::PriorityPolicy::kForwardOrder:
      if (!by_tensor_.empty()) return by_tensor_[tensor];
      break;
    case wire::PriorityPolicy::kExplicit: break;
  }
  if (own) return *own;
  return by_tensor_.empty() ? registered_[tensor] : by_tensor_[tensor];
}

void Priorities::learn_from(uint32_t round) {
  learned_round_ = round;
  places_.assign(registered_.size(), 0);
  started_ = 0;
}

std::optional<std::vector<int32_t>> Priorities::note_start(uint32_t tensor, uint32_t round) {
  PBOX_CHECK(tensor < registered_.size());
  if (places_.empty() || round != learned_round_ || places_[tensor] != 0) return std::nullopt;
  places_[tensor] = ++started_;
  if (static_cast<size_t>(started_) < places_.size()) return std::nullopt;
  return std::exchange(places_, {});
}

}  // namespace pbox::worker
