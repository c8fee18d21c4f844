// Draws which jobs have weighted means, and the weights of their pushes.
#include <algorithm>

#include "base/rng.h"
#include "tests/sim/draw.h"
#include "tests/sim/gradients.h"

namespace pbox::sim {

void draw_weights(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x7765696768745f72ull);
  for (JobOptions& job : options.jobs) {
    const bool is_drawn = draw.chance(0.5);
    const bool drops = job.sync.model == wire::SyncModel::kDrop;
    const bool has_other =
        std::any_of(job.tensors.begin(), job.tensors.end(), [&](const TensorOptions& tensor) {
          const bool is_compressed = tensor.compression != wire::Compression::kNone;
          return tensor.row_elements > 0 || (is_compressed && !drops);
        });
    if (job.is_collective || job.rogue || job.workers > kRanksToldApart || has_other) continue;
    if (job.is_relaxed() && !(drops && job.dtype == wire::Dtype::kF32)) continue;
    if (!drops && job.reduction != pipeline::Reduction::kMean) continue;
    if (job.guard.max_abs > 0 || !is_drawn) continue;
    job.weighted = true;
    job.reduction = pipeline::Reduction::kMean;
  }
}

uint32_t JobOptions::weight(uint32_t rank, uint32_t tensor, uint32_t round) const {
  constexpr uint32_t kMost = 5;
  if (!weighted) return 1;
  const uint64_t which = (uint64_t{round} * 64 + tensor) * 64 + rank;
  return 1 + static_cast<uint32_t>(Rng(which + 1).below(kMost));
}

uint32_t JobOptions::weights(uint32_t ranks, uint32_t tensor, uint32_t round) const {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    if ((ranks >> rank & 1) != 0) sum += weight(rank, tensor, round);
  }
  return sum;
}

}  // namespace pbox::sim
