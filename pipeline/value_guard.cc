#include "pipeline/value_guard.h"

#include "pipeline/push_weights.h"

namespace pbox::pipeline {

void note_unsound(JobShard& shard, Session& session, Chunk& chunk, uint32_t round,
                  uint64_t now_ns) {
  PBOX_DCHECK(&shard.sessions()[session.rank] == &session);
  PBOX_DCHECK(shard.find(chunk.id) == &chunk);
  session.note_nonfinite(chunk.id, round, now_ns);
  if (shard.guard.policy != wire::Guard::kReject || shard.receives_weights(chunk)) return;
  if (shard.gate != nullptr) {
    chunk.is_rejected = true;
  } else {
    shard.reject(session);
  }
}

void measure_gradient(const reduce::Kernels& kernels, const JobShard& shard, Session& session,
                      const Chunk& chunk, const wire::Parsed& parsed) {
  PBOX_DCHECK(GradientSquares::measures(parsed.header.round));
  const size_t elements = shard.fragment_elements(chunk, parsed.header.fragment);
  PBOX_DCHECK(elements > 0 && elements <= chunk.elements);
  PBOX_DCHECK(shard.element_count >= chunk.elements);
  const double squares =
      wire::is_in_blocks(chunk.dtype)
          ? quantize::finite_squares(chunk.dtype, parsed.payload, elements)
          : kernels.finite_squares[static_cast<size_t>(chunk.dtype)](parsed.payload, elements);
  // The worker has multiplied the gradient by the push's weight.
  const auto weight = static_cast<double>(wire::push_weight(weight_code_of(chunk, parsed.header)));
  session.squares.add(parsed.header.round, squares / (weight * weight), elements,
                      shard.element_count);
}

}  // namespace pbox::pipeline
