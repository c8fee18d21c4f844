// Bounds the payload that the paths (send_path.h) to one address of a box have in flight together,
// so that a job and the TCP flows beside it share a link about evenly. A chunk counts from its push
// to its result, and a loss in either direction lowers the bound, so one window serves both ways.
//
// The bound follows CUBIC (RFC 9438), as most TCP flows do, with different constants. With CUBIC's
// own constants a job gets a quarter to two fifths of a link that TCP has filled (`pbox-sim
// --congestion`). A loss while chunks are as fast as on an empty path is taken for noise (Fu, Liew,
// "TCP Veno", IEEE JSAC 2003), unless a round trip loses more than 2 % (Cardwell et al., BBRv3).
//
// CUBIC fills queues, which delays urgent chunks. While nobody competes, the bound is therefore not
// used and Window governs alone. A loss shows that somebody may compete, and so do chunks that take
// longer than the job's own bytes explain. Every ten seconds, or less often, the job then lets
// Window govern alone for some round trips. If chunks are fast meanwhile, nobody competes.
//
// A new path doubles its bound in each round trip until the rate stops growing (BBR's startup:
// Cardwell et al., ACM Queue 2016).
//
// Wherever the bound holds, packets are paced: they leave in bursts of half a millisecond.
//
// None of this applies to short paths, on which a chunk takes less than kShortPathNs. A host may
// not run the thread for as long, and that delay would count as the path's time.
//
// The class does no I/O. It is used on the I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/clock.h"
#include "worker/protocol/window.h"

namespace pbox::worker {

class CongestionWindow {
 public:
  static constexpr uint64_t kShortPathNs = 2 * kNanosPerMilli;

  // `slack_ns`: see Window.
  explicit CongestionWindow(uint64_t slack_ns) : slack_ns_(slack_ns) {}

  void add_path() { ++paths_; }
  void remove_path() {
    PBOX_DCHECK(paths_ > 0);
    --paths_;
  }
  // begin_wait(): chunks of a path begin to wait for room. end_wait(): none of them waits any more.
  void begin_wait() { ++waiting_paths_; }
  void end_wait() {
    PBOX_DCHECK(waiting_paths_ > 0);
    --waiting_paths_;
  }
  // Sets the sizes of the largest chunks and fragments that are usually pushed.
  void fit(uint32_t chunk_bytes, uint32_t fragment_bytes);

  // Returns whether Window alone bounds what is in flight.
  bool is_left_to_window() const { return phase_ == Phase::kAlone || phase_ == Phase::kProbes; }
  // Returns whether a chunk may set out on a path that has `path_bytes` in flight. Paths on which
  // chunks wait get equal parts of the bound. `waits`: whether begin_wait() has counted this path.
  bool has_room(uint64_t path_bytes, uint64_t bytes, bool waits) const;

  // Returns whether a packet may leave now. If not, one may leave at paced_until_ns().
  bool may_send(uint64_t now_ns) const {
    return now_ns >= paced_until_ns_ || (!is_paced_ && paced_until_ns_ - now_ns < kBurstNs);
  }
  uint64_t paced_until_ns() const { return paced_until_ns_; }
  void note_sent(uint64_t bytes, uint64_t now_ns);

  // A chunk of this payload sets out, or is no longer in flight.
  void enter(uint64_t bytes) { outstanding_bytes_ += bytes; }
  void leave(uint64_t bytes);
  // The result of a chunk has arrived that was pushed at `sent_ns`. `clean`: see Window::arrive().
  // Called before leave().
  void arrive(uint64_t sent_ns, uint32_t bytes, bool clean, uint64_t now_ns);
  // The box has a chunk's push, and waits for other ranks.
  void acknowledge(uint32_t bytes);
  // Fragments of a chunk's push or result were lost. `sent_ns`: when the chunk was pushed.
  void note_loss(uint64_t sent_ns, uint32_t fragments, uint64_t now_ns);

 private:
  static constexpr uint64_t kBurstNs = kNanosPerMilli / 2;

  enum class Phase : uint8_t {
    kStarts,  // doubles the bound until the rate stops growing
    kAlone,   // has no bound
    kShares,  // follows CUBIC
    kProbes,  // has no bound for some round trips, to find out whether the job is alone
  };
  enum class Growth : uint8_t {
    kCubic,
    kDoubles,            // until something is lost (slow start); always so in phase kStarts
    kDoublesUntilQueue,  // like kDoubles, or until chunks take longer than on an empty path
  };

  // The shortest time from push to result of two groups of chunks: the newest ones, and those
  // before. A group has at least kChunks and takes at least a round trip.
  class RecentTime {
   public:
    void add(uint64_t time_ns, uint64_t now_ns);
    uint64_t get() const { return std::min(newest_ns_, before_ns_); }

   private:
    static constexpr uint32_t kChunks = 16;

    uint64_t newest_ns_ = UINT64_MAX, before_ns_ = UINT64_MAX;
    uint64_t until_ns_ = 0;
    uint32_t count_ = 0;
  };

  double initial_bytes() const;
  void advance(uint32_t bytes, uint64_t now_ns);
  void set_pace();
  bool is_short() const { return time_.get() < kShortPathNs; }
  bool has_queue() const { return recent_time_.get() > time_.get() * 9 / 8; }
  bool is_slow(uint64_t time_ns) const;
  void measure_rate(uint64_t now_ns);
  void note_start(uint64_t rate);
  void measure_time(uint64_t sent_ns, uint64_t now_ns);
  void end_round(uint64_t now_ns);
  void begin_period(uint64_t begin_ns, uint64_t duration_ns);
  void end_period(uint64_t now_ns);
  void begin_probe(uint64_t now_ns);
  void end_probe(uint64_t now_ns);
  void share(Growth growth, uint64_t now_ns);
  void lower(uint64_t now_ns);
  void begin_epoch(uint64_t now_ns);
  void grow(uint32_t bytes, uint64_t now_ns);
  void grow_fast(uint32_t bytes, uint64_t now_ns);

  uint64_t slack_ns_;
  uint32_t paths_ = 0;
  uint32_t waiting_paths_ = 0;
  uint64_t chunk_bytes_ = 0;
  uint64_t fragment_bytes_ = 0;
  uint64_t outstanding_bytes_ = 0;
  uint64_t delivered_bytes_ = 0;

  Phase phase_ = Phase::kStarts;
  Growth growth_ = Growth::kDoubles;
  double bound_ = 0;       // bytes, like the next two
  double bound_max_ = 0;   // W_max of RFC 9438
  double bound_reno_ = 0;  // W_est
  double plateau_s_ = 0;   // K: from the beginning of the epoch until the bound is bound_max_
  uint64_t epoch_ns_ = 0;
  uint64_t limited_ns_ = 0;  // when the bound last kept chunks from setting out
  uint64_t lowered_ns_ = 0;

  // The current round trip: when it began, and what was lost and delivered since.
  uint64_t round_ns_ = 0;
  uint64_t round_lost_ = 0;  // fragments
  uint64_t round_bytes_ = 0;

  uint64_t interval_ns_ = 0;  // when the measurement of the rate began
  uint64_t interval_bytes_ = 0;
  Extreme<Later> rate_;  // bytes per second
  uint64_t start_rate_ = 0;
  uint32_t rounds_without_growth_ = 0;
  Extreme<Sooner> time_;  // ns, from push to result
  RecentTime recent_time_;

  double pace_ = 0;  // bytes per nanosecond; 0: packets leave as fast as they can
  uint64_t paced_until_ns_ = 0;
  bool is_paced_ = false;  // a burst has left, and the next one waits for paced_until_ns_

  // Chunks that were pushed since period_ns_, in phases kAlone and kProbes.
  uint64_t period_ns_ = 0;
  uint64_t period_until_ns_ = 0;
  uint64_t period_time_ns_ = UINT64_MAX;  // the shortest time from push to result
  uint32_t period_count_ = 0;
  uint64_t probe_due_ns_ = 0;
  uint64_t probe_interval_ns_ = 0;
};

}  // namespace pbox::worker
