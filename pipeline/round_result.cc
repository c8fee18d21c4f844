#include "pipeline/round_result.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>

#include "nic/quantize/quantize.h"
#include "nic/wire/collective.h"
#include "pipeline/optimizer/optimizer.h"
#include "pipeline/reduce/combine.h"
#include "pipeline/reduce/reduce.h"
#include "pipeline/state/state_cut.h"
#include "pipeline/value_guard.h"

namespace pbox::pipeline {
namespace {

// Divides the open round's sum by `divisors`, by fragment.
template <typename T>
void divide_fragments(const JobShard& shard, Chunk& chunk, const T* divisors) {
  const uint32_t slot = chunk.open_round() & 1;
  PBOX_DCHECK(divisors != nullptr && chunk.accumulator[slot] != nullptr);
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    PBOX_DCHECK(divisors[fragment] > 0);
    float* sum = chunk.accumulator[slot] + shard.fragment_offset_elements(chunk, fragment);
    reduce::kernels().scale(sum, 1.0f / static_cast<float>(divisors[fragment]),
                            shard.fragment_elements(chunk, fragment));
  }
}

// Returns the key for rounding the open round's result.
quantize::RoundingKey rounding_key(const JobShard& shard, const Chunk& chunk) {
  return quantize::key_of({.seed = shard.rounding_seed,
                           .tensor = uint64_t{shard.part} << 32 | chunk.id,
                           .rank = quantize::kBoxRank,
                           .round = chunk.open_round()});
}

// Counts, by fragment, the pushes that are in the open round's sum.
void count_contributors(const JobShard& shard, Chunk& chunk) {
  uint16_t* const counts = chunk.contributors[chunk.open_round() & 1];
  PBOX_DCHECK(shard.partial && counts != nullptr);
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    counts[fragment] = chunk.sync != nullptr ? chunk.sync->late[fragment] : 0;
    for (uint32_t rank = 0; rank < shard.worker_count(); ++rank) {
      counts[fragment] =
          static_cast<uint16_t>(counts[fragment] + (chunk.claimed[rank] >> fragment & 1));
    }
    PBOX_DCHECK(counts[fragment] > 0);
  }
}

// Counts the contributors of each fragment. If fragments may need different divisors, divides each
// by the number of pushes that are in it, or by the sum of their weights: a round that ends without
// a rank may contain some fragments of that rank. Returns false if the sum was not divided, because
// it needs no division or the same divisor for all fragments.
bool average_fragments(JobShard& shard, Chunk& chunk) {
  if (chunk.copy_rank != kNoRank) return false;
  const uint16_t* const counts = chunk.contributors[chunk.open_round() & 1];
  if (counts != nullptr) count_contributors(shard, chunk);
  if (shard.receives_weights(chunk) || shard.reduction == Reduction::kSum) return false;
  if (chunk.weight_sums != nullptr) {
    divide_fragments(shard, chunk, chunk.weight_sums);
    return true;
  }
  const bool drops = chunk.sync != nullptr && chunk.sync->spec.model == wire::SyncModel::kDrop;
  const bool is_whole = shard.present_count() == shard.worker_count() && !drops;
  if (counts == nullptr || is_whole) return false;
  divide_fragments(shard, chunk, counts);
  return true;
}

// Returns the factor that turns the sum into the optimizer's gradient.
float gradient_scale_of(const JobShard& shard, bool is_averaged) {
  const bool divides = shard.reduction == Reduction::kMean && !is_averaged;
  return divides ? 1.0f / static_cast<float>(shard.workers) : 1.0f;
}

// Steps the rows that some rank has pushed in this round, and no others.
void step_rows(const JobShard& shard, Chunk& chunk, const optimizer::StepParameters& parameters) {
  const uint32_t round = chunk.open_round();
  const auto step = optimizer::kernels().step[static_cast<size_t>(shard.optimizer.kind)];
  const auto coefficients = optimizer::step_coefficients(shard.optimizer, parameters);
  const uint32_t element_bytes = wire::dtype_bytes(chunk.dtype);
  wire::for_each_run(chunk.table->layout, chunk.table->rows(round), [&](const wire::RowRun& run) {
    const size_t first = run.begin / element_bytes;
    PBOX_DCHECK(run.end / element_bytes <= chunk.elements);
    float* state = chunk.optimizer_state != nullptr ? chunk.optimizer_state + first : nullptr;
    step(coefficients, chunk.weights + first, state, chunk.elements,
         chunk.accumulator[round & 1] + first, (run.end - run.begin) / element_bytes);
  });
}

// Makes the sum zero again in the rows that ranks have pushed.
void clear_rows(Chunk& chunk) {
  const uint32_t round = chunk.open_round();
  const uint32_t element_bytes = wire::dtype_bytes(chunk.dtype);
  wire::for_each_run(chunk.table->layout, chunk.table->rows(round), [&](const wire::RowRun& run) {
    std::fill(chunk.accumulator[round & 1] + run.begin / element_bytes,
              chunk.accumulator[round & 1] + run.end / element_bytes, 0.0f);
  });
}

// Makes the result: the master weights minus the ranks' weights, in blocks. Adds it to the ranks'
// weights, as the ranks do. The next difference includes the rounding error of these blocks.
void make_delta(JobShard& shard, Chunk& chunk) {
  float* const difference = chunk.accumulator[chunk.open_round() & 1];  // replaces the sum
  PBOX_DCHECK(gives_deltas(chunk) && difference != nullptr && chunk.table == nullptr);
  for (size_t index = 0; index < chunk.elements; ++index) difference[index] = -chunk.weights[index];
  const size_t format = quantize::format_index(chunk.deltas.dtype);
  std::byte* const delta = chunk.result[chunk.open_round() & 1];
  quantize::kernels().encode[format](delta, chunk.deltas.master, difference, chunk.elements,
                                     rounding_key(shard, chunk));
  const auto add = quantize::kernels().add[format];
  static_cast<void>(add(chunk.weights, delta, chunk.elements, FLT_MAX));
  keep_published(chunk, chunk.open_round() & 1);
}

void run_optimizer(JobShard& shard, Chunk& chunk, bool is_averaged) {
  PBOX_DCHECK(chunk.weights != nullptr && chunk.accumulator[chunk.open_round() & 1] != nullptr);
  PBOX_DCHECK(optimizer::state_floats_per_element(shard.optimizer.kind) == 0 ||
              chunk.optimizer_state != nullptr);
  float gradient_scale = gradient_scale_of(shard, is_averaged);
  if (chunk.is_held) [[unlikely]] {
    const StepVerdict& verdict = shard.gate->verdict();
    PBOX_DCHECK(verdict.round == chunk.open_round());
    if (verdict.is_skip) {
      ++chunk.stateless_round;
      return;
    }
    gradient_scale *= verdict.factor;
  }
  const auto parameters =
      optimizer::step_parameters(shard.optimizer, chunk.lr_scale, chunk.weight_decay,
                                 gradient_scale, chunk.rounds_finished - chunk.stateless_round);
  PBOX_DCHECK(parameters.step == chunk.steps() + 1);
  if (chunk.table != nullptr) return step_rows(shard, chunk, parameters);
  float* const weights = gives_deltas(chunk) ? chunk.deltas.master : chunk.weights;
  optimizer::step(shard.optimizer, parameters, weights, chunk.optimizer_state,
                  chunk.accumulator[chunk.open_round() & 1], chunk.elements);
}

// Mode optimize: the result is the weights after the step.
void make_weights(JobShard& shard, Chunk& chunk, bool is_averaged) {
  if (!shard.receives_weights(chunk)) {
    run_optimizer(shard, chunk, is_averaged);
    if (chunk.table != nullptr) clear_rows(chunk);
  } else if (chunk.table != nullptr) {
    chunk.table->touch_all(chunk.open_round());
  }
  if (gives_deltas(chunk)) [[unlikely]] {
    if (!shard.receives_weights(chunk)) return make_delta(shard, chunk);
    std::copy_n(chunk.weights, chunk.elements, chunk.deltas.master);
  }
  keep_published(chunk, chunk.open_round() & 1);
  if (chunk.dtype == wire::Dtype::kF32) return;
  PBOX_DCHECK(chunk.result[chunk.open_round() & 1] != nullptr);
  reduce::kernels().narrow[static_cast<size_t>(chunk.dtype)](chunk.result[chunk.open_round() & 1],
                                                             chunk.weights, chunk.elements);
}

// Makes a relayed chunk's result: the upper box's result, narrowed if it has to be.
void make_relayed(Chunk& chunk) {
  const uint32_t slot = chunk.open_round() & 1;
  PBOX_DCHECK(chunk.up.is_relayed() && chunk.copy_rank == kNoRank);
  if (chunk.dtype == wire::Dtype::kF32) return;
  reduce::kernels().narrow[static_cast<size_t>(chunk.dtype)](chunk.result[slot],
                                                             chunk.up.result[slot], chunk.elements);
}

// Mode aggregate, in blocks: encodes the sum or mean, plus the residue of earlier results, once for
// all ranks, so that they get the same bytes. A result that a rank has given back stays as it is.
// The residue was lost with the box that had it, and begins at 0.
void make_blocks(JobShard& shard, Chunk& chunk) {
  if (chunk.copy_rank != kNoRank) return;
  const uint32_t slot = chunk.open_round() & 1;
  PBOX_DCHECK(chunk.residue != nullptr && chunk.result[0] == chunk.result[1]);
  quantize::kernels().encode[quantize::format_index(chunk.dtype)](
      chunk.result[slot], chunk.accumulator[slot], chunk.residue, chunk.elements,
      rounding_key(shard, chunk));
}

// Mode aggregate: makes the result, the sum or mean, and narrows it to the chunk's type in place.
void make_sum(JobShard& shard, Chunk& chunk, bool is_averaged) {
  const uint32_t slot = chunk.open_round() & 1;
  const bool copied = chunk.copy_rank != kNoRank;
  if (shard.reduction == Reduction::kMean && !is_averaged && !copied) {
    reduce::kernels().scale(chunk.accumulator[slot], 1.0f / static_cast<float>(shard.workers),
                            chunk.elements);
  }
  if (wire::is_in_blocks(chunk.dtype)) return make_blocks(shard, chunk);
  PBOX_DCHECK(chunk.result[slot] == reinterpret_cast<std::byte*>(chunk.accumulator[slot]));
  if (chunk.dtype == wire::Dtype::kF32) return;
  reduce::kernels().narrow[static_cast<size_t>(chunk.dtype)](
      chunk.result[slot], chunk.accumulator[slot], chunk.elements);
}

// Makes a slot's result, in place. Fragments that no rank has pushed with data are zero.
void make_combined(const JobShard& shard, Chunk& chunk) {
  ShapedRound& round = chunk.shaped[chunk.open_round() & 1];
  PBOX_DCHECK(round.is_shaped);
  const uint32_t last = round.shape.fragment_count - 1u;
  round.result_bytes = round.last_bytes == 0 ? 0 : last * shard.fragment_bytes + round.last_bytes;
  if (round.result_bytes == 0) {
    round.shape.audience = wire::Audience::kNobody;
    return;
  }
  auto* const sum = reinterpret_cast<std::byte*>(chunk.accumulator[chunk.open_round() & 1]);
  const size_t widening = round.widening();
  PBOX_DCHECK(sum == chunk.result[chunk.open_round() & 1]);
  PBOX_DCHECK(round.result_bytes * widening <= chunk.elements);
  for (uint64_t missing = round.mask() & ~chunk.claimed_any; missing != 0; missing &= missing - 1) {
    const auto fragment = static_cast<uint32_t>(__builtin_ctzll(missing));
    const size_t bytes = wire::fragment_length(round.result_bytes, shard.fragment_bytes, fragment);
    std::memset(sum + size_t{fragment} * shard.fragment_bytes * widening, 0, bytes * widening);
  }
  if (round.shape.combine == wire::Combine::kCopy) return;
  const auto elements = round.result_bytes / wire::dtype_bytes(round.shape.dtype);
  if (round.shape.combine == wire::Combine::kMean && chunk.copy_rank == kNoRank) {
    reduce::divide(round.shape.dtype, sum, shard.worker_count(), elements);
  }
  if (widening == 1) return;
  reduce::narrow(round.shape.dtype, sum, reinterpret_cast<float*>(sum), elements);
}

}  // namespace

void add_in_order(JobShard& shard, Chunk& chunk, uint64_t now_ns) {
  const reduce::Kernels& kernels = reduce::kernels();
  float* const accumulator = chunk.accumulator[chunk.open_round() & 1];
  PBOX_DCHECK(accumulator != nullptr && chunk.pushed != nullptr);
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    float* sum = accumulator + shard.fragment_offset_elements(chunk, fragment);
    const size_t elements = shard.fragment_elements(chunk, fragment);
    bool is_first = true;
    for (Session& session : shard.sessions()) {
      if ((chunk.claimed[session.rank] >> fragment & 1) == 0) continue;
      const auto kernel = gradient_kernel(kernels, shard.guard, chunk.dtype, is_first);
      if (!kernel(sum, shard.pushed(chunk, session.rank, fragment), elements, shard.value_limit)) {
        note_unsound(shard, session, chunk, chunk.open_round(), now_ns);
      }
      is_first = false;
    }
    PBOX_DCHECK(!is_first);
  }
}

void step_on_arrival(JobShard& shard, Chunk& chunk, uint32_t fragment, size_t offset,
                     size_t elements) {
  PBOX_DCHECK(offset + elements <= chunk.elements);
  PBOX_DCHECK(shard.gradient != nullptr && chunk.weights != nullptr);
  const bool is_mean = shard.reduction == Reduction::kMean;
  const auto parameters =
      optimizer::step_parameters(shard.optimizer, chunk.lr_scale, chunk.weight_decay,
                                 is_mean ? 1.0f / static_cast<float>(shard.worker_count()) : 1.0f,
                                 chunk.sync->updates[fragment]);
  const size_t state_floats = optimizer::state_floats_per_element(shard.optimizer.kind);
  // The state of a fragment is contiguous: [state floats][elements].
  const size_t first = shard.fragment_offset_elements(chunk, fragment);
  float* state =
      state_floats > 0 ? chunk.optimizer_state + state_floats * first + (offset - first) : nullptr;
  optimizer::kernels().step[static_cast<size_t>(shard.optimizer.kind)](
      optimizer::step_coefficients(shard.optimizer, parameters), chunk.weights + offset, state,
      shard.fragment_elements(chunk, fragment), shard.gradient, elements);
  if (chunk.dtype == wire::Dtype::kF32) return;
  reduce::kernels().narrow[static_cast<size_t>(chunk.dtype)](
      chunk.result[0] + offset * wire::dtype_bytes(chunk.dtype), chunk.weights + offset, elements);
}

void measure_round(JobShard& shard, Chunk& chunk) {
  PBOX_DCHECK(!chunk.is_held && shard.mode == Mode::kOptimize);
  const bool is_averaged = average_fragments(shard, chunk);
  const double scale = gradient_scale_of(shard, is_averaged);
  const double squares = std::exchange(chunk.is_rejected, false)
                             ? HUGE_VAL
                             : reduce::kernels().sum_squares(
                                   chunk.accumulator[chunk.open_round() & 1], chunk.elements);
  shard.gate->hold(shard.index_of(chunk), squares * scale * scale, is_averaged);
}

void make_result(JobShard& shard, Chunk& chunk) {
  PBOX_DCHECK(!chunk.is_stepped && !chunk.has_own_rounds());
  const bool is_averaged = chunk.is_held ? shard.gate->is_averaged(shard.index_of(chunk))
                                         : average_fragments(shard, chunk);
  if (shard.cut != nullptr) [[unlikely]]
    shard.cut->copy_before_round(shard, chunk);
  if (chunk.up.is_relayed()) {
    make_relayed(chunk);
  } else if (shard.mode == Mode::kOptimize) {
    make_weights(shard, chunk, is_averaged);
  } else if (shard.is_collective) {
    make_combined(shard, chunk);
  } else {
    make_sum(shard, chunk, is_averaged);
  }
  if (!chunk.is_held) [[likely]]
    return;
  chunk.is_held = false;
  shard.gate->release();
}

}  // namespace pbox::pipeline
