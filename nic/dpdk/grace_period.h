// Keeps memory that a device shares with its peer mapped until no thread polls it.
//
// When a memif peer disconnects, for example because a worker was killed, DPDK 22.11's memif driver
// unmaps the shared memory at once on DPDK's interrupt thread, even if another thread is receiving
// or sending there. Therefore programs that link this file replace munmap: on the interrupt thread
// it waits for a grace period, as in RCU (McKenney, Slingwine, 1998). A grace period ends when each
// poller that was between enter() and leave() has left. The driver marks the connection as closed
// before it unmaps, so a poller that enters later does not touch the memory. A shared library
// (libpbox_dpdk.so) cannot replace munmap in the program that loads it; there the race remains.
#pragma once

#include <atomic>
#include <cstdint>

namespace pbox::nic {

// Each port that polls memif devices has one. A process waits for at most kPollersMax of them;
// further ones are ignored. The polling thread calls enter() and leave() alternately. Neither makes
// a system call or takes a lock.
class GracePeriodPoller {
 public:
  static constexpr uint32_t kPollersMax = 128;

  GracePeriodPoller();
  ~GracePeriodPoller();
  GracePeriodPoller(const GracePeriodPoller&) = delete;
  GracePeriodPoller& operator=(const GracePeriodPoller&) = delete;

  // A full barrier: all accesses that follow come after it.
  void enter() { cell_->exchange(inside_ = inside_ + 2, std::memory_order_seq_cst); }
  void leave() { cell_->store(0, std::memory_order_release); }

 private:
  std::atomic<uint64_t>* cell_;
  uint64_t inside_ = 1;  // number of the last visit: odd, never repeated
};

// Returns once every poller that was inside has left. Must not be called between enter() and
// leave().
void wait_for_grace_period();

}  // namespace pbox::nic
