// The draws of jobs of collectives, and of ranks whose calls differ.
#include <algorithm>

#include "base/clock.h"
#include "tests/sim/draw.h"
#include "tests/sim/gradients.h"

namespace pbox::sim {
namespace {

using wire::Combine;
using wire::Dtype;
using wire::Verb;

// Returns how many elements fit a slot while they are combined: f16 and bf16 then take 4 bytes.
uint32_t elements_per_slot(const JobOptions& job, const CallOptions& call) {
  return job.chunk_bytes / std::max(wire::combined_bytes(call.dtype), 1u);
}

CallOptions draw_call(Draw& draw, const JobOptions& job) {
  constexpr Verb kVerbs[] = {Verb::kAllReduce,     Verb::kAllReduce, Verb::kAllReduce,
                             Verb::kReduceScatter, Verb::kAllGather, Verb::kBroadcast,
                             Verb::kBarrier};
  constexpr Combine kCombines[] = {Combine::kSum, Combine::kMean, Combine::kMin, Combine::kMax};
  CallOptions call{.verb = draw.one_of(kVerbs)};
  if (call.verb == Verb::kBarrier) return call;
  call.dtype = static_cast<Dtype>(draw.below(wire::kCollectiveDtypeCount));
  const bool reduces = call.verb == Verb::kAllReduce || call.verb == Verb::kReduceScatter;
  if (reduces) call.combine = draw.one_of(kCombines);
  if (call.combine == Combine::kMean && !wire::is_floating_point(call.dtype)) {
    call.combine = Combine::kSum;
  }
  if (call.verb == Verb::kBroadcast) call.root = draw.below(job.workers);
  const uint32_t most = elements_per_slot(job, call);
  const bool has_segments = call.verb == Verb::kReduceScatter || call.verb == Verb::kAllGather;
  if (draw.chance(0.08)) return call;  // no elements
  if (draw.chance(0.2)) {
    call.count = draw.between(1, 3);
  } else {
    call.count = draw.between(1, draw.chance(0.5) || has_segments ? most : 3 * most);
  }
  return call;
}

// Loses the first fragment of all pushes to the slot, for a long time from the start of the run.
// Later rounds of other slots go on meanwhile.
void delay_slot(Draw& draw, const JobOptions& job, uint32_t first_worker, uint32_t slot,
                Options& options) {
  uint32_t workers = 0;
  for (const JobOptions& other : options.jobs) workers += other.workers;
  // In the form that World::drop_fragment() reads: fragment 0 of a PUSH, of the chunk that is the
  // number above bit 32 modulo their number. A slot is one chunk.
  constexpr uint64_t kPush = uint64_t{3} << 56;
  static_assert((kPush >> 48) % 3 == 0 && (kPush >> 56 & 1) != 0);
  const uint64_t chunks = job.tensors.size();
  const uint64_t chunk = (slot + chunks - (kPush >> 32) % chunks) % chunks;
  const uint64_t number = (kPush | chunk << 32) + (draw.number() >> 33);
  Episode episode{.kind = EpisodeKind::kDropFragment, .begin_ns = 0};
  episode.length_ns = draw.scaled(2 * kNanosPerMilli, 4 * work_ns(options));
  episode.draw = number / workers * workers + first_worker + draw.below(job.workers);
  options.faults_end_ns = std::max(options.faults_end_ns, episode.length_ns);
  options.episodes.push_back(episode);
}

// Draws losses of the job's box, which comes back while ranks make calls, so that results are given
// back. In a cluster another box may take the job instead.
void draw_restores(Draw& draw, const JobOptions& job, Options& options) {
  for (uint32_t left = draw.between(1, 3); left > 0; --left) {
    Episode episode{.kind = EpisodeKind::kCrashBox, .begin_ns = draw_begin(draw, options)};
    episode.length_ns = draw.scaled(kNanosPerMilli, 100 * kNanosPerMilli);
    episode.draw = draw.number() / options.boxes * options.boxes + job.box;
    options.faults_end_ns = std::max(options.faults_end_ns, episode.begin_ns + episode.length_ns);
    options.episodes.push_back(episode);
  }
}

// Returns the call with one of its arguments changed.
CallOptions draw_other(Draw& draw, const JobOptions& job, CallOptions call) {
  switch (draw.below(5)) {
    case 0: call.count += draw.between(1, 3); break;
    case 1: call.count = call.count / 2; break;
    case 2: call.dtype = call.dtype == Dtype::kF32 ? Dtype::kI32 : Dtype::kF32; break;
    case 3: call.combine = call.combine == Combine::kMax ? Combine::kMin : Combine::kMax; break;
    default: call = draw_call(draw, job); break;
  }
  // The calls must not differ only in an argument that the verb ignores.
  const bool reduces = call.verb == Verb::kAllReduce || call.verb == Verb::kReduceScatter;
  if (!reduces) call.combine = Combine::kSum;
  if (call.verb == Verb::kBarrier) call = {};
  if (call.combine == Combine::kMean && !wire::is_floating_point(call.dtype)) {
    call.dtype = Dtype::kF64;
  }
  return call;
}

// Lets one rank skip a call, add one, change one, or make two calls in place of one. Two such calls
// have the same pieces as the one. Later calls then have the same slots on all ranks, but not the
// same numbers.
void draw_disagreement(Draw& draw, JobOptions& job, uint32_t first_worker, Options& options) {
  Disagreement other{.rank = draw.below(job.workers), .calls = job.calls};
  const uint32_t kind = draw.below(6);
  const bool is_first = kind == 5 && job.tensors.size() > 3 && options.faults_end_ns > 0;
  const uint32_t at = is_first ? 0 : draw.below(static_cast<uint32_t>(job.calls.size()) - 1);
  const auto place = other.calls.begin() + at;
  switch (kind) {
    case 0: other.calls.erase(place); break;
    case 1: other.calls.insert(place, draw_call(draw, job)); break;
    case 2:
    case 5: {
      const CallOptions half{.verb = Verb::kAllReduce,
                             .combine = Combine::kSum,
                             .dtype = Dtype::kI32,
                             .count = job.chunk_bytes / 4};
      CallOptions whole = half;
      whole.count *= 2;
      *place = half;
      other.calls.insert(place, half);
      job.calls[at] = whole;
      if (is_first) delay_slot(draw, job, first_worker, draw.below(2), options);
      break;
    }
    default: *place = draw_other(draw, job, *place);
  }
  // The calls must differ before the shorter list ends: a rank that leaves early is another fault.
  const size_t both = std::min(other.calls.size(), job.calls.size());
  if (!std::equal(job.calls.begin(), job.calls.begin() + static_cast<ptrdiff_t>(both),
                  other.calls.begin())) {
    job.disagreement = std::move(other);
  }
}

// Turns the job into one of collectives, with options that the mode permits
// (appliance/control/collective_spec.h).
void make_collective(Draw& draw, JobOptions& job, uint32_t first_worker, Options& options) {
  using control::LostPolicy;
  job.is_collective = true;
  job.dtype = Dtype::kU8;
  job.workers = draw.chance(0.3) ? draw.between(1, kRanksToldApart) : draw.between(2, 4);
  job.reduction = pipeline::Reduction::kSum;
  job.delivery = wire::Delivery::kBroadcast;
  job.priority_policy =
      draw.chance(0.7) ? wire::PriorityPolicy::kExplicit : wire::PriorityPolicy::kFifo;
  job.on_worker_lost = draw.chance(0.7) ? LostPolicy::kWait : LostPolicy::kAbort;
  job.recovery = draw.chance(0.7) ? control::Recovery::kCopy : control::Recovery::kNone;
  const uint32_t slots = draw.between(1, job.chunk_bytes > 64 * 96 ? 2 : 8);
  job.tensors.assign(slots, {.elements = job.chunk_bytes, .priority = 0});
  draw_calls(draw, job);
  if (job.workers > 1 && !job.rogue && draw.chance(0.2)) {
    draw_disagreement(draw, job, first_worker, options);
  } else if (job.recovery == control::Recovery::kCopy && options.faults_end_ns > 0 &&
             draw.chance(0.3)) {
    draw_restores(draw, job, options);
  }
}

}  // namespace

bool is_guarded(const CallOptions& call) {
  return (call.verb == Verb::kAllReduce || call.verb == Verb::kReduceScatter) &&
         (call.combine == Combine::kSum || call.combine == Combine::kMean) &&
         static_cast<uint32_t>(call.dtype) < wire::kDtypeCount && call.count > 0;
}

void draw_calls(Draw& draw, JobOptions& job) {
  job.calls.clear();
  for (uint32_t left = draw.between(4, 16); left > 0; --left) {
    job.calls.push_back(draw_call(draw, job));
  }
  job.rounds = static_cast<uint32_t>(job.calls.size());
}

void draw_collectives(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x1f83d9abfb41bd6bull);
  uint32_t first_worker = 0;  // counts all workers except rogues
  for (JobOptions& job : options.jobs) {
    const bool is_eligible = !job.is_relaxed() && job.mode == pipeline::Mode::kAggregate;
    if (draw.chance(0.25) && is_eligible) make_collective(draw, job, first_worker, options);
    first_worker += job.workers - (job.rogue ? 1 : 0);
  }
}

}  // namespace pbox::sim
