// Registers the caller's memory: calls come from the caller's threads, the transports belong to the
// I/O thread.
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "worker/client.h"

namespace pbox::worker {
namespace {

// A payload has usually been read by the time its operation is done. If the box accepts nothing, it
// may stay with the device for any length of time.
constexpr uint64_t kReadNs = 100 * kNanosPerMilli;
constexpr auto kAskAgain = std::chrono::milliseconds(1);

}  // namespace

Status Client::register_memory(const std::byte* address, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status;
  if (const Status added = memory_.add(address, bytes); !added) return added;
  Status known = ok_status();
  const Status asked = call_on_io(lock, [&] {
    for (const auto& driver : drivers_) {
      const Status added = driver->add_memory(address, bytes);
      if (known) known = added;
    }
  });
  if (!asked) {
    memory_.remove(address);  // no driver knows of it
    return asked;
  }
  return known;
}

Status Client::unregister_memory(const std::byte* address) {
  std::unique_lock lock(mutex_);
  if (const Status known = memory_.check(address); !known) return known;
  const uint64_t patient_until_ns = monotonic_ns() + kReadNs;
  for (;;) {
    const bool force = monotonic_ns() >= patient_until_ns;
    bool is_read = false;
    const Status asked = call_on_io(lock, [&] {
      for (const auto& driver : drivers_) {
        if (!driver->remove_memory(address, force)) is_read = true;
      }
    });
    if (!asked) return asked;
    if (!is_read) break;
    lock.unlock();
    std::this_thread::sleep_for(kAskAgain);
    lock.lock();
  }
  memory_.remove(address);
  return ok_status();
}

}  // namespace pbox::worker
