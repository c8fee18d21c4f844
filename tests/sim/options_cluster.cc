// The draws of racks whose boxes share a store, and of boxes that are short of room.
#include <algorithm>
#include <iterator>

#include "base/clock.h"
#include "tests/sim/draw.h"
#include "tests/sim/sim_store.h"

namespace pbox::sim {
namespace {

// Moves a job while its box does not hear of the move and one of its workers cannot reach that box,
// so that each of two boxes has some of the job's ranks.
void split_job(Draw& draw, const JobOptions& job, uint32_t first_worker, Options& options) {
  const uint64_t begin_ns = draw_begin(draw, options);
  const uint64_t length_ns = draw.scaled(3 * kNanosPerSecond, 15 * kNanosPerSecond);
  const uint64_t worker = first_worker + draw.below(job.workers);
  const Episode episodes[] = {
      {EpisodeKind::kPartition, begin_ns, length_ns, worker | uint64_t{1} << 40},  // to the box
      {EpisodeKind::kStaleMap, begin_ns + 1, length_ns, job.box},
      {EpisodeKind::kMovePart, begin_ns + 2, 1, worker}};
  options.episodes.insert(options.episodes.end(), std::begin(episodes), std::end(episodes));
}

// Cuts a box off from the store for longer than its lease, so that it registers again later. The
// job moves at about that time, often to this box. Its ranks think for long, so that it still runs
// then.
void move_to_absent_box(Draw& draw, uint32_t first_worker, JobOptions& job, Options& options) {
  constexpr uint64_t kLateNs = 300 * kNanosPerMilli;
  const uint64_t begin_ns = draw_begin(draw, options);
  const uint64_t absent_ns = draw.scaled(100 * kNanosPerMilli, kNanosPerSecond);
  const uint64_t move_ns = kStoreLeaseNs + draw.number() % (absent_ns + kLateNs);
  const uint64_t box = draw.below(options.boxes);
  job.think_max_ns = 2 * (kStoreLeaseNs + kNanosPerSecond + kLateNs) / job.rounds;
  const Episode episodes[] = {{EpisodeKind::kStaleMap, begin_ns, kStoreLeaseNs + absent_ns, box},
                              {EpisodeKind::kMovePart, begin_ns + move_ns, 1, first_worker}};
  options.episodes.insert(options.episodes.end(), std::begin(episodes), std::end(episodes));
}

// Draws the loss of the job's box, and sometimes of another one, which may have the backup copy.
void draw_crashes(Draw& draw, const JobOptions& job, Options& options) {
  const uint32_t crashes = draw.chance(0.3) ? 2 : 1;
  for (uint32_t index = 0; index < crashes; ++index) {
    const uint32_t box = (job.box + (index == 0 ? 0 : draw.below(options.boxes))) % options.boxes;
    Episode episode{.kind = EpisodeKind::kCrashBox, .begin_ns = draw_begin(draw, options)};
    episode.length_ns = draw.scaled(kNanosPerMilli, 20 * kNanosPerSecond);
    episode.draw = draw.number() / options.boxes * options.boxes + box;
    options.episodes.push_back(episode);
  }
}

// Changes a job of model `drop` so that it must survive the loss of its box: any rank can go on
// alone, and all wait for each other at the end.
void hold_together(JobOptions& job) {
  job.sync.quorum = 1;
  if (job.sync.grace_ms == wire::kGraceAuto) job.sync.grace_ms = 20;
  job.on_worker_lost = control::LostPolicy::kWait;
  job.patient = true;
  job.barrier_at_end = true;
}

// Makes the rack a cluster. It has no member that violates the protocol, and each job may move if
// the product permits that.
void join_boxes(Options& options) {
  options.has_cluster = true;
  for (JobOptions& job : options.jobs) {
    job.rogue = false;
    job.may_move = job.recovery == control::Recovery::kCopy || job.is_relaxed();
  }
}

}  // namespace

void draw_moves(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x8cb92ba72f3d8dd7ull), optimizers(seed ^ 0x3c6ef372fe94f82bull);
  // Relaxed jobs have a generator of their own, so that draws for BSP stay the same.
  Draw relaxed(seed ^ 0xbb67ae8584caa73bull);
  Draw copies(seed ^ 0xa54ff53a5f1d36f1ull);
  Draw quorums(seed ^ 0x71756f72756d7321ull);
  if (options.faults_end_ns == 0 || !draw.chance(0.3)) return;
  bool some_may = false;
  for (uint32_t index = 0; index < options.jobs.size(); ++index) {
    JobOptions& job = options.jobs[index];
    if (job.is_relaxed()) {
      job.may_move = !job.rogue && relaxed.chance(0.8);
      some_may = some_may || job.may_move;
      const bool drops = job.sync.model == wire::SyncModel::kDrop;
      job.has_copy = drops && job.may_move && quorums.chance(0.7);
      if (!job.has_copy || !quorums.chance(0.6)) continue;
      hold_together(job);
      std::erase_if(options.model_changes,
                    [index](const ModelChange& change) { return change.job == index; });
      continue;
    }
    job.may_move = !job.rogue && draw.chance(0.8) && job.recovery == control::Recovery::kCopy;
    some_may = some_may || job.may_move;
    const bool may_optimize = job.may_move && optimizers.chance(0.4);
    if (may_optimize && !job.is_collective) draw_optimizer(optimizers, job);
    const bool optimizes = job.may_move && job.mode == pipeline::Mode::kOptimize;
    job.has_copy = optimizes && copies.chance(0.8);
  }
  if (!some_may) return;
  join_boxes(options);
  options.boxes = std::max(options.boxes, draw.between(2, 3));
  for (uint32_t left = draw.between(1, 6); left > 0; --left) {
    options.episodes.push_back(
        {.kind = draw.chance(0.7) ? EpisodeKind::kMovePart : EpisodeKind::kStaleMap,
         .begin_ns = draw_begin(draw, options),
         .length_ns = draw.scaled(kNanosPerMilli, 2 * kNanosPerSecond),
         .draw = draw.number()});
  }
  Draw drains(seed ^ 0x1f83d9abfb41bd6bull);
  for (uint32_t left = drains.chance(0.4) ? drains.between(1, 3) : 0; left > 0; --left) {
    options.episodes.push_back({.kind = EpisodeKind::kDrainBox,
                                .begin_ns = draw_begin(drains, options),
                                .length_ns = drains.scaled(kNanosPerMilli, 5 * kNanosPerSecond),
                                .draw = drains.number()});
  }
  Draw absences(seed ^ 0x6a09e667f3bcc908ull);
  uint32_t first_worker = 0;
  for (JobOptions& job : options.jobs) {
    const bool may_split = job.may_move && !job.is_relaxed();
    if (may_split && draw.chance(0.3)) split_job(draw, job, first_worker, options);
    const bool may_last = may_split && job.straggling == Straggling::kNone;
    if (may_last && absences.chance(0.2)) {
      move_to_absent_box(absences, first_worker, job, options);
    }
    first_worker += job.workers;
    Draw& crashes = job.is_relaxed() ? quorums : copies;
    if (job.has_copy && crashes.chance(0.8)) draw_crashes(crashes, job, options);
  }
  for (const Episode& episode : options.episodes) {
    options.faults_end_ns = std::max(options.faults_end_ns, episode.begin_ns + episode.length_ns);
  }
}

void draw_room(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x510e527fade682d1ull);
  if (!draw.chance(options.has_cluster ? 0.3 : 0.05)) return;
  options.is_tight = true;
  options.memory_bytes = draw.scaled(64u << 10, 1u << 20);
  options.arena_bytes = options.memory_bytes / draw.between(1, 2 * options.pipelines);
  options.job_slots = draw.between(1, static_cast<uint32_t>(options.jobs.size()));
}

namespace {

bool is_relaxed_anywhere(const Options& options, uint32_t number) {
  return std::any_of(options.jobs.begin(), options.jobs.end(), [&](const JobOptions& job) {
    return job.number == number && job.is_relaxed();
  });
}

// Gives the rack links that are slow for results, one pipeline per box, and jobs whose results
// leave in an order that can be checked (egress_check.h).
void make_queues(Draw& draw, Options& options) {
  options.pipelines = 1;
  options.link_bytes_per_us = draw.scaled(16, 128);
  options.send_divisor = draw.between(2, 12);
  options.send_ahead_ns = draw.scaled(1'000, 64'000);
  if (draw.chance(0.6)) {  // so that results are sent again, too
    options.faults.drop = std::max(options.faults.drop, 0.05);
    options.faults_end_ns = std::max(options.faults_end_ns, 100 * kNanosPerMilli);
  }
  for (JobOptions& job : options.jobs) {
    if (job.is_collective || job.is_elastic() || is_relaxed_anywhere(options, job.number)) continue;
    job.delivery = wire::Delivery::kBroadcast;
    if (job.priority_policy == wire::PriorityPolicy::kForwardOrder) job.priority_policy = {};
    if (job.on_worker_lost == control::LostPolicy::kPartial) job.on_worker_lost = {};  // wait
  }
}

// Makes the job's chunks large. A port takes a whole burst, so only results with many fragments
// wait.
void enlarge_chunks(Draw& draw, JobOptions& job) {
  job.path_mtu = 640;
  job.chunk_bytes = 64 * draw.between(200, 512);
  job.rounds = std::min(job.rounds, 5u);
  job.tensors.clear();
  draw_tensors(draw, 3, job);
}

}  // namespace

void draw_parts(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x9b05688c2b3e6c1full);
  if (!options.has_cluster) return;
  Draw queues(seed ^ 0x1f5c3a8be0d92647ull);
  const bool has_queues = !options.is_tight && options.faults_end_ns > 0 && queues.chance(0.4);
  // Results of several parts wait at a port that takes few packets at a time.
  if (draw.chance(0.3)) options.send_packets = draw.between(1, 3);
  const size_t jobs = options.jobs.size();
  for (size_t index = 0; index < jobs; ++index) {
    if (!draw.chance(0.5) && !has_queues) continue;
    options.jobs[index].parts = draw.between(2, 3);
    if (has_queues) options.jobs[index].parts = options.boxes + 1;
    const bool is_enlarged = has_queues && !options.jobs[index].is_collective;
    if (is_enlarged) enlarge_chunks(queues, options.jobs[index]);
    const bool has_large_chunks = options.jobs[index].chunk_bytes > 64 * 96;
    for (uint32_t part = 1; part < options.jobs[index].parts; ++part) {
      JobOptions job = options.jobs[index];
      job.part = part;
      if (job.is_collective) {  // the part has the same slots, and calls of its own
        job.disagreement.reset();
        draw_calls(draw, job);
      } else {
        job.tensors.clear();
        draw_tensors(draw, is_enlarged ? 3 : has_large_chunks ? 1 : 4, job);
      }
      options.jobs.push_back(std::move(job));
    }
  }
  if (has_queues) make_queues(queues, options);
}

}  // namespace pbox::sim
