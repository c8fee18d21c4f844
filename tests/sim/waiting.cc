#include "tests/sim/waiting.h"

#include "base/clock.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

constexpr uint32_t kWorkers = 256;
// A worker sends two PULLs every 100 ms, or every 75 ms because of 25 % jitter.
constexpr double kPullsMost = 2 / 0.075;

// The job pauses between rounds, so that it still runs when the rank falls silent.
Options job_of(uint32_t chunks, uint64_t silence_ns) {
  Options options;
  options.ring_bytes = 64u << 20;
  options.faults_end_ns = silence_ns;
  JobOptions job;
  job.workers = kWorkers;
  job.rounds = 20;
  job.chunk_bytes = 1024;
  job.think_max_ns = 10 * kNanosPerMilli;
  job.tensors.push_back({.elements = chunks * job.chunk_bytes / 4});
  options.jobs.push_back(job);
  options.episodes.push_back({.kind = EpisodeKind::kPauseWorker,
                              .begin_ns = 50 * kNanosPerMilli,
                              .length_ns = silence_ns});
  return options;
}

}  // namespace

std::vector<Waiting> measure_waiting() {
  constexpr double kSeconds = 3;
  std::vector<Waiting> measured;
  for (const uint32_t chunks : {16u, 128u}) {
    // The difference between two silences shows the cost of their length alone.
    const auto of_seconds = [chunks](double seconds) {
      return World(job_of(chunks, static_cast<uint64_t>(seconds * kNanosPerSecond))).run();
    };
    const Outcome shorter = of_seconds(kSeconds), longer = of_seconds(2 * kSeconds);
    const double pulls = static_cast<double>(longer.pulls) - static_cast<double>(shorter.pulls);
    measured.push_back({.workers = kWorkers,
                        .chunks = chunks,
                        .pulls = pulls / (kWorkers - 1) / kSeconds,
                        .most = kPullsMost,
                        .violation = shorter.violation + longer.violation});
  }
  return measured;
}

}  // namespace pbox::sim
