// Parts that the peer programs share: options, the gradient, and the loop that rank 0 runs for its
// caller. With --iterations N a program measures alone and prints one JSON object. Without, it
// obeys its standard input, so that a caller can take turns between systems:
//
//   in:  run                                 one exchange of the whole model
//   out: {"ms":12.3,"cpu_s":0.04,"checked":true}     and "box_bytes" where a server takes part
//   in:  quit (or the end of the input)
//
// It says {"ready":true,...} once it can take commands. Idle ranks sleep: what waits for its turn
// takes no time from the system that is being measured.
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

// Where one rank runs: the network namespace of a machine of a rack, and that machine's address.
struct PeerHost {
  std::string network_path;
  std::string address;
};

struct PeerOptions {
  std::string model = "resnet50";
  std::string layout = "tensors";  // or "buffer": the same elements fused into one
  uint32_t worker_count = 2;       // not for Open MPI: mpirun says it
  uint32_t iterations = 0;         // 0: obey standard input
  uint32_t warmup = 1;
  uint32_t seed = 1;
  std::string recovery = "none";  // PBox only; or "copy": the job outlives its box
  std::string box_flags{};        // PBox only: more flags for pboxd, separated by blanks
  // PBox only: HOST:PORT of a box that runs; empty: one of its own. Several, with commas between:
  // each of a rack, whose ranks follow each other.
  std::string box{};
  uint32_t window_bytes = 0;      // PBox only: as pbox_options has it
  std::vector<PeerHost> hosts{};  // hosts of the ranks; empty: all on this host, over loopback
};

Result<PeerOptions> parse_peer_options(int argc, char** argv);

// As --hosts takes them: PATH@ADDRESS,PATH@ADDRESS.
std::string to_text(const std::vector<PeerHost>& hosts);

// Moves the calling process, which has one thread, to its rank's machine, if there is one. Throws
// std::runtime_error.
void enter_host(const PeerOptions& options, uint32_t rank);

// One exchange as all ranks saw it.
struct Sample {
  double ms = 0;           // the slowest rank, from the common start
  double cpu_seconds = 0;  // user and system, all ranks and servers
  uint64_t wrong = 0;      // elements of any rank whose sum is not exact
  uint64_t box_bytes = 0;  // resident memory of the server, if there is one
};

// CPU time that a process has used, all threads; by default the calling one.
double process_cpu_seconds(pid_t process = 0);

// One rank's gradient: tensors in one block, each on a cache line of its own. Moves, for the
// tensors point into the block, and is never copied.
class Gradient {
 public:
  Gradient(Gradient&&) = default;
  static Result<Gradient> create(const PeerOptions& options);

  void fill(uint32_t iteration, uint32_t rank);
  uint64_t count_wrong(uint32_t iteration, uint32_t rank_count) const;

  const std::vector<std::span<float>>& tensors() const { return tensors_; }

 private:
  Gradient() = default;

  std::vector<float> block_;
  std::vector<std::span<float>> tensors_;
  std::vector<uint32_t> first_indices_;
  uint32_t seed_ = 0;
};

// The main() of a peer program: options and gradient made, errors said; returns the exit status.
int peer_main(int argc, char** argv, const std::string& system,
              const std::function<int(const PeerOptions&, Gradient&)>& run);

// Runs on rank 0. `exchange` performs the given iteration on all ranks and collects the sample.
// Returns the program's exit status: 1 once a sum was wrong.
int drive_peer(const PeerOptions& options, const std::string& system, uint32_t worker_count,
               const std::function<Sample(uint32_t iteration)>& exchange);

}  // namespace pbox::perf
