// The data that a part leaves on this box: its state, for the box that goes on with it, or what a
// backup copy has received.
#include <algorithm>

#include "appliance/control/job.h"
#include "pipeline/state/state_codec.h"

namespace pbox::control {

PartState Job::take_state(PipelineHost& host) {
  PBOX_CHECK(running());  // an empty state would replace the weights
  relay_.reset();         // the backup box receives nothing that is newer than this state
  PartState state;
  state.epoch = epoch_;
  const SyncInForce& models = shards_.models().in_force();
  if (models != registered_models(spec_)) state.models = models;
  shards_.detach(host);
  for (const auto& shard : shards_.all()) {
    for (const pipeline::Chunk& chunk : shard->chunks()) {
      if (auto kept = pipeline::state_of(*shard, chunk)) state.chunks.push_back(std::move(*kept));
    }
    state.learning_rate = shard->optimizer.learning_rate;
  }
  std::sort(state.chunks.begin(), state.chunks.end(),
            [](const auto& one, const auto& other) { return one.chunk < other.chunk; });
  return state;
}

// Each tensor of the copy is one chunk of the part, as a block of f32, and may be cut into several
// chunks here. If the box that pushed it was lost in the middle of a push, some of these chunks
// have one round more than others. Both rounds' results are still here, so the older one is used.
PartState Job::take_copy(PipelineHost& host) {
  PBOX_CHECK(running() && spec_.is_backup);  // chunks of other jobs are not backup blocks
  PartState copy;
  shards_.detach(host);
  uint32_t next = 0;
  std::vector<float> block;
  const std::vector<uint32_t> counts = chunk_counts(spec_);
  for (uint32_t tensor = 0; tensor < counts.size(); ++tensor) {
    std::vector<const pipeline::Chunk*> chunks;
    uint64_t rounds = UINT64_MAX;
    for (uint32_t end = next + counts[tensor]; next < end; ++next) {
      chunks.push_back(shards_.find(next));
      rounds = std::min(rounds, chunks.back()->rounds_finished);
    }
    if (tensor < kTensorsBesideChunks || rounds == 0) continue;
    block.clear();
    for (const pipeline::Chunk* chunk : chunks) {
      const auto* values = reinterpret_cast<const float*>(chunk->result[(rounds - 1) & 1]);
      block.insert(block.end(), values, values + chunk->elements);
    }
    if (auto state = pipeline::decode_block(block, tensor - kTensorsBesideChunks)) {
      copy.chunks.push_back(std::move(*state));
    }
  }
  return copy;
}

}  // namespace pbox::control
