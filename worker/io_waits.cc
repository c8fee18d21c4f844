#include "worker/io_waits.h"

#include <algorithm>

#include "base/clock.h"

namespace pbox::worker {

bool IoWaits::wait(std::span<const int> own,
                   const std::vector<std::unique_ptr<PartDriver>>& drivers, uint64_t limit_ns,
                   bool must_poll) {
  const bool gathers = !must_poll && coalescing_.take_pause();
  if (gathers) limit_ns = std::min(limit_ns, nic::Coalescing::kPauseNs);
  waits_.clear();
  for (const int fd : own) waits_.push_back({fd, POLLIN, 0});
  for (const auto& driver : drivers) driver->add_control_wait(waits_);
  const auto control_waits = static_cast<ptrdiff_t>(waits_.size());
  for (const auto& driver : drivers) {
    if (!gathers) driver->add_lane_waits(waits_);
  }
  const timespec timeout = timespec_of(limit_ns);
  const int ready = ppoll(waits_.data(), waits_.size(), &timeout, nullptr);
  const uint64_t now_ns = monotonic_ns();
  auto lane = static_cast<size_t>(control_waits);
  for (const auto& driver : drivers) {
    if (gathers) {
      driver->look_at_all_lanes();
    } else {
      driver->note_ready(waits_, lane, now_ns);
    }
  }
  if (ready <= 0) return !gathers;
  return std::any_of(waits_.begin(), waits_.begin() + control_waits,
                     [](const pollfd& wait) { return wait.revents != 0; });
}

}  // namespace pbox::worker
