// Tells boxes, for ranks that are well, that they cannot reach the box of their part. In a rack
// with keys no part may move for that.
#pragma once

#include <functional>

#include "base/rng.h"
#include "tests/sim/rack.h"

namespace pbox::sim {

class Worker;

// The boxes have run for so long when workers start in a rack with a liar. A box that has run for a
// shorter time would count as restarted.
inline constexpr uint64_t kLiarBeginsAfterNs = 4 * kNanosPerSecond;

class Liar final : public ControlEnd {
 public:
  // `choose` returns the worker for which to lie, by a random number.
  Liar(Rack& rack, std::function<const Worker&(uint64_t)> choose);

  // Lies a number of times, and ends by itself.
  void start();

  bool on_accept(ConnectionId, HostId) override { return false; }
  void on_connected(ConnectionId id) override;
  void on_control_message(ConnectionId id, const std::string& body) override;
  void on_closed(ConnectionId id, const std::string& reason) override;

 private:
  void lie();
  void hang_up();

  Rack& rack_;
  std::function<const Worker&(uint64_t)> choose_;
  HostId host_;
  Rng rng_;
  uint32_t left_;
  ConnectionId connection_ = 0;  // 0: none
  proto::WorkerMessage lie_;
};

}  // namespace pbox::sim
