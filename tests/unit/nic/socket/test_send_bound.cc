// The bound over synthetic cables. A cable takes bytes at a rate; the socket writes until its
// buffer is full, and again when it is half empty.
#include <catch2/catch.hpp>

#include "nic/socket/send_bound.h"

namespace pbox::nic {
namespace {

constexpr uint64_t kMost = 16 << 20;
constexpr uint64_t kMessage = 60'000;

class Cable {
 public:
  explicit Cable(uint64_t bytes_per_ms) : rate(bytes_per_ms) {}

  // Something always waits to be sent. The writer notices `late_ns` after there is room.
  void saturate(SendBound& bound, uint64_t duration_ns, uint64_t late_ns = 0) {
    for (const uint64_t end_ns = now_ns + duration_ns; now_ns < end_ns;) {
      for (; queued < bound.bytes(); queued += kMessage) bound.add(kMessage);
      bound.on_full(now_ns);
      const uint64_t over = queued - std::min(queued, bound.bytes() / 2);
      pass(over * kNanosPerMilli / rate + 1 + late_ns);
    }
  }
  void pass(uint64_t time_ns) {
    now_ns += time_ns;
    const uint64_t drained = rate * time_ns / kNanosPerMilli;
    idle_bytes += drained - std::min(drained, queued);
    queued -= std::min(drained, queued);
  }

  uint64_t rate;
  uint64_t now_ns = kNanosPerSecond;
  uint64_t queued = 0;
  uint64_t idle_bytes = 0;  // capacity that was lost because nothing was queued
};

uint64_t slack_bytes(const Cable& cable) {
  return cable.rate * SendBound::kSlackNs / kNanosPerMilli;
}

}  // namespace

TEST_CASE("a slow cable holds two segmented messages and what it takes in the slack") {
  for (const uint64_t rate : {3'000u, 34'000u, 125'000u, 1'000'000u}) {
    Cable cable(rate);
    SendBound bound(kMost);
    cable.saturate(bound, kNanosPerSecond);
    INFO("bytes per millisecond: " << rate);
    const uint64_t wanted = SendBound::kLeastBytes + slack_bytes(cable);
    CHECK(bound.bytes() <= wanted * 4 / 3);
    CHECK(bound.bytes() >= wanted * 3 / 4);
  }
}

TEST_CASE("a fast cable does not idle because of its bound, even if the writer is a little late") {
  constexpr uint64_t kRate = 1'250'000;  // 10 Gbit/s
  Cable cable(kRate);
  SendBound bound(kMost);
  cable.saturate(bound, 20 * kNanosPerMilli, SendBound::kSlackNs / 4);  // the bound grows
  cable.idle_bytes = 0;
  cable.saturate(bound, kNanosPerSecond, SendBound::kSlackNs / 4);
  CHECK(cable.idle_bytes < kRate * 1000 / 100);
}

TEST_CASE("the bound follows a cable whose rate changes, and never exceeds what was asked for") {
  Cable cable(10'000'000);
  SendBound bound(kMost);
  cable.saturate(bound, kNanosPerSecond);
  CHECK(bound.bytes() == kMost);
  cable.rate = 34'000;
  cable.saturate(bound, kNanosPerSecond);
  CHECK(bound.bytes() < 2 * (SendBound::kLeastBytes + slack_bytes(cable)));
}

TEST_CASE("bursts with long pauses do not make a cable look slow") {
  Cable cable(1'000'000);
  SendBound bound(kMost);
  cable.saturate(bound, 100 * kNanosPerMilli);
  const uint64_t measured = bound.bytes();
  for (int burst = 0; burst < 20; ++burst) {
    cable.pass(60 * kNanosPerMilli);
    cable.saturate(bound, 10 * kNanosPerMilli);
  }
  CHECK(bound.bytes() >= measured * 3 / 4);
}

TEST_CASE("a buffer that is never full keeps its first bound") {
  SendBound bound(kMost);
  for (int message = 0; message < 1000; ++message) bound.add(kMessage);
  CHECK(bound.bytes() == SendBound::kFirstBytes);
  CHECK(SendBound(0).bytes() == SendBound::kLeastBytes);
}

}  // namespace pbox::nic
