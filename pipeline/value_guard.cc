#include "pipeline/value_guard.h"

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

}  // namespace pbox::pipeline
