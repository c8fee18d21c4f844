// Keeps memory that a device shares with its peer mapped until nobody polls there.
//
// DPDK 22.11's memif driver unmaps it on DPDK's interrupt thread the moment the peer goes (a killed
// worker), whoever is receiving or sending there meanwhile. So, in programs that this is linked
// into, munmap on that thread waits for a grace period, as in RCU (McKenney, Slingwine, 1998):
// until each poller that was between enter() and leave() has left. The driver marks the connection
// as gone before it unmaps, so whoever enters later finds nothing to touch. A library loaded by
// others (libpbox_dpdk.so) cannot stand in for munmap: there the race remains.
#pragma once

#include <atomic>
#include <cstdint>

namespace pbox::nic {

// One per port that polls such devices; at most kPollersMax in a process, more are not waited for.
// enter() and leave(): the polling thread, in turns; no call of the kernel, no lock.
class GracePeriodPoller {
 public:
  static constexpr uint32_t kPollersMax = 128;

  GracePeriodPoller();
  ~GracePeriodPoller();
  GracePeriodPoller(const GracePeriodPoller&) = delete;
  GracePeriodPoller& operator=(const GracePeriodPoller&) = delete;

  // Ordered before every access that follows.
  void enter() { cell_->exchange(inside_ = inside_ + 2, std::memory_order_seq_cst); }
  void leave() { cell_->store(0, std::memory_order_release); }

 private:
  std::atomic<uint64_t>* cell_;
  uint64_t inside_ = 1;  // odd, and another number each time
};

// Returns when every poller that was inside has left. Not from between enter() and leave().
void wait_for_grace_period();

}  // namespace pbox::nic
