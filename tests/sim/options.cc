#include "tests/sim/options.h"

#include <algorithm>
#include <iterator>

#include "base/clock.h"
#include "tests/sim/draw.h"
#include "tests/sim/gradients.h"
#include "tests/sim/updates.h"

namespace pbox::sim {
namespace {

constexpr const char* kEpisodeNames[] = {
    "partition",      "clog",          "drop_fragment", "pause_worker", "pause_box",
    "pause_pipeline", "clock_worker",  "clock_box",     "small_ring",   "slow_reader",
    "control_stall",  "control_break", "crash_worker",  "crash_box",    "disk",
    "outsider",       "move_part",     "stale_map",     "drain_box",    "rebind"};
static_assert(std::size(kEpisodeNames) == static_cast<size_t>(EpisodeKind::kCount));
constexpr auto kKindsOfAnyRack = static_cast<uint32_t>(EpisodeKind::kMovePart);

}  // namespace

void draw_tensors(Draw& draw, uint32_t chunks_left, JobOptions& job) {
  const uint32_t element_bytes = wire::dtype_bytes(job.dtype);
  const uint32_t tensors = draw.between(1, 4);
  for (uint32_t index = 0; index < tensors && chunks_left > 0; ++index) {
    const uint32_t chunks = draw.between(1, std::min(chunks_left, 3u));
    chunks_left -= chunks;
    const uint32_t most = chunks * job.chunk_bytes / element_bytes;
    TensorOptions tensor;
    tensor.elements = draw.chance(0.1) ? draw.between(1, 3) : draw.between(most / 2 + 1, most);
    tensor.priority = static_cast<int32_t>(draw.below(4)) - 1;
    job.tensors.push_back(tensor);
  }
}

void draw_optimizer(Draw& draw, JobOptions& job) {
  job.mode = pipeline::Mode::kOptimize;
  job.optimizer = static_cast<optimizer::OptimizerKind>(draw.between(1, 6));
  if (job.on_worker_lost == control::LostPolicy::kPartial) job.on_worker_lost = {};  // wait
}

void draw_hosts(Draw& draw, Options& options) {
  options.burst_packets = draw.chance(0.5) ? limits::kBurstPackets : draw.between(1, 8);
  if (draw.chance(0.3)) options.send_packets = draw.between(1, 20);
  options.latency_ns = draw.scaled(2'000, 500'000);
  if (draw.chance(0.5)) options.jitter_ns = options.latency_ns / 2;
  options.rto_floor_ns = draw.chance(0.3) ? 200'000 : 2 * kNanosPerMilli;
  options.same_sessions = draw.chance(0.5);
}

PacketFaults draw_packet_faults(Draw& draw) {
  constexpr double kRates[] = {0.001, 0.01, 0.03, 0.1, 0.3};
  PacketFaults faults;
  if (draw.chance(0.5)) faults.drop = draw.one_of(kRates);
  if (draw.chance(0.2)) {
    faults.burst_begin = 0.002;
    faults.burst_end = 0.1;
  }
  if (draw.chance(0.4)) faults.duplicate = draw.one_of(kRates);
  if (draw.chance(0.4)) faults.reorder = draw.one_of(kRates);
  if (draw.chance(0.4)) faults.delay = draw.one_of(kRates) / 3;
  faults.delay_max_ns = draw.scaled(kNanosPerMilli, 500 * kNanosPerMilli);
  if (draw.chance(0.25)) faults.flip = draw.one_of(kRates) / 3;
  if (draw.chance(0.25)) faults.truncate = draw.one_of(kRates) / 3;
  if (draw.chance(0.2)) faults.wrong_queue = draw.one_of(kRates) / 3;
  return faults;
}

uint64_t draw_length(Draw& draw, EpisodeKind kind) {
  switch (kind) {
    case EpisodeKind::kPauseWorker:
    case EpisodeKind::kPauseBox:
    case EpisodeKind::kPausePipeline:
      // In rare cases up to a minute, after which the control plane declares the host dead. This
      // takes long to simulate.
      return draw.chance(0.02) ? draw.scaled(kNanosPerSecond, 60 * kNanosPerSecond)
                               : draw.scaled(10 * kNanosPerMilli, 800 * kNanosPerMilli);
    case EpisodeKind::kClockWorker:
    case EpisodeKind::kClockBox: return draw.scaled(kNanosPerMilli, 4 * kNanosPerSecond);
    default: return draw.scaled(kNanosPerMilli, 500 * kNanosPerMilli);
  }
}

uint64_t work_ns(const Options& options) {
  uint64_t longest_ns = 0;
  for (const JobOptions& job : options.jobs) {
    const uint64_t round_ns = job.think_max_ns / 2 + 3 * options.latency_ns + 20'000;
    longest_ns = std::max(longest_ns, job.rounds * round_ns);
  }
  return longest_ns;
}

uint64_t draw_begin(Draw& draw, const Options& options) {
  const uint64_t joined_ns = 2 * kNanosPerMilli + 6 * options.latency_ns;
  return (draw.chance(0.9) ? joined_ns : 0) + draw.scaled(10'000, work_ns(options));
}

namespace {

// Returns the most workers whose contributions elements of the type can distinguish (gradients.h).
uint32_t workers_max(wire::Dtype dtype) {
  switch (dtype) {
    case wire::Dtype::kF32: return kRanksToldApart;
    case wire::Dtype::kF16: return 3;
    case wire::Dtype::kBf16: return 2;
    default: break;  // types of collectives only
  }
  return 1;
}

void draw_sizes(Draw& draw, JobOptions& job) {
  constexpr uint32_t kMtus[] = {640, 700, 1000, 1500, 1500};
  job.path_mtu = draw.one_of(kMtus);
  job.chunk_bytes = 64 * draw.between(16, 96);  // 1 KiB and more: 1 to 12 fragments
  uint32_t chunks_left = 8;
  // One job in ten has chunks with the maximum number of fragments, or almost as many.
  if (draw.chance(0.1)) {
    job.path_mtu = 640;
    job.chunk_bytes = draw.chance(0.5) ? 64 * 512 : 64 * 512 - 64 * draw.between(0, 200);
    chunks_left = 2;
    job.rounds = std::min(job.rounds, 5u);
  }
  draw_tensors(draw, chunks_left, job);
}

// Draws the policies for a lost box or rank.
void draw_fate(Draw& draw, JobOptions& job) {
  using control::LostPolicy;
  constexpr LostPolicy kPolicies[] = {LostPolicy::kWait, LostPolicy::kWait, LostPolicy::kPartial,
                                      LostPolicy::kAbort};
  job.on_worker_lost = draw.one_of(kPolicies);
  if (job.mode == pipeline::Mode::kOptimize && job.on_worker_lost == LostPolicy::kPartial) {
    job.on_worker_lost = LostPolicy::kWait;
  }
  if (draw.chance(0.15)) job.recovery = control::Recovery::kNone;
  job.patient = job.on_worker_lost == LostPolicy::kPartial ? draw.chance(0.3) : draw.chance(0.8);
}

JobOptions draw_job(Draw& draw, uint32_t boxes) {
  JobOptions job;
  job.box = draw.below(boxes);
  constexpr wire::Dtype kDtypes[] = {wire::Dtype::kF32, wire::Dtype::kF32, wire::Dtype::kF16,
                                     wire::Dtype::kBf16};
  job.dtype = draw.one_of(kDtypes);
  job.workers = std::min<uint32_t>(workers_max(job.dtype),
                                   draw.chance(0.3) ? draw.between(1, 8) : draw.between(2, 4));
  job.rounds = draw.between(3, 12);
  if (draw.chance(0.4)) job.reduction = pipeline::Reduction::kMean;
  // A mean in f32 has too few bits to distinguish eight ranks.
  if (job.reduction == pipeline::Reduction::kMean) job.workers = std::min(job.workers, 7u);
  if (draw.chance(0.25)) draw_optimizer(draw, job);
  draw_sizes(draw, job);
  draw_fate(draw, job);
  if (draw.chance(0.3)) job.window_bytes = 512 * draw.between(1, 16);
  job.by_steps = draw.chance(0.6);
  job.same_order = draw.chance(0.5);
  job.in_place = draw.chance(0.5);
  job.barrier_at_end = draw.chance(0.7);
  if (draw.chance(0.7)) job.think_max_ns = draw.scaled(10'000, 20 * kNanosPerMilli);
  return job;
}

void draw_episodes(Draw& draw, Options& options) {
  bool kinds[kKindsOfAnyRack] = {};
  for (bool& kind : kinds) kind = draw.chance(0.25);
  for (uint32_t left = draw.below(12); left > 0; --left) {
    const uint32_t kind = draw.below(kKindsOfAnyRack);
    if (!kinds[kind]) continue;
    Episode episode{.kind = static_cast<EpisodeKind>(kind)};
    episode.begin_ns = draw_begin(draw, options);
    episode.length_ns = draw_length(draw, episode.kind);
    episode.draw = draw.number();
    options.faults_end_ns = std::max(options.faults_end_ns, episode.begin_ns + episode.length_ns);
    options.episodes.push_back(episode);
  }
}

// Makes rings as small as credit allows without overflow.
void make_rings_tight(Options& options) {
  uint32_t workers = 0, chunk_bytes = 0;
  for (const JobOptions& job : options.jobs) {
    workers += job.workers;
    chunk_bytes = std::max(chunk_bytes, job.chunk_bytes);
  }
  options.ring_bytes = workers * chunk_bytes * 4 / 3 + 1024;
  options.ring_slots = 0;
}

Options draw_rack(uint64_t seed) {
  Draw draw(seed);
  Options options;
  options.seed = seed;
  options.boxes = draw.chance(0.2) ? 2 : 1;
  options.pipelines = draw.between(1, 4);
  options.ring_bytes = 1024 * static_cast<uint32_t>(draw.scaled(32, 1024));
  if (draw.chance(0.3)) options.ring_slots = draw.between(64, 512);
  draw_hosts(draw, options);
  options.dead_after_ns = draw.scaled(100 * kNanosPerMilli, 10 * kNanosPerSecond);
  const uint32_t jobs = draw.chance(0.5) ? 1 : draw.between(2, 3);
  for (uint32_t job = 0; job < jobs; ++job) {
    options.jobs.push_back(draw_job(draw, options.boxes));
    options.jobs.back().number = job;
  }
  if (jobs > 1 && draw.chance(0.25)) options.jobs.back().rogue = true;
  if (draw.chance(0.1)) {  // a quiet rack, where no packet may be lost
    if (draw.chance(0.5)) make_rings_tight(options);
    return options;
  }
  options.faults_end_ns = 3 * kNanosPerMilli + draw.scaled(kNanosPerMilli, 4 * work_ns(options));
  options.faults = draw_packet_faults(draw);
  draw_episodes(draw, options);
  // Without payload_crc only the UDP checksum, which is not simulated, would find a flipped bit in
  // a payload.
  options.payload_crc = options.faults.flip > 0 || draw.chance(0.7);
  return options;
}

// Draws how results are ordered and delivered. Uses a generator of its own, so that the other draws
// of the rack do not depend on it.
void draw_schedules(uint64_t seed, Options& options) {
  constexpr wire::PriorityPolicy kPolicies[] = {
      wire::PriorityPolicy::kExplicit, wire::PriorityPolicy::kExplicit,
      wire::PriorityPolicy::kForwardOrder, wire::PriorityPolicy::kFifo};
  Draw draw(seed ^ 0x9e3779b97f4a7c15ull);
  for (JobOptions& job : options.jobs) {
    job.priority_policy = draw.one_of(kPolicies);
    if (draw.chance(0.2)) job.delivery = wire::Delivery::kPull;
  }
}

// Draws, with a generator of its own, the addresses from which boxes hear workers. A box must ask
// for a proof of some of them, which costs time and packets, so a quiet rack has none of this.
void draw_addresses(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x8ebc6af09c88c6e3ull);
  if (options.faults_end_ns == 0) return;
  options.has_control_network = draw.chance(0.2);
  if (!draw.chance(0.25)) return;
  for (uint32_t left = draw.between(1, 3); left > 0; --left) {
    const Episode episode{.kind = EpisodeKind::kRebind,
                          .begin_ns = draw_begin(draw, options),
                          .length_ns = 1,
                          .draw = draw.number()};
    options.faults_end_ns = std::max(options.faults_end_ns, episode.begin_ns + 1);
    options.episodes.push_back(episode);
  }
}

// Draws keys, with a generator of its own. Without keys packets have checksums.
void draw_keys(uint64_t seed, Options& options) {
  constexpr seal::Suite kSuites[] = {seal::Suite::kNone, seal::Suite::kGmac256,
                                     seal::Suite::kGcm256};
  Draw draw(seed ^ 0xe7037ed1a0b428dbull);
  options.suite = draw.one_of(kSuites);
  if (draw.chance(0.7)) options.key_packets = draw.scaled(3, 3000);
  options.ports_fall_back = options.suite != seal::Suite::kNone && draw.chance(0.2);
}

// Draws numerics, with a generator of its own, for jobs whose rounds wait for all ranks.
void draw_numerics(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0xa0761d6478bd642full);
  for (JobOptions& job : options.jobs) {
    if (job.is_relaxed() || !draw.chance(0.25)) continue;
    if (!job.is_collective) job.numerics = wire::Numerics::kOrdered;
  }
}

// Draws guards, with a generator of its own, for jobs whose sums are checked. A bound is the
// largest sound value that a rank pushes, so sums are beyond it.
// * `flag`: every value over 1 is unsound, and nothing else changes.
// * `zero`: ranks push unsound values here and there, which count as 0.
// * `reject`: one rank pushes one unsound value, once, and the job ends. Jobs with several parts or
//   that may move do not have it, because other parts would end too, or the job would continue on
//   another box. Elastic jobs do not have it, because that rank may be missing in the round.
void draw_guards(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x589965cc75374cc3ull);
  for (JobOptions& job : options.jobs) {
    if (!draw.chance(0.4)) continue;
    const uint32_t chosen = draw.below(5);
    const bool has_bound = draw.chance(0.5);
    if (job.is_relaxed() || job.rogue || job.workers > kRanksToldApart) continue;
    const bool is_collective = job.is_collective;
    if (is_collective && std::none_of(job.calls.begin(), job.calls.end(), is_guarded)) continue;
    constexpr uint32_t kLargestOfCalls = 12;
    const auto largest =
        static_cast<float>(is_collective ? kLargestOfCalls : 3u << (3 * (job.workers - 1)));
    const bool may_end = job.mode == pipeline::Mode::kAggregate && job.parts == 1 &&
                         !job.is_elastic() && !job.may_move && !options.has_cluster &&
                         !options.is_tight && !job.disagreement;
    if (chosen == 0) {
      job.guard = {wire::Guard::kFlag, 1};
    } else if (chosen == 1 && may_end) {
      job.guard = {wire::Guard::kReject, has_bound ? largest : 0};
      job.pushes_unsound = true;
    } else {
      job.guard = {wire::Guard::kZero, has_bound ? largest : 0};
      job.pushes_unsound = true;
    }
  }
}

// Adds a crash of a worker to half of the crashes of boxes. A fault that takes a box down often
// takes a worker down with it, and both may lose a result.
void draw_outages(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0xd1b54a32d192ed03ull);
  std::vector<Episode> also;
  for (const Episode& episode : options.episodes) {
    if (episode.kind != EpisodeKind::kCrashBox || !draw.chance(0.5)) continue;
    also.push_back({.kind = EpisodeKind::kCrashWorker,
                    .begin_ns = episode.begin_ns + draw.scaled(1, 2 * kNanosPerMilli),
                    .length_ns = episode.length_ns,
                    .draw = draw.number()});
    options.faults_end_ns =
        std::max(options.faults_end_ns, also.back().begin_ns + also.back().length_ns);
  }
  options.episodes.insert(options.episodes.end(), also.begin(), also.end());
}

wire::SyncSpec draw_model(Draw& draw, uint32_t workers) {
  using wire::SyncModel;
  constexpr SyncModel kModels[] = {
      SyncModel::kAsp,  SyncModel::kSsp,  SyncModel::kSsp,   SyncModel::kSsp,  SyncModel::kEssp,
      SyncModel::kEssp, SyncModel::kPssp, SyncModel::kDpssp, SyncModel::kDrop, SyncModel::kDrop};
  constexpr float kProbabilities[] = {0.1f, 0.5f, 1.0f};
  wire::SyncSpec sync{.model = draw.one_of(kModels)};
  if (sync.model == SyncModel::kDrop) {
    sync.quorum = draw.between(1, workers);
    return sync;
  }
  if (sync.model == SyncModel::kAsp) return sync;
  sync.staleness = draw.below(5);
  if (sync.model == SyncModel::kEssp) {
    sync.reads = draw.chance(0.5) ? wire::Reads::kCached : wire::Reads::kAnswered;
    return sync;
  }
  if (sync.model != SyncModel::kSsp) {
    sync.probability = draw.one_of(kProbabilities);
  } else if (draw.chance(0.4)) {
    sync.reads = draw.chance(0.7) ? wire::Reads::kCached : wire::Reads::kAnswered;
    return sync;
  }
  if (draw.chance(0.4)) sync.release = wire::Release::kLazy;
  return sync;
}

void draw_stragglers(Draw& draw, JobOptions& job) {
  constexpr Straggling kPatterns[] = {Straggling::kOneRank, Straggling::kInTurns,
                                      Straggling::kByChance, Straggling::kNone};
  job.straggling = draw.one_of(kPatterns);
  if (job.straggling == Straggling::kNone) return;
  if (job.think_max_ns == 0) job.think_max_ns = kNanosPerMilli;
  job.straggler_factor = draw.chance(0.3) ? 100 : draw.between(2, 10);
}

// Draws a model other than BSP for the job, and changes the job so that the model permits it
// (appliance/control/sync_spec.h) and its reads can be checked (updates.h).
void relax(Draw& draw, JobOptions& job) {
  using control::LostPolicy;
  constexpr LostPolicy kPolicies[] = {LostPolicy::kPartial, LostPolicy::kPartial, LostPolicy::kWait,
                                      LostPolicy::kAbort};
  job.sync = draw_model(draw, job.workers);
  job.mode = pipeline::Mode::kOptimize;
  job.optimizer = optimizer::OptimizerKind::kSgd;
  job.recovery = control::Recovery::kNone;
  job.delivery = wire::Delivery::kBroadcast;
  job.on_worker_lost = draw.one_of(kPolicies);
  job.patient = draw.chance(0.5);
  // A mean needs an exact division, so it needs a number of workers that is a power of two.
  const bool drops = job.sync.model == wire::SyncModel::kDrop;
  if (drops || (job.workers & (job.workers - 1)) != 0) job.reduction = pipeline::Reduction::kSum;
  // A rank that lags behind needs a quorum of other ranks. They must not be at a barrier, and must
  // continue with all tensors: if each tensor went on alone, the urgent ones would starve the rest.
  if (drops) {
    job.barrier_at_end = false;
    job.by_steps = true;
    job.patient = false;
  }
  job.rounds = std::min(std::max(job.rounds, draw.between(4, 12)), Updates::rounds_max(job));
}

// Adds permanent losses of ranks while others continue. Without this, such losses are rare.
void draw_losses(Draw& draw, Options& options) {
  for (uint32_t left = draw.between(1, 2); left > 0; --left) {
    const EpisodeKind kind =
        draw.chance(0.7) ? EpisodeKind::kCrashWorker : EpisodeKind::kControlBreak;
    Episode episode{.kind = kind, .begin_ns = draw_begin(draw, options)};
    episode.length_ns = draw_length(draw, kind);
    episode.draw = draw.number();
    options.faults_end_ns = std::max(options.faults_end_ns, episode.begin_ns + episode.length_ns);
    options.episodes.push_back(episode);
  }
}

// Changes one seed in three: most jobs there have a model other than BSP. Most of those have
// stragglers, and so have some BSP jobs. Uses a generator of its own, so that the other draws stay
// the same.
void draw_models(uint64_t seed, Options& options) {
  if (seed % 3 != 0) return;
  Draw draw(seed ^ 0x73796e635f6d6f64ull);
  for (JobOptions& job : options.jobs) {
    const bool is_relaxed = draw.chance(0.75);
    if (is_relaxed) relax(draw, job);
    if (is_relaxed || draw.chance(0.5)) draw_stragglers(draw, job);
    if (job.straggling != Straggling::kNone && options.faults_end_ns > 0 && draw.chance(0.5)) {
      options.faults_end_ns *= 3;
    }
    const bool goes_on_without = is_relaxed && job.on_worker_lost == control::LostPolicy::kPartial;
    if (goes_on_without && options.faults_end_ns > 0 && draw.chance(0.3)) {
      draw_losses(draw, options);
    }
  }
}

// Makes some tensors tables. Rows below kRowBytesLazyMin that are not pushed may arrive as zeros,
// so they need an optimizer that ignores zeros. Among the simulated jobs only those whose models
// apply pushes on arrival are sure to have one: SGD without weight decay.
void draw_tables(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x7461626c65735f5full);
  for (JobOptions& job : options.jobs) {
    const bool applies = wire::applies_on_arrival(job.sync.model);
    const bool keeps_copies = wire::keeps_copies(job.sync);
    const bool may_lack_ranks = job.on_worker_lost == control::LostPolicy::kPartial;
    const bool may = job.mode == pipeline::Mode::kOptimize && !job.rogue &&
                     (applies ? !keeps_copies : !job.is_relaxed() && !may_lack_ranks) &&
                     job.numerics == wire::Numerics::kFast && job.guard == wire::GuardSpec{};
    if (!may) continue;
    const uint32_t least = applies ? 1 : wire::kRowBytesLazyMin / wire::dtype_bytes(job.dtype);
    for (TensorOptions& tensor : job.tensors) {
      if (draw.chance(0.6)) tensor.row_elements = draw.between(least, std::max(3 * least, 100u));
    }
  }
}

}  // namespace

const char* name_of(EpisodeKind kind) {
  return kEpisodeNames[static_cast<size_t>(kind)];
}

uint64_t JobOptions::bytes() const {
  uint64_t elements = 0;
  for (const TensorOptions& tensor : tensors) elements += tensor.elements;
  return elements * wire::dtype_bytes(dtype);
}

uint64_t Options::largest_part_bytes() const {
  uint64_t largest = 0;
  for (const JobOptions& job : jobs) largest = std::max(largest, job.bytes());
  return largest;
}

Options draw(uint64_t seed) {
  Options options = draw_rack(seed);
  draw_schedules(seed, options);
  draw_models(seed, options);
  draw_tensor_models(seed, options);
  draw_graces(seed, options);
  draw_collectives(seed, options);
  draw_numerics(seed, options);
  draw_keys(seed, options);
  draw_outages(seed, options);
  draw_moves(seed, options);
  draw_room(seed, options);
  draw_addresses(seed, options);
  draw_elastic(seed, options);
  draw_parts(seed, options);
  note_relaxed_parts(options);
  draw_guards(seed, options);
  draw_zeros(seed, options);
  draw_tables(seed, options);
  draw_compression(seed, options);
  draw_weights(seed, options);
  draw_cables(seed, options);
  draw_lapses(seed, options);
  draw_takeovers(seed, options);
  draw_snapshots(seed, options);
  draw_chunk_moves(seed, options);
  return options;
}

Options draw_attacked(uint64_t seed) {
  constexpr uint32_t kBursts = 32;
  constexpr seal::Suite kSuites[] = {seal::Suite::kGmac256, seal::Suite::kGcm256};
  Options options = draw(seed);
  if (options.suite == seal::Suite::kNone) options.suite = Draw(seed).one_of(kSuites);
  options.attack_bursts = kBursts;
  return options;
}

}  // namespace pbox::sim
