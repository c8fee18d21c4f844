// How much a lane has in flight: as much as keeps its path busy, and one chunk, so that an urgent
// chunk finds little before it (P3) and no throughput is lost. The path's capacity is measured as
// BBR does it (Cardwell et al., ACM Queue 2016; draft-cheng-iccrg-delivery-rate-estimation): the
// greatest delivery rate of the last second, times the least time of the last ones from pushing a
// chunk to its result. A chunk is in flight until its result is here, or that of a later one: then
// it is with the box, and waits for other ranks, or it is lost.
//
// Until a rate is known there is no bound of its own, so a short job starts at full speed: the
// window shrinks to what the path needs, and grows from there by at least a chunk a round trip.
//
// Pure; a lane's, on the I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pbox::worker {

// The extreme of what came in the last one to two periods in which anything came.
template <typename Better>
class Extreme {
 public:
  void add(uint64_t value, uint64_t now_ns, uint64_t period_ns) {
    if (now_ns >= turns_ns_) {
      before_ = turns_ns_ == 0 ? value : newest_;
      newest_ = value;
      turns_ns_ = now_ns + period_ns;
    }
    if (Better{}(value, newest_)) newest_ = value;
  }
  bool known() const { return turns_ns_ != 0; }
  uint64_t get() const { return Better{}(newest_, before_) ? newest_ : before_; }

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
  // What holds when a chunk is pushed, to be handed back with its result.
  struct Mark {
    uint64_t sent_ns = 0;
    uint64_t former_sent_ns = 0;  // of the chunk delivered last by then
    uint64_t delivered_bytes = 0;
    uint64_t delivered_ns = 0;
    bool steady = false;   // the lane was busy, and had results since it was not
    bool starved = false;  // less than the window was in flight, for want of something to push
  };

  // chunk_bytes: the lane's largest chunk. slack_ns: for how long, at least, either side or another
  // rank may be kept from running; what is in flight outlasts it.
  Window(uint32_t chunk_bytes, uint64_t slack_ns)
      : chunk_bytes_(chunk_bytes), slack_ns_(slack_ns) {}

  // UINT64_MAX: not known yet. 0: nothing more until the lane is idle, which shows the path's own
  // time once more.
  uint64_t bytes(uint64_t now_ns) const;

  // A chunk is pushed, with so much in flight before it.
  Mark leave(uint64_t outstanding_bytes, uint64_t now_ns);
  // Nothing waits to be pushed.
  void starve(uint64_t outstanding_bytes) {
    starved_until_bytes_ = delivered_bytes_ + outstanding_bytes;
    pauses_ = outstanding_bytes == 0;
  }
  // Its result is here. Only what was `clean`, nothing of it sent again, is measured: of anything
  // else nobody knows which packet was answered (Karn, Partridge 1987).
  void arrive(const Mark& mark, uint32_t bytes, bool clean, uint64_t now_ns);

 private:
  uint64_t chunk_bytes_;
  uint64_t slack_ns_;
  uint64_t delivered_bytes_ = 0;
  uint64_t delivered_ns_ = 0;
  uint64_t former_sent_ns_ = 0;
  bool pauses_ = true;             // nothing in flight, and nothing to push
  uint64_t idle_until_bytes_ = 0;  // delivered_bytes_ at the end of the last pause
  uint64_t starved_until_bytes_ = 0;
  uint64_t idle_ns_ = 0;  // when it last was
  Extreme<Later> rate_;   // bytes per second
  Extreme<Sooner> time_;  // ns, of chunks of chunk_bytes_
};

}  // namespace pbox::worker
