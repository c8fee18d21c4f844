// The one loop of a pipeline, run to completion on one core. Each phase is a method, so that
// profiles and readers see the same names. The phases in order:
//
//   receive       a burst from the port: each packet is parsed, authenticated, claimed and added,
//                 and the last one of a round finishes it (Engine::on_burst)
//   send          replies, resends and finished chunks by priority, in bursts (Engine::to_send)
//   housekeep     one command of the control thread per turn, chunks that relays have given back,
//                 rounds that have their verdict, the tick
//   rest          if there was no work: let packets gather if they come one by one; otherwise spin
//                 for a while, then sleep on the port's event fd, or nap if the port has none
//                 (adaptive polling)
//
// No phase blocks, allocates, logs, formats or throws; rest is the only place that may sleep.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/event.h"
#include "base/spsc_ring.h"
#include "base/standstill.h"
#include "nic/coalescing.h"
#include "nic/port.h"
#include "pipeline/engine.h"

namespace pbox::pipeline {

struct PollPolicy {
  bool busy = false;  // always spin: the pipeline has a core of its own
  // Adaptive polling: the longest time to spin after the last work. If the port has an event fd and
  // packets come further apart than this, the loop spins for less, down to nothing.
  uint64_t spin_ns = 0;
  // Adaptive polling: the longest sleep on the port's event fd.
  uint64_t sleep_max_ns = 100 * kNanosPerMilli;
};

// The control thread's side of a pipeline.
struct Mailbox {
  SpscRing<Command> commands{256};
  std::atomic<uint64_t> completed_ticket{0};
  std::atomic<bool> stop{false};
  int wake_fd = -1;  // event that the control thread owns and sets
};

// Drives one engine over one port. The pipeline's own core calls everything here.
template <nic::Port P>
class Loop {
 public:
  Loop(Engine& core, P& port, Mailbox& mailbox, const PollPolicy& policy)
      : engine_(core),
        port_(port),
        mailbox_(mailbox),
        policy_(policy),
        must_poll_(port.event_fd() < 0),
        spin_ns_(policy.spin_ns) {}

  // Runs turns until `mailbox.stop` is set.
  void run() {
    uint64_t now_ns = monotonic_ns();
    uint64_t last_work_ns = now_ns;
    uint64_t last_turn_ns = now_ns;
    while (!mailbox_.stop.load(std::memory_order_acquire)) {
      const uint64_t gap_ns = now_ns - std::exchange(last_turn_ns, now_ns);
      if (gap_ns > kStandstillNs) [[unlikely]]
        engine_.discount_standstill(gap_ns);
      const bool worked = turn(now_ns);
      const uint64_t turn_start_ns = std::exchange(now_ns, monotonic_ns());
      if (worked) {
        engine_.counters().add(Counter::kBusyNs, now_ns - turn_start_ns);
        last_work_ns = now_ns;
      } else if (rest(now_ns, now_ns - last_work_ns)) {
        now_ns = monotonic_ns();
      }
    }
  }

  // Runs every phase except rest once. Returns true if there was work.
  bool turn(uint64_t now_ns) {
    engine_.clock().begin_turn();
    const bool received = receive(now_ns);
    const bool sent = send();
    engine_.clock().end_turn(received || sent);
    engine_.tick(now_ns);
    const bool finished = engine_.finish_waiting(now_ns);
    return housekeep() || finished || received || sent;
  }

 private:
  bool receive(uint64_t now_ns) {
    const size_t count = port_.rx_burst(burst_);
    engine_.clock().mark(Phase::kReceive);
    PBOX_DCHECK(count <= burst_.size());
    if (count == 0) return false;
    coalescing_.received(count, now_ns);
    engine_.on_burst({burst_.data(), count}, now_ns);
    return true;
  }

  bool send() {
    bool any = false;
    for (;;) {
      const auto packets = engine_.to_send();
      PBOX_DCHECK(packets.size() <= limits::kBurstPackets);
      blocked_ = false;
      if (packets.empty()) return any;
      const size_t count = port_.tx_burst(packets);
      engine_.clock().mark(Phase::kSend);
      PBOX_DCHECK(count <= packets.size());
      engine_.sent(count);
      any = any || count > 0;
      blocked_ = count < packets.size();
      if (blocked_ || packets.size() < limits::kBurstPackets) return any;
      if (++bursts_ % kBurstsPerTurn == 0) return any;  // look at the receive ring again
    }
  }

  bool housekeep() {
    if (!has_command_ && !mailbox_.commands.pop(command_)) return false;
    PBOX_DCHECK(command_.ticket > mailbox_.completed_ticket.load(std::memory_order_relaxed));
    has_command_ = !engine_.step(command_);
    if (!has_command_) {
      mailbox_.completed_ticket.store(command_.ticket, std::memory_order_release);
    }
    return true;
  }

  // Sleeps until there is work, or naps where the port has no event fd or packets should gather.
  // Returns false if it may not sleep yet.
  bool rest(uint64_t now_ns, uint64_t idle_ns) {
    if (policy_.busy) return false;
    const bool gathers = !must_poll_ && !blocked_ && coalescing_.take_pause();
    if (!gathers && idle_ns < spin_ns_) return false;
    engine_.counters().add(Counter::kSleeps);
    if (gathers) {
      sleep(-1, nic::Coalescing::kPauseNs);
    } else if (must_poll_) {
      sleep(-1, std::clamp(idle_ns / 4, kNapMinNs, kNapMaxNs));
    } else {
      const uint64_t start_ns = monotonic_ns();
      const uint64_t due_ns = engine_.due_ns();
      const uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
      sleep(port_.event_fd(), std::clamp(left_ns, kNapMinNs, policy_.sleep_max_ns));
      adapt_spin(idle_ns + (monotonic_ns() - start_ns));
    }
    return true;
  }

  // Called when work came after `waited_ns`. Halves the time to spin if the longest would not have
  // been enough, else sets it to the longest, like a hypervisor (Linux, KVM's halt polling).
  void adapt_spin(uint64_t waited_ns) {
    PBOX_DCHECK(spin_ns_ <= policy_.spin_ns);
    spin_ns_ = waited_ns <= policy_.spin_ns ? policy_.spin_ns : spin_ns_ / 2;
  }

  // Sleeps until a command comes, the descriptor is ready (unless -1), or `limit_ns` has passed.
  void sleep(int event_fd, uint64_t limit_ns) {
    PBOX_DCHECK(limit_ns > 0 && !policy_.busy);
    pollfd waits[2] = {{mailbox_.wake_fd, POLLIN, 0},
                       {event_fd, static_cast<short>(blocked_ ? POLLIN | POLLOUT : POLLIN), 0}};
    const timespec timeout = timespec_of(limit_ns);
    if (ppoll(waits, event_fd < 0 ? 1 : 2, &timeout, nullptr) > 0 &&
        (waits[0].revents & POLLIN) != 0) {
      clear_event(mailbox_.wake_fd);
    }
  }

  static constexpr uint32_t kBurstsPerTurn = 4;
  // Naps grow with idle time: short between rounds of a training step, longer on an idle box.
  static constexpr uint64_t kNapMinNs = 20'000;
  static constexpr uint64_t kNapMaxNs = 1'000'000;

  Engine& engine_;
  P& port_;
  Mailbox& mailbox_;
  PollPolicy policy_;
  bool must_poll_;    // the port has no event fd
  uint64_t spin_ns_;  // the current time to spin, at most policy_.spin_ns
  nic::Coalescing coalescing_;
  bool blocked_ = false;  // the port took fewer packets than it was offered
  uint32_t bursts_ = 0;
  bool has_command_ = false;  // `command_` needs further steps
  Command command_;
  std::array<nic::RxPacket, limits::kBurstPackets> burst_;
};

}  // namespace pbox::pipeline
