// A worker's membership without sockets. Tests read the actions that it requests, and play the
// driver and the box.
#pragma once

#include <cstring>
#include <vector>

#include "worker/membership/membership.h"

namespace pbox::test {

inline constexpr uint64_t kSecondNs = 1'000'000'000;

// Rank 0 of 2 in job "train". It has two tensors: "weights" of two chunks of 4096 bytes, and "bias"
// of one chunk.
class Member {
 public:
  explicit Member(worker::MembershipOptions options = default_options(),
                  const proto::Optimizer& optimizer = {});
  static worker::MembershipOptions default_options();

  // Returns the kinds of the current actions; they stay in `actions` until the next call.
  std::vector<worker::Action::Kind> act();
  // Returns the only message of the current actions.
  const proto::WorkerMessage& message() const;

  void connect();   // up to the request for data addresses
  void ask_join();  // up to JOIN
  void join();      // up to kRunning
  void deliver(const proto::BoxMessage& message) { membership.on_message(message, now_ns); }
  // Breaks the connection and rejoins up to JOIN. The actions are then JOIN and rounds.
  void lose_box();
  void ask_join_again();
  // Continues up to kRunning, in a session of `epoch`, at a box whose chunks are in these rounds.
  void resume(uint32_t epoch, const std::vector<uint32_t>& rounds,
              const std::vector<uint32_t>& give = {});
  // Moves the clock to the next deadline, or by at most limit_ns. Returns whether the deadline was
  // reached.
  bool advance(uint64_t limit_ns = UINT64_MAX);

  static proto::BoxMessage data_addresses();
  static proto::BoxMessage session(uint32_t epoch = 3);
  static proto::BoxMessage round_map(const std::vector<uint32_t>& rounds,
                                     const std::vector<uint32_t>& give = {});
  static worker::TransportFacts facts();

  worker::Membership membership;
  std::vector<worker::Action> actions;
  uint64_t now_ns = kSecondNs;
};

}  // namespace pbox::test
