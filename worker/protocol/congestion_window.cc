#include "worker/protocol/congestion_window.h"

#include <cmath>
#include <utility>

namespace pbox::worker {
namespace {

// CUBIC's constants (RFC 9438, 4.1 and 4.6), which are 0.7 and 0.4 there.
constexpr double kBeta = 0.85;
constexpr double kCubicGrowth = 4;  // fragments per cubic second
constexpr double kRenoGrowth = 3 * (1 - kBeta) / (1 + kBeta);

constexpr uint64_t kInitialFragments = 10;  // RFC 6928
// While the bound doubles it may grow to this multiple of rate x shortest time. The first holds as
// long as the rate grows, and is that of BBR's startup; the second holds afterwards.
constexpr double kStartGain = 2.9;
constexpr double kFullGain = 2;
// The start ends after kRoundsWithoutGrowth round trips in which the rate did not grow by a
// quarter. If chunks meet no queue, it ends after kRoundsWithoutQueue of them, because another rank
// may be the one that limits the rate.
constexpr double kStartGrowth = 1.25;
constexpr uint32_t kRoundsWithoutGrowth = 3;
constexpr uint32_t kRoundsWithoutQueue = 10;

// Packets leave at this multiple of bound / round-trip time. Linux paces TCP by a similar rule.
constexpr double kPaceCubic = 1.25;
constexpr double kPaceFast = 2;

constexpr uint64_t kMemoryNs = 60 * kNanosPerSecond;  // a measurement counts for at least this long
constexpr uint64_t kRateIntervalNs = 50 * kNanosPerMilli;
constexpr uint64_t kPeriodNs = 500 * kNanosPerMilli;
constexpr uint64_t kPeriodRoundTrips = 8;
constexpr uint32_t kPeriodChunks = 16;
constexpr uint64_t kProbeIntervalNs = 10 * kNanosPerSecond;
constexpr uint64_t kProbeIntervalMaxNs = 160 * kNanosPerSecond;
// Chunks with losses are timed only if all chunks so far, at least this many, had losses.
constexpr uint64_t kUncleanChunks = 16;

constexpr uint64_t kNoisePerMille = 20;
constexpr uint64_t kNoiseFragments = 8;  // a short round trip loses more than its share at times

double seconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / static_cast<double>(kNanosPerSecond);
}

}  // namespace

void CongestionWindow::RecentTime::add(uint64_t time_ns, uint64_t now_ns) {
  PBOX_DCHECK(time_ns < UINT64_MAX);
  newest_ns_ = std::min(newest_ns_, time_ns);
  if (++count_ < kChunks || now_ns < until_ns_) return;
  before_ns_ = std::exchange(newest_ns_, UINT64_MAX);
  until_ns_ = now_ns + time_ns;
  count_ = 0;
}

void CongestionWindow::fit(uint32_t chunk_bytes, uint32_t fragment_bytes) {
  chunk_bytes_ = std::max<uint64_t>(chunk_bytes_, chunk_bytes);
  fragment_bytes_ = std::max<uint64_t>(fragment_bytes_, fragment_bytes);
  PBOX_DCHECK(fragment_bytes_ > 0 && paths_ > 0);
  if (phase_ == Phase::kStarts) bound_ = std::max(bound_, initial_bytes());
}

double CongestionWindow::initial_bytes() const {
  return static_cast<double>(std::max(kInitialFragments * fragment_bytes_, paths_ * chunk_bytes_));
}

// A new chunk counts by half, so that bytes in flight match any bound on average.
bool CongestionWindow::has_room(uint64_t path_bytes, uint64_t bytes, bool waits) const {
  if (is_left_to_window() || outstanding_bytes_ == 0) return true;
  const double half = static_cast<double>(bytes) / 2;
  const uint32_t parts = waiting_paths_ + (waits ? 0 : 1);
  PBOX_DCHECK(parts > 0 && path_bytes <= outstanding_bytes_);
  return static_cast<double>(outstanding_bytes_) + half <= bound_ &&
         static_cast<double>(path_bytes) + half <= bound_ / parts;
}

void CongestionWindow::set_pace() {
  PBOX_DCHECK(time_.known() && recent_time_.get() > 0);
  const double gain = growth_ == Growth::kCubic ? kPaceCubic : kPaceFast;
  pace_ = is_left_to_window() ? 0 : gain * bound_ / static_cast<double>(recent_time_.get());
}

void CongestionWindow::note_sent(uint64_t bytes, uint64_t now_ns) {
  if (now_ns >= paced_until_ns_) {
    paced_until_ns_ = now_ns;
    is_paced_ = false;
  }
  if (pace_ <= 0) return;
  paced_until_ns_ += static_cast<uint64_t>(static_cast<double>(bytes) / pace_);
  PBOX_DCHECK(paced_until_ns_ >= now_ns);
  is_paced_ = paced_until_ns_ - now_ns >= kBurstNs;
}

void CongestionWindow::leave(uint64_t bytes) {
  PBOX_DCHECK(outstanding_bytes_ >= bytes);
  outstanding_bytes_ -= bytes;
}

void CongestionWindow::arrive(uint64_t sent_ns, uint32_t bytes, bool clean, uint64_t now_ns) {
  PBOX_DCHECK(bytes > 0 && sent_ns <= now_ns);
  delivered_bytes_ += bytes;
  round_bytes_ += bytes;
  measure_rate(now_ns);
  const bool is_unclean = !time_.known() && delivered_bytes_ >= kUncleanChunks * chunk_bytes_;
  if (clean || is_unclean) measure_time(sent_ns, now_ns);
  if (!time_.known()) return;
  if (is_short()) {
    phase_ = Phase::kAlone;
    pace_ = 0;
    return;
  }
  if (sent_ns >= round_ns_) end_round(now_ns);
  advance(bytes, now_ns);
  set_pace();
}

void CongestionWindow::acknowledge(uint32_t bytes) {
  if (phase_ == Phase::kStarts) bound_ += bytes;
}

void CongestionWindow::advance(uint32_t bytes, uint64_t now_ns) {
  switch (phase_) {
    case Phase::kProbes:
      if (now_ns >= period_until_ns_) end_probe(now_ns);
      return;
    case Phase::kAlone:
      if (now_ns >= period_until_ns_ && period_count_ >= kPeriodChunks) end_period(now_ns);
      return;
    case Phase::kShares:
      if (now_ns >= probe_due_ns_) return begin_probe(now_ns);
      break;
    case Phase::kStarts: break;
  }
  const uint64_t next_bytes = outstanding_bytes_ + 2 * chunk_bytes_;
  if (static_cast<double>(next_bytes) >= bound_) grow(bytes, now_ns);
}

void CongestionWindow::measure_rate(uint64_t now_ns) {
  PBOX_DCHECK(now_ns >= interval_ns_ && delivered_bytes_ >= interval_bytes_);
  const uint64_t elapsed_ns = now_ns - interval_ns_;
  if (elapsed_ns < std::max(kRateIntervalNs, time_.known() ? time_.get() : 0)) return;
  if (interval_ns_ != 0) {
    const uint64_t bytes = delivered_bytes_ - interval_bytes_;
    const uint64_t rate = bytes * 1'000'000 / (elapsed_ns / 1000 + 1);
    rate_.add(rate, now_ns, kMemoryNs);
    if (phase_ == Phase::kStarts) note_start(rate);
  }
  interval_ns_ = now_ns;
  interval_bytes_ = delivered_bytes_;
}

void CongestionWindow::note_start(uint64_t rate) {
  if (static_cast<double>(rate) >= kStartGrowth * static_cast<double>(start_rate_)) {
    start_rate_ = rate;
    rounds_without_growth_ = 0;
    return;
  }
  ++rounds_without_growth_;
  const bool queues = time_.known() && has_queue();
  if (rounds_without_growth_ < (queues ? kRoundsWithoutGrowth : kRoundsWithoutQueue)) return;
  phase_ = Phase::kAlone;
  begin_period(interval_ns_, kPeriodNs);
}

void CongestionWindow::measure_time(uint64_t sent_ns, uint64_t now_ns) {
  const uint64_t time_ns = now_ns - sent_ns;
  time_.add(time_ns, now_ns, kMemoryNs);
  recent_time_.add(time_ns, now_ns);
  if (sent_ns < period_ns_) return;
  period_time_ns_ = std::min(period_time_ns_, time_ns);
  ++period_count_;
}

// Returns whether a chunk took longer than the path's own time, this host's delays and the bytes
// that Window keeps in flight explain.
bool CongestionWindow::is_slow(uint64_t time_ns) const {
  const double rate = rate_.known() ? static_cast<double>(rate_.get()) : 1;
  const double window_s = 2 * static_cast<double>(chunk_bytes_) * paths_ / rate;
  return seconds(time_ns) > seconds(time_.get() * 9 / 8 + slack_ns_) + window_s;
}

void CongestionWindow::begin_period(uint64_t begin_ns, uint64_t duration_ns) {
  PBOX_DCHECK(is_left_to_window());
  period_ns_ = begin_ns;
  period_until_ns_ = begin_ns + duration_ns;
  period_time_ns_ = UINT64_MAX;
  period_count_ = 0;
}

void CongestionWindow::end_period(uint64_t now_ns) {
  if (is_slow(period_time_ns_)) return share(Growth::kDoubles, now_ns);
  begin_period(now_ns, std::max(kPeriodNs, kPeriodRoundTrips * recent_time_.get()));
}

// Everything in flight has arrived after one round trip. The bytes that Window allows then need
// another one until they are answered.
void CongestionWindow::begin_probe(uint64_t now_ns) {
  PBOX_DCHECK(phase_ == Phase::kShares);
  phase_ = Phase::kProbes;
  begin_period(now_ns + 2 * recent_time_.get(), 2 * recent_time_.get());
}

void CongestionWindow::end_probe(uint64_t now_ns) {
  PBOX_DCHECK(phase_ == Phase::kProbes);
  if (period_count_ > 0 && !is_slow(period_time_ns_)) {
    phase_ = Phase::kAlone;
    return begin_period(now_ns, kPeriodNs);
  }
  phase_ = Phase::kShares;
  begin_epoch(now_ns);
  probe_due_ns_ = now_ns + probe_interval_ns_;
}

// Other flows may compete. Each time that this follows kAlone, the job probes half as often.
void CongestionWindow::share(Growth growth, uint64_t now_ns) {
  if (is_left_to_window()) bound_ = std::max(bound_, static_cast<double>(outstanding_bytes_));
  if (phase_ != Phase::kShares) {
    const uint64_t interval_ns = probe_interval_ns_ * (phase_ == Phase::kAlone ? 2 : 1);
    probe_interval_ns_ = std::clamp(interval_ns, kProbeIntervalNs, kProbeIntervalMaxNs);
    probe_due_ns_ = now_ns + probe_interval_ns_;
  }
  PBOX_DCHECK(probe_due_ns_ > 0 && bound_ > 0);
  phase_ = Phase::kShares;
  growth_ = growth;
}

// Losses do not count again while chunks arrive that were pushed before the bound was lowered.
void CongestionWindow::note_loss(uint64_t sent_ns, uint32_t fragments, uint64_t now_ns) {
  PBOX_DCHECK(fragments > 0 && sent_ns <= now_ns);
  round_lost_ += fragments;
  if (sent_ns <= lowered_ns_ || !time_.known() || is_short()) return;
  if (has_queue()) return lower(now_ns);
  if (phase_ != Phase::kAlone) return;
  // Window keeps too little in flight here, because it measures only chunks that lose nothing.
  lowered_ns_ = now_ns;
  share(Growth::kDoublesUntilQueue, now_ns);
}

// Bytes that were delivered have passed both directions.
void CongestionWindow::end_round(uint64_t now_ns) {
  PBOX_DCHECK(fragment_bytes_ > 0);
  const uint64_t passed = 2 * round_bytes_ / fragment_bytes_;
  const uint64_t noise = passed * kNoisePerMille / 1000 + kNoiseFragments;
  const bool is_congested = round_lost_ > noise;
  round_ns_ = now_ns;
  round_lost_ = round_bytes_ = 0;
  if (is_congested) lower(now_ns);
}

void CongestionWindow::lower(uint64_t now_ns) {
  lowered_ns_ = now_ns;
  share(Growth::kCubic, now_ns);
  const bool is_less = bound_ < bound_max_;  // others need more: fast convergence
  bound_max_ = is_less ? bound_ * (1 + kBeta) / 2 : bound_;
  bound_ = std::max(kBeta * bound_, static_cast<double>(paths_ * chunk_bytes_));
  begin_epoch(now_ns);
}

void CongestionWindow::begin_epoch(uint64_t now_ns) {
  bound_reno_ = bound_;
  bound_max_ = std::max(bound_max_, bound_);
  plateau_s_ =
      std::cbrt((bound_max_ - bound_) / static_cast<double>(fragment_bytes_) / kCubicGrowth);
  PBOX_DCHECK(plateau_s_ >= 0);
  epoch_ns_ = limited_ns_ = now_ns;
}

// The epoch does not go on while the bound limits nothing (RFC 9438, 5.8).
void CongestionWindow::grow(uint32_t bytes, uint64_t now_ns) {
  if (growth_ != Growth::kCubic) return grow_fast(bytes, now_ns);
  const uint64_t unlimited_ns = now_ns - std::exchange(limited_ns_, now_ns);
  if (unlimited_ns > 2 * recent_time_.get()) epoch_ns_ += unlimited_ns;
  PBOX_DCHECK(bound_ > 0 && epoch_ns_ <= now_ns);
  const auto segment = static_cast<double>(fragment_bytes_);
  const double round_trips = bytes / bound_;
  const double distance_s = seconds(now_ns + time_.get() - epoch_ns_) - plateau_s_;
  const double cubic = kCubicGrowth * distance_s * distance_s * distance_s * segment + bound_max_;
  bound_reno_ += (bound_reno_ < bound_max_ ? kRenoGrowth : 1) * segment * round_trips;
  bound_ += (std::clamp(cubic, bound_, 1.5 * bound_) - bound_) * round_trips;
  bound_ = std::max(bound_, bound_reno_);
}

// Rate x time bounds the growth, except while others compete: the rate is then not the path's.
void CongestionWindow::grow_fast(uint32_t bytes, uint64_t now_ns) {
  PBOX_DCHECK(bytes > 0 && bound_ > 0);
  bound_ += bytes;
  if (phase_ == Phase::kShares && growth_ == Growth::kDoubles) return;
  if (rate_.known()) {
    const double path =
        static_cast<double>(rate_.get()) * seconds(std::max(time_.get(), slack_ns_));
    const bool is_full = phase_ == Phase::kStarts && rounds_without_growth_ > 0;
    const double most = (is_full ? kFullGain : kStartGain) * path;
    bound_ = std::min(bound_, std::max(most, initial_bytes()));
  }
  if (phase_ == Phase::kStarts || !has_queue()) return;
  growth_ = Growth::kCubic;
  bound_max_ = bound_;
  begin_epoch(now_ns);
}

}  // namespace pbox::worker
