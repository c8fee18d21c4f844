// Decides how many bytes a path (send_path.h) keeps in flight while nobody competes for the link
// (congestion_window.h): as many as keep its network path busy, plus one chunk. An urgent chunk
// then finds little ahead of it (P3), and no throughput is lost. The path's capacity is measured as
// BBR does it (Cardwell et al., ACM Queue 2016; draft-cheng-iccrg-delivery-rate-estimation): the
// highest delivery rate of the last second, multiplied by the shortest recent time from pushing a
// chunk to its result. A chunk counts as in flight until its own result or that of a later chunk
// has arrived. In the second case the chunk waits on the box for other ranks, or it is lost.
//
// Until a rate has been measured the window has no bound of its own. It then shrinks to what the
// path needs, and grows by at least one chunk per round trip.
//
// The class does no I/O. It is used on the I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace pbox::worker {

// The best value, in the order of `Better`, of the last one to two periods in which values were
// added.
template <typename Better>
class Extreme {
 public:
  void add(uint64_t value, uint64_t now_ns, uint64_t period_ns) {
    PBOX_DCHECK(period_ns > 0);
    if (now_ns >= turns_ns_) {
      before_ = turns_ns_ == 0 ? value : newest_;
      newest_ = value;
      turns_ns_ = now_ns + period_ns;
    }
    if (Better{}(value, newest_)) newest_ = value;
  }
  bool known() const { return turns_ns_ != 0; }
  uint64_t get() const {
    PBOX_DCHECK(known());
    return Better{}(newest_, before_) ? newest_ : before_;
  }

 private:
  uint64_t newest_ = 0;
  uint64_t before_ = 0;
  uint64_t turns_ns_ = 0;
};

struct Later {
  bool operator()(uint64_t a, uint64_t b) const { return a > b; }
};
struct Sooner {
  bool operator()(uint64_t a, uint64_t b) const { return a < b; }
};

class Window {
 public:
  // The state of the lane when a chunk was pushed. The caller stores it and returns it with the
  // chunk's result.
  struct Mark {
    uint64_t sent_ns = 0;
    // When the last chunk delivered by then had been pushed.
    uint64_t former_sent_ns = 0;
    uint64_t delivered_bytes = 0;
    uint64_t delivered_ns = 0;
    bool steady = false;  // the lane was busy and had received results since it last was idle
    // Less than the window was in flight, because nothing waited to be pushed.
    bool starved = false;
  };

  // `slack_ns`: how long this side, the box or another rank may be kept from running. The bytes in
  // flight must last at least that long.
  explicit Window(uint64_t slack_ns) : slack_ns_(slack_ns) {}
  // Sets the size of the largest chunks that are usually pushed. Weights of compressed tensors,
  // which few rounds push in full, may be larger.
  void fit(uint32_t chunk_bytes) { chunk_bytes_ = std::max<uint64_t>(chunk_bytes_, chunk_bytes); }

  // Returns the bound on the bytes in flight. UINT64_MAX: nothing has been measured yet. 0: push
  // nothing until the lane is idle, so that the path's own time can be measured again.
  uint64_t bytes(uint64_t now_ns) const;

  // A chunk is pushed. `outstanding_bytes` were in flight before it.
  Mark leave(uint64_t outstanding_bytes, uint64_t now_ns);
  // Nothing waits to be pushed.
  void starve(uint64_t outstanding_bytes) {
    starved_until_bytes_ = delivered_bytes_ + outstanding_bytes;
    pauses_ = outstanding_bytes == 0;
  }
  // The result of a chunk has arrived. Only a `clean` exchange, in which nothing was sent again, is
  // measured. Otherwise it is unknown which packet was answered (Karn, Partridge 1987).
  void arrive(const Mark& mark, uint32_t bytes, bool clean, uint64_t now_ns);

 private:
  uint64_t chunk_bytes_ = 0;  // set by fit()
  uint64_t slack_ns_;
  uint64_t delivered_bytes_ = 0;
  uint64_t delivered_ns_ = 0;
  uint64_t former_sent_ns_ = 0;
  bool pauses_ = true;             // nothing is in flight and nothing waits to be pushed
  uint64_t idle_until_bytes_ = 0;  // delivered_bytes_ at the end of the last pause
  uint64_t starved_until_bytes_ = 0;
  uint64_t idle_ns_ = 0;  // when the lane last was idle
  Extreme<Later> rate_;   // bytes per second
  Extreme<Sooner> time_;  // nanoseconds, of chunks of chunk_bytes_
};

}  // namespace pbox::worker
