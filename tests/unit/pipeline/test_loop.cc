#include <catch2/catch.hpp>

#include "pipeline/loop.h"
#include "tests/unit/pipeline/box.h"

namespace pbox::test {
namespace {

// A port that delivers one packet, has no event fd, and stops the loop at its 200th poll.
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

// Returns how long the loop ran, in nanoseconds.
uint64_t run_loop(const pipeline::PollPolicy& policy, pipeline::Engine& engine) {
  pipeline::Mailbox mailbox;
  OnePacketPort port(mailbox);
  const uint64_t start_ns = monotonic_ns();
  pipeline::Loop<OnePacketPort>(engine, port, mailbox, policy).run();
  return monotonic_ns() - start_ns;
}

}  // namespace

TEST_CASE("turns with work count as busy time, and idle ones do not") {
  Box box;
  const uint64_t elapsed_ns = run_loop({.busy = true}, box.engine);
  const uint64_t busy_ns = box.engine.counters().get(pipeline::Counter::kBusyNs);
  CHECK(busy_ns > 0);
  CHECK(busy_ns < elapsed_ns);
  CHECK(box.engine.counters().get(pipeline::Counter::kSleeps) == 0);
}

TEST_CASE("an idle port without an event fd is polled between naps") {
  Box box;
  run_loop({.busy = false, .spin_ns = 0}, box.engine);
  CHECK(box.engine.counters().get(pipeline::Counter::kRxPackets) == 1);
  CHECK(box.engine.counters().get(pipeline::Counter::kSleeps) ==
        199);  // polls that found no packet
}

// Sampled turns try both ways of fetching ahead. A turn that differs from the others is discarded.
TEST_CASE("turns are sampled whatever the size of their packets") {
  for (const uint32_t fragment_bytes : {1024u, 8192u}) {
    Box box;
    const JobOptions job{.fragment_bytes = fragment_bytes, .chunk_elements = 4096};
    box.admit(job);
    uint64_t turns = 0;
    for (uint32_t round = 0; turns < 4096; ++round) {
      for (uint32_t rank = 0; rank < job.workers; ++rank) {
        for (uint32_t fragment = 0; fragment < 16 * 1024 / fragment_bytes; ++fragment, ++turns) {
          box.engine.clock().begin_turn();
          box.deliver(box.push(job, rank, fragment, 1, round));
          box.engine.clock().end_turn(true);
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
