// Draws consistency models that differ between the tensors of a job, and change while it runs.
#include <algorithm>

#include "base/clock.h"
#include "tests/sim/draw.h"
#include "tests/sim/options.h"

namespace pbox::sim {
namespace {

using wire::SyncModel;

// Draws a model that a job may have beside other models. Its reads are fresh.
wire::SyncSpec draw_fresh(Draw& draw, bool may_be_bsp) {
  constexpr SyncModel kModels[] = {SyncModel::kBsp,      SyncModel::kAsp,     SyncModel::kSsp,
                                   SyncModel::kPssp,     SyncModel::kDpssp,   SyncModel::kDpssp,
                                   SyncModel::kAdaptive, SyncModel::kAdaptive};
  constexpr float kProbabilities[] = {0.1f, 0.7f, 1.0f};
  wire::SyncSpec sync{.model = draw.one_of(kModels)};
  if (sync.model == SyncModel::kBsp && !may_be_bsp) sync.model = SyncModel::kSsp;
  if (!wire::has_staleness(sync.model)) return sync;
  sync.staleness = draw.below(5);
  if (wire::has_probability(sync.model)) sync.probability = draw.one_of(kProbabilities);
  if (sync.model == SyncModel::kDpssp) sync.by_gradient = draw.chance(0.5);
  if (sync.model == SyncModel::kAdaptive) {
    sync.staleness_min = draw.below(sync.staleness + 1);
  } else if (draw.chance(0.4)) {
    sync.release = wire::Release::kLazy;
  }
  return sync;
}

bool reads_cached(const JobOptions& job) {
  return job.sync.reads == wire::Reads::kCached;
}

void draw_own_models(Draw& draw, JobOptions& job) {
  bool any_bsp = false;
  for (TensorOptions& tensor : job.tensors) {
    if (!draw.chance(0.5)) continue;
    tensor.sync = draw_fresh(draw, true);
    any_bsp = any_bsp || tensor.sync->model == SyncModel::kBsp;
  }
  // The job's own model may be bsp too, as long as some tensor's is not.
  if (job.tensors[0].sync && job.tensors[0].sync->model != SyncModel::kBsp && draw.chance(0.4)) {
    job.sync = {};
    any_bsp = true;
  }
  if (!job.is_relaxed()) job.tensors[0].sync = wire::SyncSpec{.model = SyncModel::kAsp};
  // A mean over the ranks that are left need not be a whole number.
  if (any_bsp) job.reduction = pipeline::Reduction::kSum;
}

// Draws a change of a model. The box must refuse one in five, except a change from drop to drop.
wire::SyncSpec draw_change(Draw& draw, const JobOptions& job) {
  const bool drops = job.sync.model == SyncModel::kDrop;
  if (draw.chance(0.2)) {
    constexpr SyncModel kOthers[] = {SyncModel::kBsp, SyncModel::kEssp, SyncModel::kDrop};
    wire::SyncSpec sync{.model = draw.one_of(kOthers)};
    if (sync.model == SyncModel::kEssp) sync.reads = wire::Reads::kCached;
    if (sync.model == SyncModel::kDrop) sync.quorum = draw.between(1, job.workers);
    return sync;
  }
  if (drops) return {.model = SyncModel::kDrop, .quorum = draw.between(1, job.workers)};
  return draw_fresh(draw, false);
}

// Draws how long a round of model `drop` waits for more ranks than its quorum, and what happens to
// pushes that are late.
void draw_grace(Draw& draw, wire::SyncSpec& sync) {
  constexpr uint32_t kGraces[] = {0, 1, 2, 5, 20, 100, wire::kGraceAuto, wire::kGraceAuto};
  if (sync.model != SyncModel::kDrop) return;
  sync.grace_ms = draw.one_of(kGraces);
  sync.counts_late = draw.chance(0.5);
}

// Breaks a rank's connection while packets to the rank or from it are lost. So the answer to a
// push, or the push itself, is lost between two sessions.
void draw_lost_answers(Draw& draw, Options& options) {
  for (uint32_t left = draw.between(1, 4); left > 0; --left) {
    Episode silence{.kind = EpisodeKind::kPartition, .begin_ns = draw_begin(draw, options)};
    silence.length_ns = draw.scaled(kNanosPerMilli, 20 * kNanosPerMilli);
    silence.draw = draw.number();
    Episode end = silence;  // has the same victim
    end.kind = EpisodeKind::kControlBreak;
    end.begin_ns += draw.below(static_cast<uint32_t>(silence.length_ns));
    options.faults_end_ns = std::max(options.faults_end_ns, end.begin_ns + end.length_ns);
    options.episodes.push_back(silence);
    options.episodes.push_back(end);
  }
}

// Makes replies take longer than rounds, or earlier answers arrive after later pushes.
void draw_late_replies(Draw& draw, Options& options) {
  if (draw.chance(0.5)) {
    options.link_bytes_per_us = draw.scaled(16, 128);
    options.send_divisor = draw.between(2, 12);
    options.send_ahead_ns = draw.scaled(1'000, 64'000);
  }
  if (!draw.chance(0.5)) return;
  options.faults.duplicate = std::max(options.faults.duplicate, 0.1);
  options.faults.delay = std::max(options.faults.delay, 0.03);
}

}  // namespace

wire::SyncModel JobOptions::relaxed_model() const {
  wire::SyncModel model = sync.model;
  for (const TensorOptions& tensor : tensors) {
    if (model == wire::SyncModel::kBsp && tensor.sync) model = tensor.sync->model;
  }
  return model == wire::SyncModel::kBsp ? relaxed_elsewhere : model;
}

void note_relaxed_parts(Options& options) {
  for (JobOptions& job : options.jobs) {
    for (const JobOptions& part : options.jobs) {
      if (part.number == job.number && !job.is_relaxed()) {
        job.relaxed_elsewhere = part.relaxed_model();
      }
    }
  }
}

// Uses a generator of its own, so that all other draws stay the same.
void draw_tensor_models(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x6f776e5f6d6f6465ull);
  for (uint32_t index = 0; index < options.jobs.size(); ++index) {
    JobOptions& job = options.jobs[index];
    if (!job.is_relaxed()) continue;
    const bool drops = job.sync.model == SyncModel::kDrop;
    if (!drops && !reads_cached(job) && draw.chance(0.5)) draw_own_models(draw, job);
    if (!draw.chance(0.6)) continue;
    for (uint32_t left = draw.between(1, 4); left > 0; --left) {
      ModelChange change{.begin_ns = draw_begin(draw, options), .job = index, .sync = {}};
      const bool is_of_one = !drops && draw.chance(0.5);
      if (is_of_one) change.tensor = draw.below(static_cast<uint32_t>(job.tensors.size()));
      change.sync = draw_change(draw, job);
      options.model_changes.push_back(change);
    }
  }
}

// Uses a generator of its own, so that all other draws stay the same.
void draw_graces(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x67726163652d6d73ull);
  for (JobOptions& job : options.jobs) draw_grace(draw, job.sync);
  for (ModelChange& change : options.model_changes) {
    draw_grace(draw, change.sync);
    if (change.sync.counts_late)
      change.sync.counts_late = options.jobs[change.job].sync.counts_late;
  }
}

// Uses a generator of its own, so that all other draws stay the same. A rack whose links are slow
// already (options_cluster.cc) stays as it is.
void draw_lapses(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x6c61707365735f5full);
  if (options.faults_end_ns == 0 || options.link_bytes_per_us > 0) return;
  for (const JobOptions& job : options.jobs) {
    if (!job.is_relaxed() || job.part > 0 || !draw.chance(0.5)) continue;
    if (job.sync.model != SyncModel::kDrop) continue;
    draw_late_replies(draw, options);
    draw_lost_answers(draw, options);
  }
}

}  // namespace pbox::sim
