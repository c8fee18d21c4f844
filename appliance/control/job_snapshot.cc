// A part of a job in a snapshot: how it is cut, and how it begins with one.
#include "appliance/control/job.h"

namespace pbox::control {

using pipeline::CommandKind;

uint64_t JobShards::cut_bytes() const {
  uint64_t bytes = 0;
  for (const auto& shard : shards_) bytes += pipeline::StateCut::bytes_of(*shard);
  return bytes;
}

Result<JobShards::Cuts> JobShards::begin_cut(PipelineHost& host, uint32_t round) const {
  Cuts cuts;
  for (const auto& shard : shards_) {
    auto cut = pipeline::StateCut::create(*shard, round);
    if (!cut) return cut.error();
    cuts.push_back(std::move(*cut));
  }
  continue_cut(host, cuts);
  return cuts;
}

void JobShards::continue_cut(PipelineHost& host, const Cuts& cuts) const {
  PBOX_CHECK(cuts.size() == shards_.size());  // cuts of a former opening point into freed shards
  constexpr uint32_t kCommands = 4;           // each takes a pipeline a millisecond at most
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const auto& cut = cuts[index];
    for (uint32_t command = 0; command < kCommands; ++command) {
      if (cut->copied() + cut->missed() == cut->chunk_count()) break;
      host.execute(pipelines_[index],
                   {.kind = CommandKind::kCut, .shard = shards_[index].get(), .cut = cut.get()});
    }
  }
}

void JobShards::end_cut(PipelineHost& host) const {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kCut, .shard = shards_[index].get()});
  }
}

snapshot::PartHead Job::part_head() const {
  snapshot::PartHead head{.job = spec_.name,
                          .part = spec_.part,
                          .parts = spec_.parts,
                          .chunk_bytes = spec_.chunk_bytes,
                          .optimizer = spec_.optimizer.kind,
                          .tensors = {}};
  for (const TensorSpec& tensor : spec_.tensors) {
    head.tensors.push_back({tensor.name, tensor.first_element, tensor.elements, tensor.dtype});
  }
  return head;
}

// Chunks whose weights some rank already has go on with those weights.
void Job::begin_with_snapshot(const JobShards::Shards& shards) const {
  const auto shard_of = [&](uint32_t chunk) -> pipeline::JobShard& {
    return *shards[shards_.chunk_pipeline()[chunk]];
  };
  if (restored_) {
    for (const auto& chunk : restored_->chunks) {
      if (!starts_.empty() && !starts_[chunk.chunk].begins()) continue;
      pipeline::begin_from_snapshot(shard_of(chunk.chunk), chunk);
    }
  }
  if (!optimizer_state_) return;
  for (const auto& chunk : optimizer_state_->chunks) {
    if (starts_.empty() || !starts_[chunk.chunk].is_copied()) continue;
    pipeline::adopt_optimizer_state(shard_of(chunk.chunk), chunk);
  }
}

}  // namespace pbox::control
