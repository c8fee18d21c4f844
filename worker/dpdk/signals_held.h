// Protects the process's signals from DPDK. No signal may be delivered to DPDK's threads. No
// SIGPIPE may come from a memif peer that is gone: DPDK 22.11 writes to it without MSG_NOSIGNAL.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace pbox::worker {

// Blocks the signals in the calling thread while this object exists. Threads created meanwhile
// never receive them. A SIGPIPE that arrived meanwhile is discarded; other signals are delivered at
// the end.
class SignalsHeld {
 public:
  static sigset_t broken_pipe() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    return set;
  }

  explicit SignalsHeld(const sigset_t& signals) : pipe_was_broken_(pipe_is_broken()) {
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsHeld() {
    constexpr timespec kNoTime{};
    const sigset_t pipe = broken_pipe();
    if (pipe_is_broken() && !pipe_was_broken_) sigtimedwait(&pipe, nullptr, &kNoTime);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  static bool pipe_is_broken() {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 1;
  }

  bool pipe_was_broken_;
  sigset_t before_{};
};

}  // namespace pbox::worker
