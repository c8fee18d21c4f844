// pbox-peer-gloo: the exchange by Gloo's default all-reduce (a ring) over its TCP transport on
// loopback, in place, one call per tensor. Starts its ranks itself; rank 0 is the process that was
// started and talks to the caller. See peer.h for the commands.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>

#include "base/clock.h"
#include "perf/peers/peer.h"

namespace {

using pbox::perf::Gradient;
using pbox::perf::PeerOptions;
using pbox::perf::Sample;

// Far above any exchange: an idle rank waits on its pipe, not inside Gloo.
constexpr std::chrono::milliseconds kGlooTimeout{120'000};

// The ranks of one run and what they share: a pipe per rank carries the iterations from rank 0 (its
// end says quit), and each rank leaves its own sample in shared memory.
struct Ranks {
  uint32_t count = 0;
  std::vector<int> command_ends;  // rank 0's write ends
  std::vector<pid_t> children;
  Sample* samples = nullptr;  // [count]
};

class GlooRank {
 public:
  GlooRank(uint32_t rank, uint32_t rank_count, const std::string& rendezvous_folder,
           Gradient& gradient)
      : rank_(rank), rank_count_(rank_count), gradient_(gradient) {
    gloo::rendezvous::FileStore store(rendezvous_folder);
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank),
                                                               static_cast<int>(rank_count));
    context->setTimeout(kGlooTimeout);
    context->connectFullMesh(store, device);
    context_ = context;
  }

  // Every rank calls it with the same iteration.
  Sample exchange(uint32_t iteration) {
    gradient_.fill(iteration, rank_);
    barrier();
    const double cpu_start = pbox::perf::process_cpu_seconds();
    const uint64_t start_ns = pbox::monotonic_ns();
    for (const auto& tensor : gradient_.tensors()) all_reduce(tensor);
    Sample own;
    own.ms = static_cast<double>(pbox::monotonic_ns() - start_ns) * 1e-6;
    own.cpu_seconds = pbox::perf::process_cpu_seconds() - cpu_start;
    own.wrong = gradient_.count_wrong(iteration, rank_count_);
    return own;
  }

  void barrier() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

 private:
  void all_reduce(std::span<float> tensor) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(tensor.data(), tensor.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  }

  uint32_t rank_;
  uint32_t rank_count_;
  Gradient& gradient_;
  std::shared_ptr<gloo::Context> context_;
};

int run_child(uint32_t rank, int commands, const Ranks& ranks, const std::string& folder,
              Gradient& gradient) {
  GlooRank self(rank, ranks.count, folder, gradient);
  uint32_t iteration = 0;
  while (read(commands, &iteration, sizeof(iteration)) == sizeof(iteration)) {
    ranks.samples[rank] = self.exchange(iteration);
    self.barrier();
  }
  return 0;
}

int run_first(const PeerOptions& options, const Ranks& ranks, const std::string& folder,
              Gradient& gradient) {
  GlooRank self(0, ranks.count, folder, gradient);
  return pbox::perf::drive_peer(options, "gloo", ranks.count, [&](uint32_t iteration) {
    for (const int end : ranks.command_ends) {
      if (write(end, &iteration, sizeof(iteration)) != sizeof(iteration)) std::abort();
    }
    Sample all = self.exchange(iteration);
    self.barrier();
    for (uint32_t rank = 1; rank < ranks.count; ++rank) {
      all.ms = std::max(all.ms, ranks.samples[rank].ms);
      all.cpu_seconds += ranks.samples[rank].cpu_seconds;
      all.wrong += ranks.samples[rank].wrong;
    }
    return all;
  });
}

// Forks the other ranks before Gloo has started a thread. Returns the rank of the calling process
// and, for ranks above 0, the pipe its commands come from.
uint32_t fork_ranks(Ranks& ranks, int& commands) {
  for (uint32_t rank = 1; rank < ranks.count; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t child = fork();
    if (child < 0) std::abort();
    if (child == 0) {
      // A write end left open here would hide the end of rank 0 from an earlier sibling.
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

int run(const PeerOptions& options, Gradient& gradient) {
  Ranks ranks;
  ranks.count = options.worker_count;
  void* shared = mmap(nullptr, sizeof(Sample) * ranks.count, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  ranks.samples = static_cast<Sample*>(shared);
  std::string folder = std::filesystem::temp_directory_path() / "pbox-peer-gloo.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 2;
  int commands = -1;
  const uint32_t rank = fork_ranks(ranks, commands);
  if (rank != 0) return run_child(rank, commands, ranks, folder, gradient);
  const int status = run_first(options, ranks, folder, gradient);
  const int children_status = wait_for_children(ranks);
  std::filesystem::remove_all(folder);
  return status != 0 ? status : children_status;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = pbox::perf::parse_peer_options(argc, argv);
  auto gradient = options ? Gradient::create(*options) : pbox::Result<Gradient>(options.error());
  if (!gradient) {
    std::fprintf(stderr, "pbox-peer-gloo: %s\n", gradient.error().message.c_str());
    return 2;
  }
  try {
    return run(*options, *gradient);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pbox-peer-gloo: %s\n", error.what());
    return 1;
  }
}
