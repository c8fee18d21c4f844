// Decides when to let packets gather before they are received, like interrupt coalescing in NICs. A
// wire that is slower than this machine delivers packets one by one. A receiver that spins for
// each, or sleeps until each, takes CPU time in proportion to the duration of a transfer instead of
// its bytes.
//
// A value without I/O, for the one thread that receives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::nic {

class Coalescing {
 public:
  // How long packets gather, and so the most that a packet is delayed. A NIC delays its interrupts
  // by a similar time by default.
  static constexpr uint64_t kPauseNs = 50'000;

  // Records that `packets` packets, at least one, were received at `now_ns`.
  void received(size_t packets, uint64_t now_ns) {
    PBOX_DCHECK(packets > 0);
    has_paused_ = false;
    packets_ += packets;
    const uint64_t elapsed_ns = now_ns > begin_ns_ ? now_ns - begin_ns_ : 0;
    if (elapsed_ns < kWindowNs) return;
    PBOX_DCHECK(elapsed_ns > 0);
    is_dense_ = packets_ >= kDensePackets * elapsed_ns / kPauseNs;
    packets_ = 0;
    begin_ns_ = now_ns;
  }

  // Returns true if a receiver that has found no packet should pause for kPauseNs before it looks
  // again. After a pause that gathered no packet it returns false until packets are received,
  // because the stream may have ended.
  bool take_pause() {
    if (!is_dense_ || has_paused_) return false;
    has_paused_ = true;
    return true;
  }

 private:
  static constexpr uint64_t kWindowNs = kNanosPerMilli;
  // A pause must gather at least this many packets to be worth its delay.
  static constexpr uint64_t kDensePackets = 2;

  uint64_t begin_ns_ = 0;    // when the present window began
  uint64_t packets_ = 0;     // packets received in the present window
  bool is_dense_ = false;    // in the last window, a pause would have gathered kDensePackets
  bool has_paused_ = false;  // since packets were last received
};

}  // namespace pbox::nic
