// Draws which jobs push gradients with many fragments that are zero.
#include "tests/sim/draw.h"
#include "tests/sim/gradients.h"

namespace pbox::sim {

void draw_zeros(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x7a65726f5f66726bull);
  for (JobOptions& job : options.jobs) {
    const bool may = !job.is_relaxed() && !job.is_collective && !job.rogue && !job.pushes_unsound &&
                     !job.is_elastic() && job.on_worker_lost != control::LostPolicy::kPartial &&
                     job.workers <= kRanksToldApart;
    if (draw.chance(0.5) && may) job.pushes_zeros = true;
  }
}

}  // namespace pbox::sim
