// Ranks as forked processes, for systems without their own launcher.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "perf/peers/peer.h"

namespace pbox::perf {

// One rank of the measured system. Every rank makes the same calls in the same order.
class Rank {
 public:
  virtual ~Rank() = default;
  virtual void barrier() = 0;
  // prepare() is called before exchange() and finish() after it. Neither is timed. They bring the
  // tensors into the form that the system takes, and back.
  virtual void prepare() {}
  virtual void finish() {}
  // Makes the call of PeerOptions with every tensor, in place.
  virtual void exchange() = 0;
  // Returns the payload bytes that this rank has received from a box so far; 0 if the system does
  // not count them.
  virtual uint64_t received_bytes() const { return 0; }
};

// The system that run_ranks measures. `measure_server` adds the CPU time and memory of the system's
// servers to a sample. Rank 0 calls it right before an exchange, with a sample of zeros, and right
// after it.
struct RankProgram {
  std::string system;
  std::function<std::unique_ptr<Rank>(uint32_t rank, Gradient& gradient)> make_rank;
  std::function<void(Sample& sample)> measure_server = [](Sample&) {};
  bool sums = true;  // false: the system only moves bytes, so there are no results to check
  bool scatters_to_front = false;  // a reduce_scatter puts its result where the buffer begins
};
// Forks the ranks, creates each one's Rank and runs the command loop of peer.h. Returns the exit
// status. Must be called before the process starts any thread.
int run_ranks(const PeerOptions& options, Gradient& gradient, const RankProgram& program);

}  // namespace pbox::perf
