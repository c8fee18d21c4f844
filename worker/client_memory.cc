// The caller's memory. Its pages are locked on the caller's thread. The transports take it on the
// I/O thread, to which they belong. Also give_input(), for operations that start before their input
// is available.
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "worker/client.h"

namespace pbox::worker {
namespace {

// A payload has usually been read by the time its operation is done. If the box accepts nothing, it
// may stay with the device for any length of time.
constexpr uint64_t kReadNs = 100 * kNanosPerMilli;
constexpr auto kLookAgain = std::chrono::milliseconds(1);

// A part's registrar, null if it needs none, and its result.
struct Registration {
  std::shared_ptr<MemoryRegistrar> registrar;
  Result<std::unique_ptr<DeviceMemory>> registered = std::unique_ptr<DeviceMemory>();
};

}  // namespace

Status Client::register_memory(const std::byte* address, uint64_t bytes) {
  // One entry for each part. Entries that no part takes are released without the lock.
  const auto registrations = std::make_shared<std::vector<Registration>>();
  std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status;
  if (const Status added = memory_.add(address, bytes); !added) return added;
  const Status asked = call_on_io(lock, [&] {
    for (const auto& driver : drivers_) {
      registrations->emplace_back().registrar = driver->add_memory(address, bytes);
    }
  });
  if (!asked) {
    memory_.remove(address);  // no part knows of it
    return asked;
  }
  PBOX_CHECK(being_registered_.insert(address).second);
  lock.unlock();
  Status known = ok_status();
  for (Registration& each : *registrations) {
    if (each.registrar == nullptr) continue;
    each.registered = each.registrar->add(address, bytes);
    if (known && !each.registered) known = each.registered.error();
  }
  lock.lock();
  const auto give = [this, address, registrations] {
    PBOX_CHECK(registrations->size() == drivers_.size());
    for (size_t part = 0; part < drivers_.size(); ++part) {
      Registration& each = (*registrations)[part];
      if (each.registrar == nullptr) continue;
      drivers_[part]->give_memory(address, each.registrar, each.registered);
    }
    being_registered_.erase(address);
  };
  // A busy I/O thread takes the memory later. Until then payloads are copied.
  if (!call_on_io(lock, give)) {
    requests_.push_back([this, give] {
      const std::lock_guard later(mutex_);
      give();
      changed_.notify_all();
    });
  }
  lock.unlock();
  return known;
}

Status Client::unregister_memory(const std::byte* address) {
  std::vector<std::unique_ptr<DeviceMemory>> released;  // by part; destroyed without the lock
  std::unique_lock lock(mutex_);
  if (const Status known = memory_.check(address); !known) return known;
  const auto limit = std::chrono::milliseconds(options_.wait_timeout_ms);
  const bool is_settled =
      changed_.wait_for(lock, limit, [&] { return !being_registered_.contains(address); });
  if (!is_settled) {
    return Error{ErrorCode::kTimeout,
                 "this memory is still being registered; call pbox_unregister_memory again after "
                 "pbox_register_memory has returned, and let callbacks of the application return"};
  }
  const uint64_t start_ns = monotonic_ns();
  for (;;) {
    const uint64_t waited_ns = monotonic_ns() - start_ns;
    bool is_read = false;
    const Status asked = call_on_io(lock, [&] {
      released.resize(drivers_.size());
      for (size_t part = 0; part < drivers_.size(); ++part) {
        std::unique_ptr<DeviceMemory> of_part;
        if (!drivers_[part]->remove_memory(address, waited_ns >= kReadNs, of_part)) is_read = true;
        if (of_part) released[part] = std::move(of_part);
      }
    });
    if (!asked) return asked;
    if (!is_read) break;
    if (waited_ns >= options_.wait_timeout_ms * kNanosPerMilli) {
      return Error{ErrorCode::kTimeout,
                   "a device still uses this memory after " +
                       std::to_string(options_.wait_timeout_ms) +
                       " ms; do not free the memory yet, and unregister it again"};
    }
    lock.unlock();
    std::this_thread::sleep_for(kLookAgain);
    lock.lock();
  }
  memory_.remove(address);
  lock.unlock();
  return ok_status();
}

Result<std::byte*> Client::allocate(uint64_t bytes) {
  std::shared_ptr<SharedHeap> heap;
  {
    const std::lock_guard lock(mutex_);
    if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
    heap = heap_;
  }
  if (std::byte* const memory = allocate_shared(heap, bytes)) return memory;
  return Error{ErrorCode::kResourceExhausted,
               "cannot allocate " + std::to_string(bytes) + " bytes"};
}

void Client::give_input(uint64_t operation, uint64_t slices) {
  {
    const std::lock_guard lock(mutex_);
    if (collectives_) {
      if (collectives_->has_ready()) return collectives_->set_ready(operation, slices);
      collectives_->set_ready(operation, slices);
      if (!collectives_->has_ready()) return;
    } else {
      PBOX_CHECK(operation < tensor_states_.size());
      TensorState& state = tensor_states_[operation];
      if (!state.awaits_input) return;  // it has failed
      state.awaits_input = false;
      submitted_.push_back(static_cast<uint32_t>(operation));
      if (submitted_.size() > 1) return;  // the I/O thread has been woken already
    }
  }
  wake();
}

Result<TensorSpec> Client::tensor_spec(uint32_t tensor) const {
  const std::lock_guard lock(mutex_);
  if (tensor < tensors_.size()) return tensors_[tensor];
  return Error{ErrorCode::kInvalidArgument, "tensor " + std::to_string(tensor) + " is unknown; " +
                                                std::to_string(tensors_.size()) +
                                                " are registered"};
}

}  // namespace pbox::worker
