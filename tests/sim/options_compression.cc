// Draws which tensors are compressed. The oracle of blocks does not know the results of jobs that
// leave ranks out or have a guard. For model `drop` SyncReplay knows them.
#include "tests/sim/draw.h"

namespace pbox::sim {
namespace {

// Makes more jobs use SGD, the only optimizer with an oracle of deltas. Otherwise few jobs with
// deltas would move or lose their box.
void draw_more_sgd(Draw& draw, Options& options) {
  for (const JobOptions& job : options.jobs) {
    if (job.part > 0 || job.mode != pipeline::Mode::kOptimize || job.is_relaxed()) continue;
    if (!draw.chance(0.7)) continue;
    for (JobOptions& part : options.jobs) {
      if (part.name() == job.name()) part.optimizer = optimizer::OptimizerKind::kSgd;
    }
  }
}

bool has_oracle(const JobOptions& job) {
  const bool has_plain_steps =
      job.mode == pipeline::Mode::kAggregate || job.optimizer == optimizer::OptimizerKind::kSgd;
  return has_plain_steps && job.dtype == wire::Dtype::kF32 && !job.is_collective &&
         !job.is_relaxed() && !job.rogue && job.on_worker_lost != control::LostPolicy::kPartial &&
         job.guard == wire::GuardSpec{};
}

void draw_tensors_in_blocks(Draw& draw, JobOptions& job) {
  for (TensorOptions& tensor : job.tensors) {
    if (!draw.chance(0.75) || tensor.row_elements > 0) continue;
    tensor.compression = draw.chance(0.5) ? wire::Compression::kQ8 : wire::Compression::kQ4;
  }
}

// Compresses tensors of jobs of model `drop`. Uses a generator of its own, so that all other draws
// stay the same.
void draw_dropping(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x64726f705f626c6bull);
  for (JobOptions& job : options.jobs) {
    const bool is_drawn = draw.chance(0.6);
    const bool drops = job.sync.model == wire::SyncModel::kDrop;
    if (!is_drawn || !drops || job.dtype != wire::Dtype::kF32 || job.rogue) continue;
    draw_tensors_in_blocks(draw, job);
  }
}

}  // namespace

void draw_compression(uint64_t seed, Options& options) {
  Draw draw(seed ^ 0x626c6f636b735f5full);
  draw_more_sgd(draw, options);
  for (JobOptions& job : options.jobs) {
    if (has_oracle(job) && draw.chance(0.6)) draw_tensors_in_blocks(draw, job);
  }
  draw_dropping(seed, options);
}

}  // namespace pbox::sim
