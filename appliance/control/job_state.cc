// What a part was at the box before: where its rounds go on, and how it leaves here.
#include <algorithm>

#include "appliance/control/job.h"
#include "appliance/control/sync_spec.h"

namespace pbox::appliance {
namespace {

// By chunk; 0: nothing is handed over.
std::vector<uint64_t> finished_rounds(const PartState& state, uint32_t chunk_count) {
  std::vector<uint64_t> finished(chunk_count, 0);
  for (const auto& chunk : state.chunks) finished[chunk.chunk] = chunk.rounds_finished;
  return finished;
}

// What a rank whose job's model is not BSP has consumed, against what it has pushed there.
bool is_where_left(const ConsumedRounds& worker, const pipeline::ChunkState& chunk,
                   wire::SyncModel model) {
  const uint32_t consumed = worker.rounds[chunk.chunk];
  if (!wire::applies_on_arrival(model)) {
    return wire::round_distance(static_cast<uint32_t>(chunk.rounds_finished), consumed) >= 0;
  }
  const uint64_t next = chunk.clocks[pipeline::kClocksPerRank * worker.rank];
  const int32_t behind = wire::round_distance(static_cast<uint32_t>(next), consumed);
  return next != UINT64_MAX && (behind == 0 || behind == 1);
}

}  // namespace

// Before it is known what becomes of chunks that nobody hands over.
Result<std::vector<ChunkStart>> Job::plan_starts(const PartState* state) const {
  const auto workers = stated();
  if (spec_.sync.model != wire::SyncModel::kBsp) return plan_starts_by_clocks(state);
  auto starts = plan_recovery(workers, chunk_count());
  if (!starts || state == nullptr) return starts;
  PBOX_CHECK(open_as_handed_over(workers, finished_rounds(*state, chunk_count()), *starts));
  return starts;
}

// No rank's copy says what the others' pushes have made of the weights since.
Result<std::vector<ChunkStart>> Job::plan_starts_by_clocks(const PartState* state) const {
  if (state == nullptr) {
    return Error{ErrorCode::kBoxLost, spec_.title() + ": the box that had its weights was lost, " +
                                          "and a job of sync.model " + to_string(spec_.sync.model) +
                                          " goes on from these alone; start all ranks again, "
                                          "from a checkpoint"};
  }
  std::vector<ChunkStart> starts(chunk_count());
  for (const auto& chunk : state->chunks) {
    starts[chunk.chunk] = {.round = static_cast<uint32_t>(chunk.rounds_finished),
                           .is_handed_over = true};
  }
  return starts;
}

bool Job::continues_by_clocks(const PartState& state) const {
  const auto workers = stated();
  const auto finished = finished_rounds(state, chunk_count());
  for (const auto& chunk : state.chunks) {
    if (chunk.fragment_bytes != state.chunks.front().fragment_bytes) return false;
    for (const ConsumedRounds& worker : workers) {
      if (!is_where_left(worker, chunk, spec_.sync.model)) return false;
    }
  }
  for (const ConsumedRounds& worker : workers) {
    for (uint32_t chunk = 0; chunk < finished.size(); ++chunk) {
      if (finished[chunk] == 0 && worker.rounds[chunk] != 0) return false;
    }
  }
  return true;
}

// One of that name may have been here before; and another box may err.
bool Job::has_shape_of(const PartState& state) const {
  const auto chunks = cut_into_chunks(spec_);
  return std::all_of(state.chunks.begin(), state.chunks.end(), [&](const auto& chunk) {
    if (chunk.chunk >= chunks.size()) return false;
    const pipeline::ChunkSpec& spec = chunks[chunk.chunk];
    const uint32_t bytes = spec.elements * wire::dtype_bytes(spec.dtype);
    return chunk.values.size() == pipeline::state_values(spec_.optimizer.kind, spec.elements) &&
           pipeline::has_valid_clocks(chunk, spec_.sync.model, spec_.world_size, bytes);
  });
}

bool Job::continues(const PartState& state) const {
  if (!has_shape_of(state)) return false;
  if (spec_.sync.model != wire::SyncModel::kBsp) return continues_by_clocks(state);
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
