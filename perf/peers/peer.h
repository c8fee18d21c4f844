// Parts that the peer programs share: options, the gradient, and the loop that rank 0 runs for its
// caller. With --iterations N, a program measures N exchanges and prints one JSON object. Without
// it, the program reads commands from its standard input, so that a caller can alternate between
// systems:
//
//   in:  run                                 one exchange of the whole model
//   out: {"ms":12.3,"cpu_s":0.04,"checked":true}     plus "box_bytes" if it started a box, and
//                                                    "received_bytes" if the system counts them
//   in:  quit (or the end of the input)
//
// It prints {"ready":true,...} when it accepts commands. Idle ranks sleep, so that a waiting system
// takes no CPU time from the one that is being measured.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/models.h"

namespace pbox::perf {

// The machine of a rack on which one rank runs: its network namespace and its address.
struct PeerHost {
  std::string network_path;
  std::string address;
};

struct PeerOptions {
  std::string model = "resnet50";
  std::string layout = "tensors";  // or "buffer": the same elements in one tensor
  // The call that an exchange makes. "exchange" sums named tensors in PBox and is an all-reduce
  // elsewhere; "all_reduce", "reduce_scatter" and "all_gather" are collectives, one call per
  // tensor.
  std::string call = "exchange";
  uint32_t worker_count = 2;  // Open MPI takes the number from mpirun instead
  uint32_t iterations = 0;    // 0: read commands from standard input
  uint32_t warmup = 1;
  uint32_t seed = 1;
  std::string recovery = "none";  // PBox only; or "copy": the job survives the loss of its box
  std::string port = "socket";    // PBox only: as in pbox_options
  std::string memory = "own";     // PBox only: or "shared": gradients lie in memory of pbox_alloc
  std::string box_flags{};        // PBox only: additional flags for pboxd, separated by blanks
  // PBox only: HOST:PORT of a running box; if empty, the program starts its own. A list separated
  // by commas names one box per rack; each rack has an equal number of consecutive ranks.
  std::string box{};
  std::string keys{};         // PBox only: the ranks' folder of keys; empty: without keys
  uint32_t window_bytes = 0;  // PBox only: as in pbox_options
  // PBox only: how values travel. "f32"; "bf16", from and into buffers of bf16; "q8", "q4" or
  // "auto", compressed. Sums are then near and not exact. "zeros": as "f32", of sparse gradients.
  std::string values = "f32";
  std::vector<PeerHost> hosts{};  // one per rank; empty: all ranks on loopback
};

Result<PeerOptions> parse_peer_options(int argc, char** argv);

// Returns the hosts in the form of --hosts: PATH@ADDRESS,PATH@ADDRESS.
std::string to_text(const std::vector<PeerHost>& hosts);

// Moves the calling process to its rank's machine; does nothing if `options` has no hosts. The
// process must have only one thread. Throws std::runtime_error.
void enter_host(const PeerOptions& options, uint32_t rank);

// The measurements of one exchange over all ranks.
struct Sample {
  double ms = 0;                // time of the slowest rank, from the common start
  double cpu_seconds = 0;       // user and system, all ranks and servers
  uint64_t wrong = 0;           // elements with a wrong result, all ranks
  uint64_t box_bytes = 0;       // resident memory of the box that this program started; otherwise 0
  uint64_t received_bytes = 0;  // payload that all ranks got from the box; 0 elsewhere
};

// For programs that only sum: throws std::runtime_error if the options ask for another call.
void require_exchange(const PeerOptions& options);

// Returns the CPU time of all threads of a process; of the calling process by default.
double process_cpu_seconds(pid_t process = 0);

// One rank's gradient: tensors in one block, each aligned to a cache line. It can be moved but not
// copied, because the tensors point into the block.
class Gradient {
 public:
  Gradient(Gradient&&) = default;
  static Result<Gradient> create(const PeerOptions& options);

  // Returns the bytes of all tensors and of the gaps between them.
  size_t bytes() const {
    const float* const end = tensors_.back().data() + tensors_.back().size();
    return static_cast<size_t>(end - tensors_.front().data()) * sizeof(float);
  }
  // Moves the tensors, once, to other memory of bytes() bytes, which begins on a cache line and
  // outlives this object. Their values are lost, and their own memory is freed.
  void move_to(std::byte* memory);
  void fill(uint32_t iteration, uint32_t rank);
  // Makes the gradient sparse: sets the elements to 0 that is_left_out() chooses (work.h).
  void leave_out(uint32_t iteration);
  // Like count_wrong(), for sparse gradients.
  uint64_t count_wrong_sparse(uint32_t iteration, uint32_t rank_count) const;
  // Returns how many elements are further from the sum over the ranks than `share` of the largest
  // sum.
  uint64_t count_far(uint32_t iteration, uint32_t rank_count, double share) const;
  // The next three return how many elements are wrong after the sum over the ranks, after a
  // reduce_scatter and after an all_gather. After a reduce_scatter `rank` has its segment in its
  // place or, with `at_front`, at the tensor's beginning.
  uint64_t count_wrong(uint32_t iteration, uint32_t rank_count) const;
  uint64_t count_wrong_scattered(uint32_t iteration, uint32_t rank_count, uint32_t rank,
                                 bool at_front) const;
  uint64_t count_wrong_gathered(uint32_t iteration, uint32_t rank_count) const;

  const std::vector<std::span<float>>& tensors() const { return tensors_; }

 private:
  Gradient() = default;

  std::vector<float> block_;
  std::vector<std::span<float>> tensors_;
  std::vector<uint32_t> first_indices_;
  uint32_t seed_ = 0;
};

// The main() of a peer program. Parses the options, creates the gradient and calls `run`. Prints
// errors and returns the exit status.
int peer_main(int argc, char** argv, const std::string& system,
              const std::function<int(const PeerOptions&, Gradient&)>& run);

// Runs the command loop of rank 0. `exchange` performs the given iteration on all ranks and returns
// the sample. Returns the program's exit status, which is 1 if any sum was wrong.
int drive_peer(const PeerOptions& options, const std::string& system, uint32_t worker_count,
               const std::function<Sample(uint32_t iteration)>& exchange);

}  // namespace pbox::perf
