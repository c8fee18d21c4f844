// A TCP connection that always has data to send, with the congestion control CUBIC (RFC 9438). It
// shares one direction of a cable with jobs. Only the timing of its frames is simulated: each frame
// carries a full segment, either the oldest one that was lost or the next new one. As the cable
// keeps the order of frames, no segment is delivered twice.
//
// Recovery works as with selective acknowledgments (RFC 6675): a frame is lost once a frame that
// was sent at least three later is acknowledged. Acknowledgments are never lost and never wait in a
// queue. Slow start has no HyStart++ and ends with the first loss.
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"
#include "tests/sim/cable.h"
#include "tests/sim/event_queue.h"

namespace pbox::sim {

// The congestion window of CUBIC, in segments. This class does no I/O.
class CubicWindow {
 public:
  double segments() const { return window_; }
  // Called when one segment is acknowledged outside of recovery.
  void acknowledge(uint64_t rtt_ns, uint64_t now_ns);
  // Called for the first segment that is lost after the last reduction.
  void reduce();
  // Called when the retransmission timer has expired.
  void time_out();

 private:
  void begin_avoidance(uint64_t now_ns);
  void remember_maximum();

  double window_ = 10;       // RFC 6928
  double threshold_ = 1e12;  // ssthresh; RFC 5681 section 3.1 begins with an arbitrarily high value
  double maximum_ = 0;       // W_max
  double prior_ = 0;         // cwnd_prior: the window before the last reduction
  double estimate_ = 0;      // W_est: the window that Reno would have
  double inflection_seconds_ = 0;  // K
  uint64_t epoch_ns_ = 0;          // when this congestion avoidance began; 0 if it has not begun
  bool has_timed_out_ = false;     // since the last congestion avoidance began
};

class CubicFlow {
 public:
  static constexpr uint64_t kSegmentBytes = 1448;  // with kFrameHeaderBytes a frame of 1,514 bytes

  // `latency_ns`: the latency beyond the cable, in one direction.
  CubicFlow(EventQueue& events, CableQueue& cable, uint64_t latency_ns)
      : events_(events), cable_(cable), latency_ns_(latency_ns) {}
  CubicFlow(const CubicFlow&) = delete;
  CubicFlow& operator=(const CubicFlow&) = delete;

  void start();
  // Stops sending.
  void stop() { is_running_ = false; }

 private:
  struct Sent {
    uint64_t number = 0;
    bool is_acknowledged = false;
  };

  void send();
  void on_acknowledgment(uint64_t number, uint64_t sent_ns);
  void find_losses();
  void watch_timer(uint64_t wait_ns);
  void on_timer();
  uint64_t timeout_ns() const;
  void measure(uint64_t rtt_ns);

  EventQueue& events_;
  CableQueue& cable_;
  uint64_t latency_ns_;
  bool is_running_ = false;
  CubicWindow window_;
  std::deque<Sent> sent_;        // frames, from the oldest one in flight to the newest
  uint64_t in_flight_ = 0;       // frames neither acknowledged nor lost
  uint64_t next_number_ = 1;     // a retransmission gets a new number
  uint64_t newest_ = 0;          // the highest number that is acknowledged
  uint64_t recovery_until_ = 0;  // frames up to this one were sent before the last reduction
  uint64_t smoothed_rtt_ns_ = 0, rtt_variation_ns_ = 0;
  uint64_t heard_ns_ = 0;  // time of the last acknowledgment
};

}  // namespace pbox::sim
