// Windows over synthetic paths. A path is a link with a rate and a latency, a queue before it, and
// a result for each chunk.
#include <catch2/catch.hpp>
#include <deque>
#include <limits>

#include "worker/protocol/window.h"

namespace pbox::worker::window_test {
namespace {

constexpr uint32_t kChunk = 32'000;
constexpr uint64_t kSlackNs = 250'000;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kBound = 1 << 20;

// A path that takes chunks one after the other. Its latency is added to the transmission time.
class Path {
 public:
  Path(uint64_t bytes_per_second, uint64_t time_ns) : rate_(bytes_per_second), time_ns_(time_ns) {}

  uint64_t chunk_ns() const { return kChunk * kSecond / rate_; }
  uint64_t base_ns() const { return chunk_ns() + time_ns_; }
  void set_rate(uint64_t bytes_per_second) { rate_ = bytes_per_second; }

  // Pushes for this long as the window allows. Returns the share of the path that was used.
  double run(Window& window, uint64_t duration_ns) {
    const uint64_t until_ns = now_ns + duration_ns;
    uint64_t done = 0;
    const double start_ns = static_cast<double>(now_ns);
    while (now_ns < until_ns) {
      while (may_push(window)) push(window);
      done += step(window) ? 1 : 0;
    }
    return static_cast<double>(done * chunk_ns()) / (static_cast<double>(now_ns) - start_ns);
  }
  // Pushes a burst of chunks, then nothing until all are done.
  void burst(Window& window, uint64_t chunks) {
    while (chunks > 0 || !flying_.empty()) {
      for (; chunks > 0 && may_push(window); --chunks) push(window);
      if (chunks == 0) window.starve(flying_.size() * kChunk);
      step(window);
    }
    window.starve(0);
  }
  size_t in_flight() const { return flying_.size(); }

  uint64_t now_ns = kSecond;

 private:
  struct Flying {
    Window::Mark mark;
    uint64_t due_ns;
  };
  bool may_push(const Window& window) const {
    const uint64_t bytes = std::min(kBound, window.bytes(now_ns));
    return flying_.empty() || (flying_.size() + 1) * kChunk <= bytes;
  }
  void push(Window& window) {
    free_ns_ = std::max(free_ns_, now_ns) + chunk_ns();
    flying_.push_back({window.leave(flying_.size() * kChunk, now_ns), free_ns_ + time_ns_});
  }
  bool step(Window& window) {
    if (flying_.empty()) return false;
    now_ns = std::max(now_ns, flying_.front().due_ns);
    window.arrive(flying_.front().mark, kChunk, true, now_ns);
    flying_.pop_front();
    return true;
  }

  uint64_t rate_;
  uint64_t time_ns_;
  uint64_t free_ns_ = 0;
  std::deque<Flying> flying_;
};

Window make_window(uint64_t slack_ns = kSlackNs) {
  Window window(slack_ns);
  window.fit(kChunk);
  return window;
}

}  // namespace

TEST_CASE("before the first measurement there is no bound, so a short job starts at full speed") {
  Window window = make_window();
  CHECK(window.bytes(kSecond) == UINT64_MAX);
  Path path(12'500'000, 1'000'000);
  path.burst(window, 10);  // all of it fits into the first flight
  CHECK(window.bytes(path.now_ns) == UINT64_MAX);
}

TEST_CASE("a path is kept busy with a queue of about one chunk") {
  const struct {
    uint64_t bytes_per_second, time_ns;
  } paths[] = {{12'500'000, 100'000},     // 100 Mbit/s, near
               {12'500'000, 3'000'000},   // through two veths and a switch
               {125'000'000, 200'000},    // 1 Gbit/s, near
               {125'000'000, 5'000'000},  // 1 Gbit/s, far
               {1'250'000'000, 50'000}};
  for (const auto& [rate, time_ns] : paths) {
    INFO(rate << " B/s, " << time_ns << " ns");
    Window window = make_window();
    Path path(rate, time_ns);
    CHECK(path.run(window, kSecond / 2) > 0.97);
    const auto base_ns = static_cast<double>(std::max(path.base_ns(), 2 * path.chunk_ns()));
    const double needed = static_cast<double>(rate) * base_ns / 1e9;
    const auto bytes = static_cast<double>(window.bytes(path.now_ns));
    const double slack = static_cast<double>(rate) * kSlackNs / 1e9;
    CHECK(bytes >= needed + slack);
    CHECK(bytes <= 1.02 * (needed + slack) + 1.5 * kChunk);
  }
}

TEST_CASE("a path that becomes faster is fully used after a few round trips") {
  Window window = make_window();
  Path path(6'250'000, 2'000'000);
  path.run(window, kSecond);
  path.set_rate(125'000'000);
  path.run(window, kSecond / 10);
  CHECK(path.run(window, kSecond / 10) > 0.95);
}

TEST_CASE("a path that becomes slower is never left idle, and its queue is short again in time") {
  Window window = make_window();
  Path path(125'000'000, 2'000'000);
  path.run(window, kSecond);
  path.set_rate(12'500'000);
  CHECK(path.run(window, 3 * kSecond) > 0.97);
  CHECK(path.run(window, 20 * kSecond) > 0.97);
  CHECK(window.bytes(path.now_ns) <= 5 * kChunk);
}

TEST_CASE("a lane does not mistake its own queue for a longer path") {
  Window window = make_window();
  Path path(12'500'000, 1'000'000);
  path.run(window, kSecond);
  const uint64_t before = window.bytes(path.now_ns);
  CHECK(path.run(window, 120 * kSecond) > 0.97);
  // The bound is 0 at times, to let the lane run idle once.
  if (window.bytes(path.now_ns) == 0) path.run(window, path.base_ns());
  CHECK(window.bytes(path.now_ns) <= before + kChunk);
}

TEST_CASE("pauses between iterations do not discard the measurements") {
  Window window = make_window();
  Path path(12'500'000, 1'000'000);
  path.burst(window, 100);
  const uint64_t before = window.bytes(path.now_ns);
  REQUIRE(before < 5 * kChunk);
  for (int iteration = 0; iteration < 10; ++iteration) {
    path.now_ns += 4 * kSecond;
    path.burst(window, 100);
    CHECK(window.bytes(path.now_ns) >= before - kChunk);
    CHECK(window.bytes(path.now_ns) <= before + kChunk);
  }
}

TEST_CASE("a lane with too little to push does not shrink its window") {
  Window window = make_window();
  Path path(125'000'000, 2'000'000);
  path.run(window, kSecond);
  const uint64_t before = window.bytes(path.now_ns);
  for (int gradient = 0; gradient < 10'000; ++gradient) {  // one at a time, for at least 22 s
    path.burst(window, 1);
  }
  CHECK(window.bytes(path.now_ns) == before);
}

TEST_CASE("a chunk that was probed is not a sample") {
  Window window = make_window();
  Path path(12'500'000, 1'000'000);
  path.burst(window, 100);
  const uint64_t before = window.bytes(path.now_ns);
  for (int chunk = 0; chunk < 10; ++chunk) {
    const auto mark = window.leave(0, path.now_ns);
    path.now_ns += kSecond / 10;
    window.arrive(mark, kChunk, false, path.now_ns);
  }
  CHECK(window.bytes(path.now_ns) == before);
}

TEST_CASE("at least two chunks are in flight, however short the path") {
  Window window = make_window(0);
  Path path(1'250'000'000, 0);
  path.run(window, kSecond / 100);
  CHECK(window.bytes(path.now_ns) >= 2 * kChunk);
}

}  // namespace pbox::worker::window_test
