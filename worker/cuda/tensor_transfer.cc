#include "worker/cuda/tensor_transfer.h"

#include <utility>

#include "base/check.h"

namespace pbox::worker::cuda {

Status TensorTransfer::start(bool initial_weights) {
  PBOX_CHECK(block_ != nullptr && block_->bytes() >= 2 * bytes_);
  {
    const std::lock_guard lock(mutex_);
    if (is_in_flight_) {
      return Error{ErrorCode::kAlreadyExists, "tensor " + std::to_string(tensor_) +
                                                  " has an operation in flight; wait for it first"};
    }
    is_in_flight_ = true;
  }
  const Operation operation{.tensor = tensor_,
                            .input = gradient(),
                            .output = weights(),
                            .initial_weights = initial_weights};
  const Status started =
      client_.start_many({&operation, 1}, {&TensorTransfer::on_ended, this}, true);
  if (!started) on_ended(this, tensor_, static_cast<pbox_status>(started.error().code));
  return started;
}

void TensorTransfer::on_copied(void* user) {
  const auto& self = *static_cast<TensorTransfer*>(user);
  self.client_.give_input(self.tensor_, 1);
}

Result<uint64_t> TensorTransfer::draw() {
  const std::lock_guard lock(mutex_);
  if (ticket_) {
    return Error{ErrorCode::kInvalidArgument,
                 "tensor " + std::to_string(tensor_) +
                     " has been pulled already; call pbox_cuda_pull once for each pbox_cuda_push"};
  }
  const uint64_t ticket = gate_.draw(1);
  if (is_in_flight_) {
    ticket_ = ticket;
  } else {
    gate_.open(ticket);
  }
  return ticket;
}

void TensorTransfer::on_ended(void* user, uint32_t, pbox_status) {
  auto& self = *static_cast<TensorTransfer*>(user);
  const std::lock_guard lock(self.mutex_);
  self.is_in_flight_ = false;
  if (const auto ticket = std::exchange(self.ticket_, {})) self.gate_.open(*ticket);
}

}  // namespace pbox::worker::cuda
