// The draws of two levels: a job of several racks, whose boxes send their sums to one more box.
#include <algorithm>

#include "base/clock.h"
#include "tests/sim/draw.h"
#include "tests/sim/gradients.h"

namespace pbox::sim {

RackPlace JobOptions::place_of(uint32_t rank) const {
  uint32_t rack = 0;
  for (; rank >= racks[rack]; ++rack) rank -= racks[rack];
  return {rack, rank, racks[rack]};
}

int32_t JobOptions::priority_of(uint32_t rank, uint32_t tensor) const {
  if (!racks_disagree) return tensors[tensor].priority;
  return tensors[(tensor + place_of(rank).rack) % tensors.size()].priority;
}

namespace {

// Faults of any host, of the paths to the racks' boxes and of the paths to the upper box.
constexpr EpisodeKind kKinds[] = {
    EpisodeKind::kPartition,   EpisodeKind::kClog,         EpisodeKind::kDropFragment,
    EpisodeKind::kPauseWorker, EpisodeKind::kPauseBox,     EpisodeKind::kPausePipeline,
    EpisodeKind::kClockWorker, EpisodeKind::kClockBox,     EpisodeKind::kSmallRing,
    EpisodeKind::kSlowReader,  EpisodeKind::kControlStall, EpisodeKind::kControlBreak,
    EpisodeKind::kOutsider,    EpisodeKind::kRebind,       EpisodeKind::kCrashWorker,
    EpisodeKind::kCrashBox};

// Draws the faults. Two of three seeds lose no process, because a job that loses one may fail.
void draw_episodes_of_levels(Draw& draw, Options& options) {
  const bool loses = draw.chance(0.33);
  for (uint32_t left = draw.below(8); left > 0; --left) {
    Episode episode{.kind = draw.one_of(kKinds)};
    episode.begin_ns = draw_begin(draw, options);
    episode.length_ns = draw_length(draw, episode.kind);
    episode.draw = draw.number();
    const bool is_loss =
        episode.kind == EpisodeKind::kCrashWorker || episode.kind == EpisodeKind::kCrashBox;
    if (is_loss && !loses) continue;
    // The upper box is the only box whose loss a job survives.
    if (episode.kind == EpisodeKind::kCrashBox && draw.chance(0.7)) {
      episode.draw = episode.draw / options.boxes * options.boxes + options.top();
    }
    options.faults_end_ns = std::max(options.faults_end_ns, episode.begin_ns + episode.length_ns);
    options.episodes.push_back(episode);
  }
}

bool loses_ranks(const Options& options) {
  return std::any_of(options.episodes.begin(), options.episodes.end(), [](const Episode& episode) {
    return episode.kind == EpisodeKind::kCrashWorker;
  });
}

void draw_racks(Draw& draw, uint32_t racks, JobOptions& job) {
  job.workers = 0;
  for (uint32_t rack = 0; rack < racks; ++rack) {
    const uint32_t others = racks - rack - 1;
    const uint32_t left = kRanksToldApart - 1 - job.workers - others;
    job.racks.push_back(draw.between(1, std::min(left, 3u)));
    job.workers += job.racks.back();
  }
}

// Draws the type of elements, which must show the parts of all ranks. The sums of racks are in f32,
// so only a rank's own part and the result need to fit. The largest part is
// 3 << 3 * (workers - 1).
void draw_dtype(Draw& draw, JobOptions& job) {
  constexpr uint32_t kHalfRanks = 5;
  constexpr wire::Dtype kDtypes[] = {wire::Dtype::kF32, wire::Dtype::kF32, wire::Dtype::kF16,
                                     wire::Dtype::kBf16};
  job.dtype = draw.one_of(kDtypes);
  if (job.dtype == wire::Dtype::kF16 && job.workers > kHalfRanks) job.dtype = wire::Dtype::kF32;
}

JobOptions draw_job_of_racks(Draw& draw, uint32_t racks) {
  constexpr uint32_t kMtus[] = {640, 1000, 1500};
  constexpr wire::PriorityPolicy kPolicies[] = {
      wire::PriorityPolicy::kExplicit, wire::PriorityPolicy::kExplicit,
      wire::PriorityPolicy::kForwardOrder, wire::PriorityPolicy::kFifo};
  JobOptions job;
  draw_racks(draw, racks, job);
  draw_dtype(draw, job);
  job.rounds = draw.between(3, 10);
  if (draw.chance(0.4)) job.reduction = pipeline::Reduction::kMean;
  if (draw.chance(0.3)) draw_optimizer(draw, job);
  job.path_mtu = draw.one_of(kMtus);
  job.chunk_bytes = 64 * draw.between(16, 96);
  draw_tensors(draw, draw.between(4, 12), job);
  if (draw.chance(0.2)) job.on_worker_lost = control::LostPolicy::kAbort;
  if (draw.chance(0.1)) job.recovery = control::Recovery::kNone;
  job.patient = draw.chance(0.8);
  if (draw.chance(0.6)) job.window_bytes = 512 * draw.between(1, 24);
  job.by_steps = draw.chance(0.5);
  job.same_order = draw.chance(0.3);
  job.racks_disagree = draw.chance(0.5);
  job.in_place = draw.chance(0.5);
  job.barrier_at_end = draw.chance(0.7);
  if (draw.chance(0.7)) job.think_max_ns = draw.scaled(10'000, 20 * kNanosPerMilli);
  job.priority_policy = draw.one_of(kPolicies);
  if (draw.chance(0.2)) job.delivery = wire::Delivery::kPull;
  if (draw.chance(0.25)) job.numerics = wire::Numerics::kOrdered;
  job.pushes_zeros = job.mode == pipeline::Mode::kAggregate && draw.chance(0.3);
  return job;
}

void draw_keys_of_levels(Draw& draw, Options& options) {
  constexpr seal::Suite kSuites[] = {seal::Suite::kNone, seal::Suite::kGmac256,
                                     seal::Suite::kGcm256};
  options.suite = draw.one_of(kSuites);
  if (draw.chance(0.5)) options.key_packets = draw.scaled(3, 3000);
}

}  // namespace

Options draw_levels(uint64_t seed) {
  Draw draw(seed ^ 0x6c6576656c735f32ull);
  Options options;
  options.seed = seed;
  options.has_levels = true;
  options.boxes = draw.between(2, 3) + 1;
  options.pipelines = draw.between(1, 3);
  options.top_pipelines = draw.between(1, 3);
  options.ring_bytes = 1024 * static_cast<uint32_t>(draw.scaled(32, 1024));
  draw_hosts(draw, options);
  options.dead_after_ns = draw.scaled(kNanosPerSecond, 10 * kNanosPerSecond);
  draw_keys_of_levels(draw, options);
  options.jobs.push_back(draw_job_of_racks(draw, options.top()));
  if (draw.chance(0.15)) return options;  // quiet racks, which lose nothing
  options.faults_end_ns = 3 * kNanosPerMilli + draw.scaled(kNanosPerMilli, 4 * work_ns(options));
  options.faults = draw_packet_faults(draw);
  draw_episodes_of_levels(draw, options);
  options.payload_crc = options.faults.flip > 0 || draw.chance(0.7);
  if (!loses_ranks(options)) return options;
  // A new process of a rank pushes different values, so a result must show each rank's part
  // exactly.
  options.jobs.front().dtype = wire::Dtype::kF32;
  options.jobs.front().pushes_zeros = false;
  return options;
}

}  // namespace pbox::sim
