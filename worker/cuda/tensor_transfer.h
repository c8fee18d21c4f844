// Carries a registered tensor between a device and the client: its gradient and its weights lie in
// pinned memory, and the copy back waits at a gate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "worker/client.h"
#include "worker/cuda/gate.h"
#include "worker/cuda/pinned_pool.h"

namespace pbox::worker::cuda {

class TensorTransfer {
 public:
  // `block` has twice the tensor's bytes, for gradient and weights. So the last weights are still
  // there if an operation fails.
  TensorTransfer(Client& client, Gate& gate, uint32_t tensor, uint64_t bytes,
                 std::unique_ptr<PinnedBlock> block)
      : client_(client), gate_(gate), tensor_(tensor), bytes_(bytes), block_(std::move(block)) {}
  TensorTransfer(const TensorTransfer&) = delete;
  TensorTransfer& operator=(const TensorTransfer&) = delete;

  // Starts the operation. It is sent after on_copied().
  Status start(bool initial_weights);
  // The host function behind the copy of the gradient, and its argument.
  static void on_copied(void* user);
  // Draws the ticket of the copy of the weights, which opens when the operation in flight ends.
  // Returns kInvalidArgument if that operation has a ticket already.
  Result<uint64_t> draw();

  uint64_t bytes() const { return bytes_; }
  std::byte* gradient() const { return block_->memory(); }
  std::byte* weights() const { return block_->memory() + bytes_; }
  // Returns the event that is recorded behind the copy of the weights.
  Event event() const { return block_->event(); }

 private:
  static void on_ended(void* user, uint32_t tensor, pbox_status status);

  Client& client_;
  Gate& gate_;
  const uint32_t tensor_;
  const uint64_t bytes_;
  const std::unique_ptr<PinnedBlock> block_;

  std::mutex mutex_;
  bool is_in_flight_ = false;
  std::optional<uint64_t> ticket_;  // to be opened when the operation ends
};

}  // namespace pbox::worker::cuda
