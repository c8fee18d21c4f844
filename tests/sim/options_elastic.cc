// The draws of jobs that begin with some of their ranks, while the others join later.
#include "base/clock.h"
#include "tests/sim/draw.h"
#include "tests/sim/gradients.h"

namespace pbox::sim {
namespace {

// A job that could begin waits this long for further ranks (job_registry_gathering.cc), and begins
// with the next tick of its box.
constexpr uint64_t kBeginsAfterNs = 3'050 * kNanosPerMilli;
constexpr uint64_t kTogetherNs = 2 * kNanosPerMilli;

// Returns whether the job may be elastic. Its results must show which ranks are in them, as only
// sums and means do.
bool may_be_elastic(const JobOptions& job) {
  return job.workers > 1 && job.workers <= kRanksToldApart && !job.is_relaxed() &&
         !job.is_collective && !job.rogue && job.mode == pipeline::Mode::kAggregate;
}

void make_elastic(Draw& draw, JobOptions& job) {
  job.on_worker_lost = control::LostPolicy::kPartial;
  job.patient = draw.chance(0.5);
  job.barrier_at_end = true;
  job.rounds = draw.between(6, 12);
  job.think_max_ns = draw.scaled(kNanosPerMilli, 20 * kNanosPerMilli);
  job.workers_min = draw.between(1, job.workers - 1);
  job.arrivals_ns.resize(job.workers);
  for (uint64_t& arrival_ns : job.arrivals_ns) arrival_ns = draw.scaled(1, kTogetherNs);
  const uint64_t work_ns = job.rounds * job.think_max_ns;
  // In some jobs fewer ranks than workers_min are there at first.
  const uint32_t late_max = job.workers - (draw.chance(0.8) ? job.workers_min : 1);
  for (uint32_t late = draw.between(1, late_max); late > 0; --late) {
    uint64_t& arrival_ns = job.arrivals_ns[draw.below(job.workers)];
    arrival_ns = draw.chance(0.85) ? kBeginsAfterNs + draw.scaled(work_ns / 64, work_ns)
                                   : draw.scaled(kTogetherNs, kBeginsAfterNs);
  }
}

}  // namespace

void draw_elastic(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x1f83d9abfb41bd6bull);
  if (!draw.chance(0.15)) return;
  bool some_are = false;
  for (JobOptions& job : options.jobs) {
    if (!may_be_elastic(job) || !draw.chance(0.8)) continue;
    make_elastic(draw, job);
    some_are = true;
  }
  if (!some_are || options.faults_end_ns == 0 || draw.chance(0.2)) return;
  // Most faults happen once such jobs have begun.
  for (Episode& episode : options.episodes) episode.begin_ns += kBeginsAfterNs;
  options.faults_end_ns += kBeginsAfterNs;
}

}  // namespace pbox::sim
