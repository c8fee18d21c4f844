// Windows over a synthetic link with a rate, a delay and a queue, which others may fill.
#include <catch2/catch.hpp>
#include <deque>

#include "worker/protocol/congestion_window.h"

namespace pbox::worker::congestion_window_test {
namespace {

constexpr uint32_t kChunk = 32'000;
constexpr uint32_t kFragment = 1'600;
constexpr uint64_t kSlackNs = 2 * kNanosPerMilli;
constexpr uint64_t kLinkDelayNs = 100 * kNanosPerMilli;  // both ways together
constexpr uint64_t kLinkRate = 16'000'000;               // bytes per second
constexpr uint64_t kLinkBytes = kLinkRate / 10;          // fills the link without a queue

// A link that takes one chunk after the other.
class Link {
 public:
  explicit Link(uint64_t delay_ns = kLinkDelayNs) : delay_ns_(delay_ns) {
    window.add_path();
    window.fit(kChunk, kFragment);
    window.begin_wait();
  }

  // Pushes for this long whatever the window allows. Returns the share of the link that was used.
  double run(uint64_t duration_ns) {
    const uint64_t begin_ns = now_ns, until_ns = now_ns + duration_ns;
    uint64_t bytes = 0;
    while (now_ns < until_ns) {
      while (may_push()) push();
      bytes += deliver();
    }
    const double seconds = static_cast<double>(now_ns - begin_ns) / 1e9;
    return static_cast<double>(bytes) / seconds / static_cast<double>(kLinkRate);
  }
  // Like run(), but ends once a chunk is lost. Returns whether one was, within `limit_ns`.
  bool run_until_loss(uint64_t limit_ns) {
    const uint64_t until_ns = now_ns + limit_ns;
    const uint64_t before = lost_chunks;
    while (now_ns < until_ns && lost_chunks == before) run(kNanosPerMilli);
    return lost_chunks > before;
  }
  // Loses this many fragments of the chunk that was pushed last.
  void lose(uint32_t fragments) { window.note_loss(flying_.back().sent_ns, fragments, now_ns); }
  size_t in_flight() const { return flying_.size(); }
  uint64_t in_flight_bytes() const { return flying_.size() * kChunk; }

  CongestionWindow window{kSlackNs};
  uint64_t now_ns = kNanosPerSecond;
  // A chunk that finds more than this in the queue loses a fragment.
  uint64_t queue_bytes = UINT64_MAX;
  uint64_t others_ns = 0;  // how long a chunk waits for what others have in the queue
  uint64_t window_bytes = 4 * kLinkBytes;  // bound while the window has none: what Window allows
  uint64_t lost_chunks = 0;

 private:
  struct Flying {
    uint64_t sent_ns;
    uint64_t due_ns;
    bool clean;
  };
  static constexpr uint64_t kChunkNs = kChunk * kNanosPerSecond / kLinkRate;

  bool may_push() const {
    const uint64_t bytes = in_flight_bytes();
    return bytes + kChunk <= window_bytes && window.has_room(bytes, kChunk, true);
  }
  void push() {
    free_ns_ = std::max(free_ns_, now_ns) + kChunkNs;
    const bool fits =
        free_ns_ - now_ns <= queue_bytes / 1000 * kNanosPerSecond / (kLinkRate / 1000);
    flying_.push_back({now_ns, free_ns_ + delay_ns_ + others_ns, fits});
    window.enter(kChunk);
  }
  uint64_t deliver() {
    const Flying next = flying_.front();
    flying_.pop_front();
    now_ns = std::max(now_ns, next.due_ns);
    if (!next.clean) {
      ++lost_chunks;
      window.note_loss(next.sent_ns, 1, now_ns);
    }
    window.arrive(next.sent_ns, kChunk, next.clean, now_ns);
    window.leave(kChunk);
    return kChunk;
  }

  uint64_t delay_ns_;
  uint64_t free_ns_ = 0;
  std::deque<Flying> flying_;
};

// A link on which the job has found that it is alone.
Link settled_link() {
  Link link;
  link.window_bytes = kLinkBytes * 21 / 20;
  for (int step = 0; step < 50 && !link.window.is_left_to_window(); ++step) link.run(kLinkDelayNs);
  REQUIRE(link.window.is_left_to_window());
  link.run(kNanosPerSecond);
  return link;
}

// A link on which the job shares with others, because a full queue has lost a chunk.
Link shared_link() {
  Link link = settled_link();
  link.queue_bytes = kLinkBytes / 2;
  link.window_bytes = 2 * kLinkBytes;
  REQUIRE(link.run_until_loss(5 * kNanosPerSecond));
  link.run(2 * kNanosPerSecond);
  REQUIRE_FALSE(link.window.is_left_to_window());
  return link;
}

}  // namespace

TEST_CASE("a new path doubles what is in flight until its rate stops growing") {
  Link link;
  link.run(kNanosPerMilli);
  CHECK(link.in_flight() <= 2);
  link.run(3 * kLinkDelayNs);
  CHECK(link.in_flight() >= 4);
  CHECK(link.in_flight() <= 20);
  uint64_t most = 0;
  while (!link.window.is_left_to_window() && link.now_ns < 6 * kNanosPerSecond) {
    most = std::max(most, link.in_flight_bytes());
    link.run(kLinkDelayNs / 4);
  }
  CHECK(link.window.is_left_to_window());
  CHECK(most > kLinkBytes);
  CHECK(most < 3 * kLinkBytes);
}

TEST_CASE("a job that is alone is left to Window, and uses the whole link") {
  Link link = settled_link();
  CHECK(link.run(5 * kNanosPerSecond) > 0.98);
  CHECK(link.window.is_left_to_window());
}

TEST_CASE("a loss in a full queue lowers the bound, once in a round trip") {
  const Link link = shared_link();
  Link none = link, one = link, three = link;
  none.run(2 * kLinkDelayNs);
  one.lose(1);
  one.run(2 * kLinkDelayNs);
  for (int loss = 0; loss < 3; ++loss) three.lose(1);
  three.run(2 * kLinkDelayNs);
  CHECK(one.in_flight() < none.in_flight());
  CHECK(one.in_flight() > none.in_flight() * 3 / 4);
  CHECK(three.in_flight() == one.in_flight());
}

TEST_CASE("a job that is alone in a queue that is too short loses little and uses the link") {
  Link link = shared_link();
  link.lost_chunks = 0;
  CHECK(link.run(30 * kNanosPerSecond) > 0.9);
  CHECK(link.lost_chunks < 30 * kLinkRate / kChunk / 10);
}

TEST_CASE("losses while chunks are fast are noise, unless they are many") {
  Link link = settled_link();
  link.window_bytes = kLinkBytes;
  link.lose(1);
  CHECK_FALSE(link.window.is_left_to_window());  // Window would keep too little in flight
  link.run(kLinkDelayNs);
  const uint64_t before = link.in_flight_bytes();
  for (int round_trip = 0; round_trip < 20; ++round_trip) {
    link.lose(1);
    link.run(kLinkDelayNs);
  }
  CHECK(link.in_flight_bytes() >= before);
  for (int round_trip = 0; round_trip < 20; ++round_trip) {
    link.lose(200);
    link.run(kLinkDelayNs);
  }
  CHECK(link.in_flight_bytes() < before * 3 / 4);
}

TEST_CASE(
    "a job competes once chunks take longer than its own bytes explain, and finds out later "
    "that it is alone again") {
  Link link = settled_link();
  link.others_ns = kLinkDelayNs;
  link.run(3 * kNanosPerSecond);
  CHECK_FALSE(link.window.is_left_to_window());
  link.queue_bytes = 3 * kLinkBytes;
  link.window_bytes = 8 * kLinkBytes;
  link.run(3 * kNanosPerSecond);
  CHECK(link.in_flight_bytes() > 2 * kLinkBytes);
  link.others_ns = 0;
  link.window_bytes = kLinkBytes * 21 / 20;
  link.run(15 * kNanosPerSecond);
  CHECK(link.window.is_left_to_window());
}

TEST_CASE("a job does not take itself to be alone while others fill the queue") {
  Link link = settled_link();
  link.others_ns = kLinkDelayNs;
  uint64_t left_ns = 0;
  for (int step = 0; step < 400; ++step) {
    const uint64_t begin_ns = link.now_ns;
    link.run(kLinkDelayNs);
    if (link.window.is_left_to_window()) left_ns += link.now_ns - begin_ns;
  }
  CHECK(left_ns < 5 * kNanosPerSecond);
}

TEST_CASE("paths on which chunks wait get equal parts of the bound") {
  CongestionWindow window(kSlackNs);
  for (int path = 0; path < 4; ++path) window.add_path();
  window.fit(kChunk, kFragment);  // the bound is four chunks
  window.begin_wait();
  window.enter(kChunk);
  CHECK(window.has_room(kChunk, kChunk, true));
  window.begin_wait();
  window.begin_wait();
  window.begin_wait();
  CHECK_FALSE(window.has_room(kChunk, kChunk, true));
  CHECK(window.has_room(0, kChunk, true));
  window.end_wait();
  window.end_wait();
  CHECK(window.has_room(kChunk, kChunk, true));
  CHECK_FALSE(window.has_room(kChunk, kChunk, false));  // a third path
}

TEST_CASE("nothing is bounded or paced on a short path") {
  Link link(kSlackNs / 100);
  CongestionWindow& window = link.window;
  link.window_bytes = 2 * kChunk;
  window.enter(kChunk);
  window.arrive(link.now_ns, kChunk, true, link.now_ns + kSlackNs / 2);
  link.now_ns += kSlackNs / 2;
  CHECK(window.is_left_to_window());
  window.note_loss(link.now_ns, 1000, link.now_ns);
  CHECK(window.is_left_to_window());
  for (int packet = 0; packet < 1000; ++packet) window.note_sent(kFragment, link.now_ns);
  CHECK(window.may_send(link.now_ns));
}

TEST_CASE("packets leave in short bursts, at a rate that the bound sets") {
  Link link = shared_link();
  uint64_t sent_bytes = 0;
  const uint64_t begin_ns = link.now_ns;
  for (uint64_t at_ns = begin_ns; at_ns < begin_ns + kNanosPerSecond; at_ns += 50'000) {
    uint64_t burst_bytes = 0;
    for (; link.window.may_send(at_ns); burst_bytes += kFragment) {
      link.window.note_sent(kFragment, at_ns);
    }
    CHECK(burst_bytes < 3 * kFragment + kLinkRate / 1000);
    CHECK(link.window.paced_until_ns() > at_ns);
    sent_bytes += burst_bytes;
  }
  CHECK(sent_bytes > kLinkRate * 3 / 4);
  CHECK(sent_bytes < 2 * kLinkRate);
}

TEST_CASE("before any result has come, what the box has and holds for others counts as arrived") {
  CongestionWindow window(kSlackNs);
  window.add_path();
  window.fit(kChunk, kFragment);
  window.begin_wait();
  window.enter(2 * kChunk);
  CHECK_FALSE(window.has_room(2 * kChunk, kChunk, true));
  window.acknowledge(kChunk);
  window.acknowledge(kChunk);
  CHECK(window.has_room(2 * kChunk, kChunk, true));
}

}  // namespace pbox::worker::congestion_window_test
