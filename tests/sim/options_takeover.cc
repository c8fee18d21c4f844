// Draws processes that take a lost rank's place while the others finish the round that the lost
// process had pushed.
#include <algorithm>

#include "base/clock.h"
#include "tests/sim/draw.h"

namespace pbox::sim {
namespace {

// Returns whether the job may have a takeover. The new process must fetch weights, and no round may
// end before the slowest rank has pushed.
bool may_be_taken_over(const Options& options, const JobOptions& job) {
  constexpr uint64_t kLongestThinkNs = 20 * kNanosPerMilli;
  return options.faults_end_ns > 0 && !options.has_cluster && !job.is_relaxed() && !job.rogue &&
         job.mode == pipeline::Mode::kOptimize && job.workers > 1 &&
         job.on_worker_lost == control::LostPolicy::kWait &&
         job.longest_think_ns() <= kLongestThinkNs;
}

// Returns an episode that hits the job's rank. `first`: the number of workers of earlier jobs.
Episode episode_of(Draw& draw, const Options& options, uint32_t first, uint32_t rank) {
  uint64_t workers = 0;
  for (const JobOptions& job : options.jobs) workers += job.workers;
  return {.draw = draw.number() / workers * workers + first + rank};
}

// Draws a takeover. One rank pauses, so the others wait in the open round. One of these crashes.
// Its new process learns which round is open shortly before the paused rank goes on and the round
// ends.
void draw_takeover(Draw& draw, const JobOptions& job, uint32_t first, Options& options) {
  const uint64_t latency_ns = options.latency_ns;
  const uint32_t slow = draw.below(job.workers);
  const uint32_t lost = (slow + draw.between(1, job.workers - 1)) % job.workers;
  Episode pause = episode_of(draw, options, first, slow);
  Episode crash = episode_of(draw, options, first, lost);
  pause.kind = EpisodeKind::kPauseWorker;
  crash.kind = EpisodeKind::kCrashWorker;
  pause.begin_ns = 2 * kNanosPerMilli + 6 * latency_ns + draw.number() % work_ns(options);
  crash.begin_ns = pause.begin_ns + job.longest_think_ns() + 8 * latency_ns;
  crash.length_ns = draw.scaled(kNanosPerMilli, 10 * kNanosPerMilli);
  // A process has its session after six latencies, and its first PULL arrives after nine.
  const uint64_t end_ns = crash.begin_ns + crash.length_ns + draw.between(4, 9) * latency_ns;
  pause.length_ns = end_ns - pause.begin_ns;
  options.faults_end_ns = std::max(options.faults_end_ns, end_ns);
  options.episodes.push_back(pause);
  options.episodes.push_back(crash);
}

}  // namespace

void draw_takeovers(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x74616b656f766572ull);
  uint32_t first = 0;
  for (const JobOptions& job : options.jobs) {
    if (may_be_taken_over(options, job) && draw.chance(0.5)) {
      draw_takeover(draw, job, first, options);
    }
    first += job.workers;
  }
}

}  // namespace pbox::sim
