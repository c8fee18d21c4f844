// Collectives: from the callers' threads to the I/O thread, and back.
#include "base/check.h"
#include "worker/client.h"

namespace pbox::worker {
namespace {

constexpr const char* kNeedsCollectives =
    "collectives need mode collective (PBOX_MODE_COLLECTIVE); this context has tensors: call "
    "pbox_push_pull";

}  // namespace

Result<uint64_t> Client::start_collective(const CollectiveRequest& request) {
  bool must_wake = false;
  uint64_t operation = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
    if (!collectives_) {
      return Error{ErrorCode::kInvalidArgument, kNeedsCollectives};
    }
    const bool was_ready = collectives_->has_ready();
    const auto started = collectives_->start(request);
    if (!started) return started.error();
    operation = *started;
    must_wake = !was_ready && collectives_->has_ready();
  }
  if (must_wake) wake();
  return operation;
}

Result<SliceShape> Client::slices(const CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
  if (!collectives_) return Error{ErrorCode::kInvalidArgument, kNeedsCollectives};
  if (const Status sound = collectives_->check(call); !sound) return sound.error();
  return collectives_->slices(call);
}

Status Client::wait_collective(uint64_t operation, uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  if (!collectives_ || operation >= collectives_->started()) {
    if (const Status status = check_phase(Phase::kJoined); !status) return status;
    return Error{ErrorCode::kInvalidArgument,
                 "operation " + std::to_string(operation) + " was not started"};
  }
  if (!wait_until(lock, timeout_ms, [&] { return !collectives_->is_pending(operation); })) {
    const std::string what = collectives_->text(operation) + " is not complete";
    // An operation without a slot waits for those before it.
    const uint64_t oldest = collectives_->oldest_pending();
    auto slot = collectives_->slot_of(operation);
    if (!slot) slot = collectives_->slot_of(oldest);
    if (slot) return timeout_error(lock, *slot, timeout_ms, what);
    return Error{ErrorCode::kTimeout,
                 what + (collectives_->awaits_input()
                             ? "; it waits for input that the device has not copied to host "
                               "memory yet: the work that computes it has not ended"
                             : "; it waits to be started")};
  }
  if (!collectives_->has_failed(operation)) return ok_status();
  return failure_ ? *failure_ : Error{ErrorCode::kClosed, "this worker has left the job"};
}

}  // namespace pbox::worker
