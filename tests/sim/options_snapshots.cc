// Draws snapshots: boxes that take them regularly, operators who ask for them, and boxes that are
// lost afterwards.
#include <algorithm>

#include "base/clock.h"
#include "tests/sim/draw.h"

namespace pbox::sim {
namespace {

// Makes a job last longer, because a snapshot takes several of the boxes' ticks. Some jobs get
// short rounds, so that chunks pass a cut before all boxes have heard of it. Relaxed jobs are left
// out, because their updates can distinguish only a few rounds (updates.h).
void prolong(Draw& draw, Options& options, uint32_t number) {
  const bool is_fast = draw.chance(0.3);
  const uint32_t rounds = is_fast ? draw.between(40, 60) : draw.between(16, 30);
  const uint64_t think_ns = draw.scaled(16 * kNanosPerMilli, 64 * kNanosPerMilli);
  for (JobOptions& job : options.jobs) {
    if (job.number != number) continue;
    job.rounds = std::max(job.rounds, rounds);
    job.think_max_ns = is_fast ? 4 * kNanosPerMilli : std::max(job.think_max_ns, think_ns);
  }
}

// Returns whether a job can begin with a snapshot. Its oracle must compute all results itself.
bool may_restore(const Options& options, uint32_t number) {
  return std::all_of(options.jobs.begin(), options.jobs.end(), [number](const JobOptions& job) {
    const bool is_known = job.has_snapshots && !job.is_relaxed() && !job.rogue &&
                          std::all_of(job.tensors.begin(), job.tensors.end(), [](const auto& one) {
                            return one.compression == wire::Compression::kNone;
                          });
    return job.number != number || is_known;
  });
}

void draw_former_run(Draw& draw, Options& options) {
  options.has_former_run = draw.chance(0.35);
  if (!options.has_former_run) return;
  for (uint32_t number = 0; number < options.jobs.size(); ++number) {
    const bool restores = may_restore(options, number) && draw.chance(0.7);
    for (JobOptions& job : options.jobs) job.restores |= job.number == number && restores;
  }
}

}  // namespace

Options former_run(const Options& options) {
  Options former = options;
  former.seed ^= 0x666f726d6572ull;
  former.run = 1;
  former.has_former_run = false;
  former.faults = {};
  former.faults_end_ns = 0;
  former.episodes.clear();
  former.model_changes.clear();
  former.attack_bursts = 0;
  former.snapshot_calls.clear();
  former.chunk_moves.clear();
  for (uint32_t index = 0; index < former.jobs.size(); ++index) {
    JobOptions& job = former.jobs[index];
    job.rogue = job.restores = false;
    if (!job.has_snapshots || job.part > 0) continue;
    for (uint32_t box = 0; box < former.boxes; ++box) {  // the first box with a part takes it
      former.snapshot_calls.push_back({.begin_ns = work_ns(options) / 3 + box * kNanosPerMilli,
                                       .timeout_ns = 3 * kNanosPerSecond,
                                       .job = index,
                                       .box = box});
    }
  }
  return former;
}

void draw_snapshots(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x736e617073686f74ull);
  // Only the parts of a job on several boxes can be cut at different rounds.
  const bool has_parts = std::any_of(options.jobs.begin(), options.jobs.end(),
                                     [](const JobOptions& job) { return job.parts > 1; });
  if (!draw.chance(has_parts ? 0.4 : 0.25)) return;
  for (JobOptions& job : options.jobs) {
    job.has_snapshots = job.mode == pipeline::Mode::kOptimize;
    options.has_snapshots = options.has_snapshots || job.has_snapshots;
  }
  if (!options.has_snapshots) return;
  for (const JobOptions& job : options.jobs) {
    const bool is_first = job.part == 0 && !job.is_relaxed();
    if (job.has_snapshots && is_first) prolong(draw, options, job.number);
  }
  if (draw.chance(0.6)) {
    options.snapshot_every_ns = draw.scaled(250 * kNanosPerMilli, kNanosPerSecond);
  }
  for (uint32_t left = draw.below(5); left > 0; --left) {
    options.snapshot_calls.push_back(
        {.begin_ns = draw.number() % work_ns(options),
         .timeout_ns = draw.scaled(200 * kNanosPerMilli, 3 * kNanosPerSecond),
         .job = draw.below(static_cast<uint32_t>(options.jobs.size())),
         .box = draw.below(options.boxes)});
  }
  draw_former_run(draw, options);
  if (options.faults_end_ns == 0) return;
  for (uint32_t left = draw.below(3); left > 0; --left) {
    const Episode crash{.kind = EpisodeKind::kCrashBox,
                        .begin_ns = work_ns(options) / 4 + draw.number() % work_ns(options),
                        .length_ns = draw_length(draw, EpisodeKind::kCrashBox),
                        .draw = draw.number()};
    options.faults_end_ns = std::max(options.faults_end_ns, crash.begin_ns + crash.length_ns);
    options.episodes.push_back(crash);
  }
}

}  // namespace pbox::sim
