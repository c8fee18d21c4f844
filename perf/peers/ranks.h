// Ranks as forked processes, for systems that bring no launcher of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "perf/peers/peer.h"

namespace pbox::perf {

// One rank of the system that is measured. Every rank makes the same calls in the same order.
class Rank {
 public:
  virtual ~Rank() = default;
  virtual void barrier() = 0;
  // Sums all tensors over the ranks, in place.
  virtual void exchange() = 0;
};

// Forks the ranks, lets each make its Rank, and drives them as peer.h says; returns the exit
// status. Called before the process has any thread. `measure_server` adds to rank 0's sample what
// its servers used: it is called right before (with a sample of zeros) and right after an exchange.
struct RankProgram {
  std::string system;
  std::function<std::unique_ptr<Rank>(uint32_t rank, Gradient& gradient)> make_rank;
  std::function<void(Sample& sample)> measure_server = [](Sample&) {};
  bool sums = true;  // false: moves bytes only, so that there is nothing to check
};
int run_ranks(const PeerOptions& options, Gradient& gradient, const RankProgram& program);

}  // namespace pbox::perf
