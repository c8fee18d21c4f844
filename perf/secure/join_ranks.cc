// pbox-perf-join BOX JOB RANKS [KEYS]: forks ranks, which begin to join a job at the same time, and
// prints the milliseconds until the last one has joined. A rank's time begins before it loads its
// keys and the library for them. Part of scenario `secure`.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "pbox/pbox.h"
#include "perf/models.h"

namespace {

struct Options {
  const char* box = nullptr;
  const char* job = nullptr;
  uint32_t ranks = 0;
  const char* keys = "";
};

// The pipes between the parent and its ranks. A rank writes a byte to `said` when it is ready, and
// another one when it has joined. All ranks begin to join when the parent closes `start`, and leave
// when it closes `end`.
struct Pipes {
  int start[2] = {-1, -1}, end[2] = {-1, -1}, said[2] = {-1, -1};
};

void await_closed(int end) {
  char byte = 0;
  while (read(end, &byte, 1) > 0) {
  }
}

// Waits for one byte of each rank. Returns false if the pipe ends before that.
bool await_all(int end, uint32_t ranks) {
  char byte = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (read(end, &byte, 1) != 1) return false;
  }
  return true;
}

bool say(int end) {
  const char byte = 1;
  return write(end, &byte, 1) == 1;
}

pbox_status join(const Options& options, uint32_t rank,
                 const std::vector<pbox::perf::ModelTensor>& tensors, pbox_context*& context) {
  pbox_options own;
  pbox_options_init(&own);
  own.box = options.box;
  own.job = options.job;
  own.rank = rank;
  own.world_size = options.ranks;
  own.keys = options.keys;
  own.recovery = PBOX_RECOVERY_NONE;
  pbox_status status = pbox_create(&own, &context);
  for (size_t index = 0; status == PBOX_OK && index < tensors.size(); ++index) {
    uint32_t id = 0;
    status = pbox_register_tensor(context, tensors[index].name.c_str(), tensors[index].elements,
                                  PBOX_F32, 0, &id);
  }
  return status == PBOX_OK ? pbox_join(context) : status;
}

// Returns the exit status of the rank's process. Sets `joined_ns` when it has joined.
int run_rank(const Options& options, uint32_t rank, const Pipes& pipes, uint64_t& joined_ns) {
  const auto tensors = pbox::perf::tensors_of(pbox::perf::resnet50_layers());
  if (!say(pipes.said[1])) return 1;
  await_closed(pipes.start[0]);
  pbox_context* context = nullptr;
  const pbox_status status = join(options, rank, tensors, context);
  joined_ns = pbox::monotonic_ns();
  if (status != PBOX_OK) {
    std::fprintf(stderr, "pbox-perf-join: rank %u: %s\n", rank, pbox_last_error(context));
    return 1;
  }
  if (!say(pipes.said[1])) return 1;
  await_closed(pipes.end[0]);
  const pbox_status left = pbox_leave(context);
  pbox_destroy(context);
  return left == PBOX_OK ? 0 : 1;
}

// Returns the processes of the ranks; fewer than there are ranks if one could not be made.
std::vector<pid_t> fork_ranks(const Options& options, const Pipes& pipes, uint64_t* joined_ns) {
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) break;
    if (child == 0) {
      close(pipes.start[1]);
      close(pipes.end[1]);
      close(pipes.said[0]);
      _exit(run_rank(options, rank, pipes, joined_ns[rank]));
    }
    children.push_back(child);
  }
  return children;
}

// Returns whether all processes have ended with 0.
bool wait_for(const std::vector<pid_t>& children) {
  bool ok = true;
  for (const pid_t child : children) {
    int status = 0;
    ok &= waitpid(child, &status, 0) == child && status == 0;
  }
  return ok;
}

bool parse(int argc, char** argv, Options& options) {
  if (argc < 4 || argc > 5) return false;
  options.box = argv[1];
  options.job = argv[2];
  if (argc == 5) options.keys = argv[4];
  const char* last = argv[3] + std::strlen(argv[3]);
  const auto parsed = std::from_chars(argv[3], last, options.ranks);
  return parsed.ec == std::errc{} && parsed.ptr == last && options.ranks > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: pbox-perf-join BOX JOB RANKS [KEYS]\n");
    return 2;
  }
  void* shared = mmap(nullptr, options.ranks * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Pipes pipes;
  if (shared == MAP_FAILED || pipe(pipes.start) != 0 || pipe(pipes.end) != 0 ||
      pipe(pipes.said) != 0) {
    std::perror("pbox-perf-join");
    return 1;
  }
  auto* joined_ns = static_cast<uint64_t*>(shared);
  const auto children = fork_ranks(options, pipes, joined_ns);
  close(pipes.said[1]);
  bool ok = children.size() == options.ranks && await_all(pipes.said[0], options.ranks);
  const uint64_t start_ns = pbox::monotonic_ns();
  close(pipes.start[1]);
  ok = ok && await_all(pipes.said[0], options.ranks);
  close(pipes.end[1]);
  ok = wait_for(children) && ok;
  if (!ok) return 1;
  const uint64_t last_ns = *std::max_element(joined_ns, joined_ns + options.ranks);
  std::printf("%.3f\n", static_cast<double>(last_ns - start_ns) * 1e-6);
  return 0;
}
