#include "worker/cuda/gate.h"

#include <atomic>

#include "base/check.h"

namespace pbox::worker::cuda {

uint64_t Gate::draw(uint64_t count) {
  const std::lock_guard lock(mutex_);
  const uint64_t first = passed_ + is_open_.size();
  is_open_.resize(is_open_.size() + count, false);
  return first;
}

void Gate::open(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  PBOX_CHECK(ticket >= passed_ && ticket - passed_ < is_open_.size());
  PBOX_CHECK(!is_open_[ticket - passed_]);
  is_open_[ticket - passed_] = true;
  while (!is_open_.empty() && is_open_.front()) {
    is_open_.pop_front();
    ++passed_;
  }
  // Release, because the device then reads results that the host has written before.
  std::atomic_ref(*word_).store(static_cast<uint32_t>(passed_), std::memory_order_release);
}

}  // namespace pbox::worker::cuda
