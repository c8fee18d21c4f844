#include "perf/peers/ranks.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/clock.h"

namespace pbox::perf {
namespace {

// State that the ranks share. One pipe per rank carries the iterations from rank 0; the end of the
// pipe means quit. Each rank writes its own sample to shared memory.
struct Ranks {
  uint32_t count = 0;
  std::vector<int> command_ends;  // rank 0's write ends
  std::vector<pid_t> children;
  Sample* samples = nullptr;  // [count]
};

struct Self {
  const PeerOptions& options;
  uint32_t rank = 0;
  uint32_t count = 0;
  Gradient& gradient;
  const RankProgram& program;
  std::unique_ptr<Rank> system;

  Sample run(uint32_t iteration) {
    gradient.fill(iteration, rank);
    if (options.values == "zeros") gradient.leave_out(iteration);
    system->prepare();
    system->barrier();
    Sample before, own;
    if (rank == 0) program.measure_server(before);
    const uint64_t received_before = system->received_bytes();
    const double cpu_start = process_cpu_seconds();
    const uint64_t start_ns = monotonic_ns();
    system->exchange();
    own.ms = static_cast<double>(monotonic_ns() - start_ns) * 1e-6;
    own.cpu_seconds = process_cpu_seconds() - cpu_start - before.cpu_seconds;
    own.received_bytes = system->received_bytes() - received_before;
    system->finish();
    if (program.sums) own.wrong = count_wrong(iteration);
    system->barrier();  // all ranks are done, so the servers' CPU time is complete
    if (rank == 0) program.measure_server(own);
    return own;
  }

  uint64_t count_wrong(uint32_t iteration) const {
    // The bounds allow for two roundings, of each value and of the sum: to the 8 bits of bf16, or
    // to a step of a block, to which the residue of the last iteration is added.
    if (options.values == "bf16") return gradient.count_far(iteration, count, 0.01);
    if (options.values == "q8" || options.values == "auto")
      return gradient.count_far(iteration, count, 0.04);
    if (options.values == "zeros") return gradient.count_wrong_sparse(iteration, count);
    if (options.values == "q4") return gradient.count_far(iteration, count, 0.9);
    if (options.call == "all_gather") return gradient.count_wrong_gathered(iteration, count);
    if (options.call == "reduce_scatter") {
      return gradient.count_wrong_scattered(iteration, count, rank, program.scatters_to_front);
    }
    return gradient.count_wrong(iteration, count);
  }
};

int run_child(Self& self, int commands, const Ranks& ranks) {
  uint32_t iteration = 0;
  while (read(commands, &iteration, sizeof(iteration)) == sizeof(iteration)) {
    ranks.samples[self.rank] = self.run(iteration);
    self.system->barrier();
  }
  return 0;
}

int run_first(const PeerOptions& options, Self& self, const Ranks& ranks) {
  return drive_peer(options, self.program.system, ranks.count, [&](uint32_t iteration) {
    for (const int end : ranks.command_ends) {
      if (write(end, &iteration, sizeof(iteration)) != sizeof(iteration)) std::abort();
    }
    Sample all = self.run(iteration);
    self.system->barrier();  // every rank's sample is in place
    for (uint32_t rank = 1; rank < ranks.count; ++rank) {
      all.ms = std::max(all.ms, ranks.samples[rank].ms);
      all.cpu_seconds += ranks.samples[rank].cpu_seconds;
      all.wrong += ranks.samples[rank].wrong;
      all.received_bytes += ranks.samples[rank].received_bytes;
    }
    return all;
  });
}

// Returns the rank of the calling process. Sets `commands` to its command pipe for ranks above 0.
uint32_t fork_ranks(Ranks& ranks, int& commands) {
  for (uint32_t rank = 1; rank < ranks.count; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t child = fork();
    if (child < 0) std::abort();
    if (child == 0) {
      // If a write end stayed open here, earlier siblings would not see that rank 0 has ended.
      close(ends[1]);
      for (const int end : ranks.command_ends) close(end);
      commands = ends[0];
      return rank;
    }
    close(ends[0]);
    ranks.command_ends.push_back(ends[1]);
    ranks.children.push_back(child);
  }
  return 0;
}

int wait_for_children(const Ranks& ranks) {
  int failed = 0;
  for (const int end : ranks.command_ends) close(end);
  for (const pid_t child : ranks.children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed |= status;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

int run_ranks(const PeerOptions& options, Gradient& gradient, const RankProgram& program) {
  Ranks ranks;
  ranks.count = options.worker_count;
  void* shared = mmap(nullptr, sizeof(Sample) * ranks.count, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  ranks.samples = static_cast<Sample*>(shared);
  int commands = -1;
  const uint32_t rank = fork_ranks(ranks, commands);
  try {
    enter_host(options, rank);
    Self self{options, rank, ranks.count, gradient, program, program.make_rank(rank, gradient)};
    if (rank != 0) return run_child(self, commands, ranks);
    const int status = run_first(options, self, ranks);
    const int children_status = wait_for_children(ranks);
    return status != 0 ? status : children_status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pbox-peer-%s: rank %u: %s\n", program.system.c_str(), rank, error.what());
    if (rank == 0) wait_for_children(ranks);
    return 1;
  }
}

}  // namespace pbox::perf
