// What a part was at the box before: where its rounds go on, and how it leaves here.
#include <algorithm>

#include "appliance/control/job.h"

namespace pbox::appliance {
namespace {

// By chunk; 0: nothing is handed over.
std::vector<uint64_t> finished_rounds(const PartState& state, uint32_t chunk_count) {
  std::vector<uint64_t> finished(chunk_count, 0);
  for (const auto& chunk : state.chunks) finished[chunk.chunk] = chunk.rounds_finished;
  return finished;
}

}  // namespace

// Before it is known what becomes of chunks that nobody hands over.
Result<std::vector<ChunkStart>> Job::plan_starts(const PartState* state) const {
  const auto workers = stated();
  auto starts = plan_recovery(workers, chunk_count());
  if (!starts || state == nullptr) return starts;
  PBOX_CHECK(open_as_handed_over(workers, finished_rounds(*state, chunk_count()), *starts));
  return starts;
}

bool Job::continues(const PartState& state) const {
  std::vector<ChunkStart> starts(chunk_count());
  return open_as_handed_over(stated(), finished_rounds(state, chunk_count()), starts);
}

const Member* Job::newest_resuming() const {
  const Member* newest = nullptr;
  for (const Member& member : members_) {
    if (!member.resumes || !ready(member)) continue;
    if (newest == nullptr || member.epoch > newest->epoch) newest = &member;
  }
  return newest;
}

PartState Job::take_state(PipelineHost& host) {
  relay.reset();  // no more of what it is goes to the backup box
  PartState state;
  state.epoch = epoch_;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index],
                 {.kind = pipeline::CommandKind::kRemove, .shard = shards_[index].get()});
    for (const pipeline::Chunk& chunk : shards_[index]->chunks()) {
      if (auto kept = pipeline::state_of(*shards_[index], chunk)) {
        state.chunks.push_back(std::move(*kept));
      }
    }
    state.learning_rate = shards_[index]->optimizer.learning_rate;
  }
  std::sort(state.chunks.begin(), state.chunks.end(),
            [](const auto& one, const auto& other) { return one.chunk < other.chunk; });
  return state;
}

std::vector<size_t> Job::state_value_counts() const {
  std::vector<size_t> counts;
  for (const auto& chunk : cut_into_chunks(spec_)) {
    counts.push_back(pipeline::state_values(spec_.optimizer.kind, chunk.elements));
  }
  return counts;
}

uint64_t Job::rounds_finished() const {
  uint64_t rounds = 0;
  for (const auto& shard : shards_) rounds += shard->rounds_finished.get();
  return rounds;
}

}  // namespace pbox::appliance
