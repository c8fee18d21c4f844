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
uint64_t run_loop(const pipeline::PollPolicy& policy, pipeline::Engine& core) {
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

// Fetching ahead is tried both ways in sampled turns, and what is not as the others are is left
// out.
TEST_CASE("turns are sampled whatever the size of their packets") {
  for (const uint32_t fragment_bytes : {1024u, 8192u}) {
    Box box;
    const JobOptions job{.fragment_bytes = fragment_bytes, .chunk_elements = 4096};
    box.admit(job);
    uint64_t turns = 0;
    for (uint32_t round = 0; turns < 4096; ++round) {
      for (uint32_t rank = 0; rank < job.workers; ++rank) {
        for (uint32_t fragment = 0; fragment < 16 * 1024 / fragment_bytes; ++fragment, ++turns) {
          box.core.clock().begin_turn();
          box.deliver(box.push(job, rank, fragment, 1, round));
          box.core.clock().end_turn(true);
        }
      }
      box.take_all();
    }
    CHECK(box.count(pipeline::Counter::kAggregated) == turns);
    const uint64_t samples = turns / pipeline::PhaseClock::kTurnsPerSample;
    CHECK(box.count(pipeline::Counter::kSampledFragments) >= samples / 4);
    CHECK(box.count(pipeline::Counter::kSampledFragments) <= samples + 1);
  }
}

}  // namespace pbox::test
