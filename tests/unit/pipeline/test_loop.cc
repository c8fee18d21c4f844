#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

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

// A port that has packets at every second poll: so many that they are dense even if a poll takes
// half a millisecond. It stops the loop at its first sleep, or when it should have slept long ago.
class AlternatingPort {
 public:
  AlternatingPort(pipeline::Mailbox& mailbox, const pipeline::Counters& counters)
      : mailbox_(mailbox), counters_of_loop_(counters), never_ready_(eventfd(0, EFD_NONBLOCK)) {
    REQUIRE(never_ready_ >= 0);
  }
  ~AlternatingPort() { close(never_ready_); }
  AlternatingPort(const AlternatingPort&) = delete;
  AlternatingPort& operator=(const AlternatingPort&) = delete;

  size_t rx_burst(std::span<nic::RxPacket> packets) {
    constexpr uint64_t kPollsMax = 1'000'000;
    const bool has_slept = counters_of_loop_.get(pipeline::Counter::kSleeps) > 0;
    if (has_slept || ++polls_ == kPollsMax) mailbox_.stop.store(true);
    if (has_slept || polls_ % 2 == 0) return 0;
    for (nic::RxPacket& packet : packets) {
      packet = {packet_.data(), static_cast<uint32_t>(packet_.size()), {}};  // rejected
    }
    delivered += packets.size();
    return packets.size();
  }
  size_t tx_burst(std::span<const nic::TxPacket> packets) { return packets.size(); }
  int event_fd() const { return never_ready_; }
  nic::Capabilities capabilities() const { return {}; }
  const nic::PortCounters& counters() const { return counters_; }

  uint64_t delivered = 0;

 private:
  std::array<std::byte, 100> packet_{};
  pipeline::Mailbox& mailbox_;
  const pipeline::Counters& counters_of_loop_;
  uint64_t polls_ = 0;
  int never_ready_;
  nic::PortCounters counters_;
};

// A port that gets packets one by one at a fixed interval, and stops the loop after some.
class PacedPort {
 public:
  PacedPort(pipeline::Mailbox& mailbox, uint64_t interval_ns, uint64_t packets)
      : mailbox_(mailbox), left_(packets), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)) {
    const timespec interval{0, static_cast<long>(interval_ns)};
    const itimerspec setting{interval, interval};
    REQUIRE(timerfd_settime(timer_, 0, &setting, nullptr) == 0);
  }
  ~PacedPort() { close(timer_); }
  PacedPort(const PacedPort&) = delete;
  PacedPort& operator=(const PacedPort&) = delete;

  size_t rx_burst(std::span<nic::RxPacket> packets) {
    ++polls;
    uint64_t count = 0;
    if (read(timer_, &count, sizeof(count)) != sizeof(count)) return 0;
    count = std::min<uint64_t>({count, left_, packets.size()});
    for (uint64_t index = 0; index < count; ++index) {
      packets[index] = {packet_.data(), static_cast<uint32_t>(packet_.size()), {}};  // rejected
    }
    left_ -= count;
    if (left_ == 0) mailbox_.stop.store(true);
    return count;
  }
  size_t tx_burst(std::span<const nic::TxPacket> packets) { return packets.size(); }
  int event_fd() const { return timer_; }
  nic::Capabilities capabilities() const { return {}; }
  const nic::PortCounters& counters() const { return counters_; }

  uint64_t polls = 0;

 private:
  std::array<std::byte, 100> packet_{};
  pipeline::Mailbox& mailbox_;
  uint64_t left_;
  int timer_;
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

TEST_CASE("packets that keep coming gather instead of being spun for") {
  Box box;
  pipeline::Mailbox mailbox;
  AlternatingPort port(mailbox, box.engine.counters());
  // A loop that spins for this time spins for longer than the test may take.
  pipeline::Loop<AlternatingPort>(box.engine, port, mailbox, {.spin_ns = 3600 * kNanosPerSecond})
      .run();
  CHECK(box.engine.counters().get(pipeline::Counter::kSleeps) == 1);
  CHECK(box.engine.counters().get(pipeline::Counter::kRxPackets) == port.delivered);
}

TEST_CASE("a loop that spins in vain stops spinning") {
  Box box;
  pipeline::Mailbox mailbox;
  constexpr uint64_t kPackets = 200;
  PacedPort port(mailbox, kNanosPerMilli, kPackets);
  pipeline::Loop<PacedPort>(box.engine, port, mailbox, {.spin_ns = 20'000}).run();
  CHECK(port.polls < 10 * kPackets);
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
