#include <catch2/catch.hpp>

#include "pipeline/loop.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

// Hands out one packet, has no event to wait for, and stops the loop at its 200th poll.
class OnePacketPort {
 public:
  explicit OnePacketPort(pipeline::Mailbox& mailbox) : mailbox_(mailbox) {}
  size_t rx_burst(std::span<nic::RxPacket> packets) {
    ++polls;
    if (polls == 200) mailbox_.stop.store(true);
    if (polls != 1) return 0;
    packets[0] = {packet_.data(), static_cast<uint32_t>(packet_.size()), {}};  // rejected
    return 1;
  }
  size_t tx_burst(std::span<const nic::TxPacket> packets) { return packets.size(); }
  int event_fd() const { return -1; }
  nic::Capabilities capabilities() const { return {}; }
  const nic::PortCounters& counters() const { return counters_; }

  uint64_t polls = 0;

 private:
  std::array<std::byte, 100> packet_{};
  pipeline::Mailbox& mailbox_;
  nic::PortCounters counters_;
};

// How long it ran.
uint64_t run_loop(const pipeline::PollPolicy& policy, pipeline::Core& core) {
  pipeline::Mailbox mailbox;
  OnePacketPort port(mailbox);
  const uint64_t start_ns = monotonic_ns();
  pipeline::Loop<OnePacketPort>(core, port, mailbox, policy).run();
  return monotonic_ns() - start_ns;
}

}  // namespace

TEST_CASE("turns with work count as busy time, and idle ones do not") {
  Box box;
  const uint64_t elapsed_ns = run_loop({.busy = true}, box.core);
  const uint64_t busy_ns = box.core.counters().get(pipeline::Counter::kBusyNs);
  CHECK(busy_ns > 0);
  CHECK(busy_ns < elapsed_ns);
  CHECK(box.core.counters().get(pipeline::Counter::kSleeps) == 0);
}

TEST_CASE("a port without an event to wait for is polled in naps once nothing comes") {
  Box box;
  run_loop({.busy = false, .spin_ns = 0}, box.core);
  CHECK(box.core.counters().get(pipeline::Counter::kRxPackets) == 1);
  CHECK(box.core.counters().get(pipeline::Counter::kSleeps) == 199);  // polls that found nothing
}

}  // namespace pbox::test
