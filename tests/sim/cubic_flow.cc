#include "tests/sim/cubic_flow.h"

#include <algorithm>
#include <cmath>

namespace pbox::sim {
namespace {

constexpr double kCubicC = 0.4, kCubicBeta = 0.7;  // RFC 9438 sections 5.1 and 4.6
constexpr double kWindowLeast = 2;                 // RFC 9438 section 4.6, in segments
constexpr uint64_t kDuplicatesBeforeLoss = 3;      // RFC 6675 section 2, DupThresh
// RFC 6298 section 2.4 has 1 s. Linux and other systems use 200 ms.
constexpr uint64_t kTcpTimeoutFloorNs = 200 * kNanosPerMilli;
constexpr uint64_t kTcpTimeoutFirstNs = kNanosPerSecond;  // RFC 6298 section 2.1

double seconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

}  // namespace

// RFC 9438 section 4.2. After a time-out K is 0, and W_max is the current window (section 4.8).
void CubicWindow::begin_avoidance(uint64_t now_ns) {
  epoch_ns_ = now_ns;
  estimate_ = window_;
  if (has_timed_out_ || maximum_ < window_) maximum_ = window_;
  has_timed_out_ = false;
  inflection_seconds_ = std::cbrt((maximum_ - window_) / kCubicC);
}

void CubicWindow::acknowledge(uint64_t rtt_ns, uint64_t now_ns) {
  if (window_ < threshold_) {  // slow start: RFC 9438 section 4.10, RFC 5681 section 3.1
    window_ += 1;
    return;
  }
  if (epoch_ns_ == 0) begin_avoidance(now_ns);
  const auto cubic = [this](double time) {  // RFC 9438 section 4.2, figure 1
    return kCubicC * std::pow(time - inflection_seconds_, 3) + maximum_;
  };
  const double time = seconds(now_ns - epoch_ns_);
  // The Reno-friendly region: RFC 9438 section 4.3, figure 4.
  const double alpha = estimate_ >= prior_ ? 1 : 3 * (1 - kCubicBeta) / (1 + kCubicBeta);
  estimate_ += alpha / window_;
  if (cubic(time) < estimate_) {
    window_ = std::max(window_, estimate_);
    return;
  }
  // The concave and the convex region: RFC 9438 sections 4.2, 4.4 and 4.5.
  const double target = std::clamp(cubic(time + seconds(rtt_ns)), window_, 1.5 * window_);
  window_ += (target - window_) / window_;
}

// Fast convergence: RFC 9438 section 4.7.
void CubicWindow::remember_maximum() {
  maximum_ = window_ < maximum_ ? window_ * (1 + kCubicBeta) / 2 : window_;
  prior_ = window_;
  epoch_ns_ = 0;
}

// RFC 9438 section 4.6. The flow always fills its window, so cwnd stands for the flight size.
void CubicWindow::reduce() {
  remember_maximum();
  window_ = threshold_ = std::max(window_ * kCubicBeta, kWindowLeast);
}

// RFC 9438 section 4.8, RFC 5681 section 3.1.
void CubicWindow::time_out() {
  remember_maximum();
  threshold_ = std::max(window_ * kCubicBeta, kWindowLeast);
  window_ = 1;
  has_timed_out_ = true;
}

void CubicFlow::start() {
  is_running_ = true;
  heard_ns_ = events_.now_ns();
  watch_timer(kTcpTimeoutFirstNs);
  send();
}

// The acknowledgment returns over the cable and the network beyond it without waiting.
void CubicFlow::send() {
  while (is_running_ && in_flight_ < static_cast<uint64_t>(window_.segments())) {
    const uint64_t number = next_number_++;
    const uint64_t now_ns = events_.now_ns();
    sent_.push_back({.number = number});
    ++in_flight_;
    const auto arrives_ns = cable_.pass(CableUser::kTcp, kSegmentBytes, now_ns);
    if (!arrives_ns) continue;
    events_.at(*arrives_ns + cable_.delay_ns() + 2 * latency_ns_,
               [this, number, now_ns] { on_acknowledgment(number, now_ns); });
  }
}

void CubicFlow::on_acknowledgment(uint64_t number, uint64_t sent_ns) {
  if (!is_running_) return;
  const uint64_t now_ns = events_.now_ns();
  heard_ns_ = now_ns;
  newest_ = std::max(newest_, number);
  measure(now_ns - sent_ns);
  // After a time-out the frame may count as lost already.
  if (!sent_.empty() && number >= sent_.front().number) {
    sent_[number - sent_.front().number].is_acknowledged = true;
    --in_flight_;
  }
  find_losses();
  // The window does not grow during recovery (RFC 6675 section 5).
  if (number > recovery_until_) window_.acknowledge(now_ns - sent_ns, now_ns);
  send();
}

// Removes the frames from sent_ that are acknowledged or lost. The window is reduced once for all
// frames that were sent before the reduction (RFC 6675 section 5).
void CubicFlow::find_losses() {
  while (!sent_.empty()) {
    const Sent& oldest = sent_.front();
    const bool is_lost = oldest.number + kDuplicatesBeforeLoss <= newest_;
    if (!oldest.is_acknowledged && !is_lost) return;
    if (!oldest.is_acknowledged) {
      --in_flight_;
      if (oldest.number > recovery_until_) {
        recovery_until_ = next_number_ - 1;
        window_.reduce();
      }
    }
    sent_.pop_front();
  }
}

// RFC 6298 section 2.
void CubicFlow::measure(uint64_t rtt_ns) {
  if (smoothed_rtt_ns_ == 0) {
    smoothed_rtt_ns_ = rtt_ns;
    rtt_variation_ns_ = rtt_ns / 2;
    return;
  }
  const uint64_t error_ns = std::max(rtt_ns, smoothed_rtt_ns_) - std::min(rtt_ns, smoothed_rtt_ns_);
  rtt_variation_ns_ = (3 * rtt_variation_ns_ + error_ns) / 4;
  smoothed_rtt_ns_ = (7 * smoothed_rtt_ns_ + rtt_ns) / 8;
}

uint64_t CubicFlow::timeout_ns() const {
  if (smoothed_rtt_ns_ == 0) return kTcpTimeoutFirstNs;
  return std::max(smoothed_rtt_ns_ + 4 * rtt_variation_ns_, kTcpTimeoutFloorNs);
}

void CubicFlow::watch_timer(uint64_t wait_ns) {
  events_.after(wait_ns, [this] { on_timer(); });
}

void CubicFlow::on_timer() {
  if (!is_running_) return;
  const uint64_t silent_ns = events_.now_ns() - heard_ns_;
  if (silent_ns < timeout_ns()) return watch_timer(timeout_ns() - silent_ns);
  in_flight_ = 0;
  sent_.clear();
  recovery_until_ = next_number_ - 1;
  window_.time_out();
  heard_ns_ = events_.now_ns();
  watch_timer(timeout_ns());
  send();
}

}  // namespace pbox::sim
