#include "worker/protocol/window.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::worker {
namespace {

// A measured rate and a measured time count for at least this long. A lane that is not idle once in
// kTimePeriodNs is drained, to measure its time again.
constexpr uint64_t kRatePeriodNs = 500 * kNanosPerMilli;
constexpr uint64_t kTimePeriodNs = 5 * kNanosPerSecond;

}  // namespace

uint64_t Window::bytes(uint64_t now_ns) const {
  if (!rate_.known() || !time_.known()) return UINT64_MAX;
  if (now_ns - idle_ns_ > kTimePeriodNs) return 0;
  // A whole chunk has to pass the narrowest link both ways. A token bucket may let a first chunk
  // pass in less time.
  const uint64_t rate = rate_.get() / 1000 + 1;  // bytes per millisecond
  const uint64_t time_ns = std::max(time_.get(), 2 * chunk_bytes_ * kNanosPerMilli / rate);
  const uint64_t covered_us = (time_ns + slack_ns_) / 1000;
  // In whole chunks, and at least half a chunk more: a chunk that does not fit leaves the path
  // idle.
  return (rate * covered_us / 1000 + 3 * chunk_bytes_ / 2) / chunk_bytes_ * chunk_bytes_;
}

Window::Mark Window::leave(uint64_t outstanding_bytes, uint64_t now_ns) {
  PBOX_DCHECK(now_ns >= idle_ns_);
  if (outstanding_bytes == 0) idle_ns_ = now_ns;
  if (std::exchange(pauses_, false)) {
    delivered_ns_ = former_sent_ns_ = now_ns;
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
  PBOX_DCHECK(bytes > 0);
  PBOX_DCHECK(mark.sent_ns <= now_ns && mark.delivered_ns <= now_ns);
  PBOX_DCHECK(mark.delivered_bytes <= delivered_bytes_);
  delivered_bytes_ += bytes;
  delivered_ns_ = now_ns;
  if (!clean) return;
  former_sent_ns_ = std::max(former_sent_ns_, mark.sent_ns);
  if (bytes == chunk_bytes_) time_.add(now_ns - mark.sent_ns, now_ns, kTimePeriodNs);
  // Takes the slower of sending and delivering: results that queued up somewhere arrive all at
  // once.
  const uint64_t elapsed_ns =
      std::max(now_ns - mark.delivered_ns, mark.sent_ns - mark.former_sent_ns);
  if (elapsed_ns == 0) return;
  const uint64_t delivered = delivered_bytes_ - mark.delivered_bytes;
  const uint64_t rate = delivered * 1'000'000 / (elapsed_ns / 1000 + 1);
  // A chunk that was pushed into an idle lane, or into one with too little to push, shows less than
  // the path can do. It may also show more, if a token bucket had time to fill.
  if (!mark.steady || mark.starved) return;
  rate_.add(rate, now_ns, kRatePeriodNs);
}

}  // namespace pbox::worker
