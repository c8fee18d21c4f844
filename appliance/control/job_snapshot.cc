// A part of a job in a snapshot: how it is cut, and how it begins with one.
#include <algorithm>

#include "appliance/control/job.h"

namespace pbox::appliance {

using pipeline::CommandKind;

uint64_t Job::cut_bytes() const {
  uint64_t bytes = 0;
  for (const auto& shard : shards_) bytes += pipeline::StateCut::bytes_of(*shard);
  return bytes;
}

Result<Job::Cuts> Job::begin_cut(PipelineHost& host, uint32_t round) const {
  Cuts cuts;
  for (const auto& shard : shards_) {
    auto cut = pipeline::StateCut::create(*shard, round);
    if (!cut) return cut.error();
    cuts.push_back(std::move(*cut));
  }
  look_at_cut(host, cuts);
  return cuts;
}

void Job::look_at_cut(PipelineHost& host, const Cuts& cuts) const {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(
        pipelines_[index],
        {.kind = CommandKind::kCut, .shard = shards_[index].get(), .cut = cuts[index].get()});
  }
}

void Job::end_cut(PipelineHost& host) const {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kCut, .shard = shards_[index].get()});
  }
}

std::vector<uint64_t> Job::incarnations() const {
  std::vector<uint64_t> incarnations;
  for (const Member& member : members_) {
    if (member.incarnation != 0) incarnations.push_back(member.incarnation);
  }
  return incarnations;
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

bool Job::begins_somewhere(const PartState* state) const {
  const auto starts = plan_starts(state);
  return starts && std::any_of(starts->begin(), starts->end(),
                               [](const ChunkStart& start) { return start.begins(); });
}

bool Job::lacks_moments(const PartState* state) const {
  if (spec_.mode != pipeline::Mode::kOptimize || !recovering()) return false;
  if (optimizer::state_floats_per_element(spec_.optimizer.kind) == 0) return false;
  const auto starts = plan_starts(state);
  return starts && std::any_of(starts->begin(), starts->end(), [](const ChunkStart& start) {
           return !start.begins() && !start.is_handed_over;
         });
}

// Chunks that some rank has had weights of go on with these.
void Job::begin_with_snapshot(std::vector<std::unique_ptr<pipeline::JobShard>>& shards) const {
  const auto is_copied = [this](uint32_t chunk) {
    return !starts_.empty() && starts_[chunk].copy_rank != pipeline::kNoRank;
  };
  if (restored) {
    for (const auto& chunk : restored->chunks) {
      if (!starts_.empty() && !starts_[chunk.chunk].begins()) continue;
      pipeline::begin_from_snapshot(*shards[chunk_pipeline_[chunk.chunk]], chunk);
    }
  }
  if (!moments) return;
  for (const auto& chunk : moments->chunks) {
    if (!is_copied(chunk.chunk)) continue;
    pipeline::adopt_optimizer_state(*shards[chunk_pipeline_[chunk.chunk]], chunk);
  }
}

}  // namespace pbox::appliance
