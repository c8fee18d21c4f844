#include "worker/window.h"

#include "base/clock.h"

namespace pbox::worker {
namespace {

// How long a measurement counts, at least; and how long a lane may go without being idle once.
constexpr uint64_t kPeriodNs = 5 * kNanosPerSecond;

}  // namespace

uint64_t Window::bytes(uint64_t now_ns) const {
  if (!rate_.known() || !time_.known()) return UINT64_MAX;
  if (now_ns - idle_ns_ > kPeriodNs) return 0;
  // A quarter more than the least time: results do not come evenly. In whole chunks, for what has
  // no room for one more leaves the path idle.
  const uint64_t covered_us = (time_.get() * 5 / 4 + slack_ns_) / 1000;
  return (rate_.get() * covered_us / 1'000'000 / chunk_bytes_ + 2) * chunk_bytes_;
}

Window::Mark Window::leave(uint64_t outstanding_bytes, uint64_t now_ns) {
  if (outstanding_bytes == 0) {
    idle_ns_ = delivered_ns_ = former_sent_ns_ = now_ns;
    idle_until_bytes_ = delivered_bytes_;
  }
  return {.sent_ns = now_ns,
          .former_sent_ns = former_sent_ns_,
          .delivered_bytes = delivered_bytes_,
          .delivered_ns = delivered_ns_,
          .steady = delivered_bytes_ > idle_until_bytes_,
          .starved = starved_until_bytes_ > delivered_bytes_};
}

void Window::arrive(const Mark& mark, uint32_t bytes, bool clean, uint64_t now_ns) {
  delivered_bytes_ += bytes;
  delivered_ns_ = now_ns;
  if (!clean) return;
  former_sent_ns_ = std::max(former_sent_ns_, mark.sent_ns);
  if (bytes == chunk_bytes_) time_.add(now_ns - mark.sent_ns, now_ns, kPeriodNs);
  // The slower of sending and delivering: results that queued up somewhere come all at once.
  const uint64_t elapsed_ns =
      std::max(now_ns - mark.delivered_ns, mark.sent_ns - mark.former_sent_ns);
  if (elapsed_ns == 0) return;
  const uint64_t delivered = delivered_bytes_ - mark.delivered_bytes;
  const uint64_t rate = delivered * 1'000'000 / (elapsed_ns / 1000 + 1);
  // What was pushed into an idle lane, or one with too little to push, shows no more than a lower
  // bound of what the path can do.
  const bool is_bound = !mark.steady || mark.starved;
  if (is_bound && (!rate_.known() || rate <= rate_.get())) return;
  rate_.add(rate, now_ns, kPeriodNs);
}

}  // namespace pbox::worker
