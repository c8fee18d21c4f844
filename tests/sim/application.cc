#include "tests/sim/application.h"

#include "base/clock.h"
#include "tests/sim/calls.h"
#include "tests/sim/training.h"

namespace pbox::sim {

std::unique_ptr<Application> make_application(JobModel& job, uint32_t rank, uint64_t seed) {
  if (job.collectives) return std::make_unique<Calls>(job, rank, seed);
  return std::make_unique<Training>(job, rank, seed);
}

uint64_t think_ns(const JobOptions& job, uint32_t rank, uint32_t round, Rng& rng) {
  if (job.think_max_ns == 0 && round < job.rounds) return 0;
  constexpr uint32_t kRoundsOfATurn = 3;
  bool straggles = false;
  switch (job.straggling) {
    case Straggling::kNone: break;
    case Straggling::kOneRank: straggles = rank + 1 == job.workers; break;
    case Straggling::kInTurns: straggles = round / kRoundsOfATurn % job.workers == rank; break;
    case Straggling::kByChance: straggles = rng.below(8) == 0; break;
  }
  // A rank that has done its own rounds continues only for the other ranks, and need not hurry.
  constexpr uint64_t kUnhurriedNs = 5 * kNanosPerMilli;
  const uint64_t least_ns = round >= job.rounds ? kUnhurriedNs : 0;
  const uint64_t usual_ns = least_ns + rng.below(job.think_max_ns + 1);
  return straggles ? usual_ns * job.straggler_factor : usual_ns;
}

}  // namespace pbox::sim
