#include "appliance/control/start_plan.h"

#include <algorithm>

#include "appliance/control/sync_spec.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::control {
namespace {

// Returns the number of finished rounds by chunk; 0 for chunks that are not handed over.
std::vector<uint64_t> finished_rounds(const PartState& state, uint32_t chunk_count) {
  std::vector<uint64_t> finished(chunk_count, 0);
  for (const auto& chunk : state.chunks) finished[chunk.chunk] = chunk.rounds_finished;
  return finished;
}

// For models other than BSP: returns whether what the rank has consumed agrees with what the
// previous owner has counted of the rank's pushes.
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

bool has_no_result(const Roster& roster) {
  const auto workers = roster.stated();
  return std::all_of(workers.begin(), workers.end(), [](const ConsumedRounds& worker) {
    return std::all_of(worker.rounds.begin(), worker.rounds.end(),
                       [](uint32_t round) { return round == 0; });
  });
}

// Plans the starts for models other than BSP. The copy of a rank lacks what other ranks have pushed
// since, so only a state that is handed over can continue the job.
Result<std::vector<ChunkStart>> plan_starts_by_clocks(const JobSpec& spec, const Roster& roster,
                                                      const PartState* state) {
  // The initial weights are still with rank 0, so nothing was lost.
  if (state == nullptr && has_no_result(roster)) {
    return std::vector<ChunkStart>(chunk_count(spec));
  }
  if (state == nullptr) {
    return Error{ErrorCode::kBoxLost,
                 spec.title() + ": the box that had its weights was lost. A job of sync.model " +
                     to_string(spec.relaxed_model) +
                     " cannot go on from the weights that its ranks hold; start all ranks again, "
                     "from a checkpoint"};
  }
  std::vector<ChunkStart> starts(chunk_count(spec));
  for (const auto& chunk : state->chunks) {
    starts[chunk.chunk] = {.round = static_cast<uint32_t>(chunk.rounds_finished),
                           .is_handed_over = true};
  }
  return starts;
}

bool continues_by_clocks(const JobSpec& spec, const Roster& roster, const PartState& state) {
  const auto workers = roster.stated();
  const auto finished = finished_rounds(state, chunk_count(spec));
  const auto specs = cut_into_chunks(spec);
  for (const auto& chunk : state.chunks) {
    if (chunk.fragment_bytes != state.chunks.front().fragment_bytes) return false;
    for (const ConsumedRounds& worker : workers) {
      if (!is_where_left(worker, chunk, specs[chunk.chunk].sync->model)) return false;
    }
  }
  for (const ConsumedRounds& worker : workers) {
    for (uint32_t chunk = 0; chunk < finished.size(); ++chunk) {
      if (finished[chunk] == 0 && worker.rounds[chunk] != 0) return false;
    }
  }
  return true;
}

// Checks a state that was handed over: it may belong to an earlier job of the same name, and the
// other box may be faulty.
bool has_shape_of(const JobSpec& job, const PartState& state) {
  if (state.models && !may_follow(registered_models(job), *state.models)) return false;
  const auto chunks = cut_into_chunks(job);
  return std::all_of(state.chunks.begin(), state.chunks.end(), [&](const auto& chunk) {
    if (chunk.chunk >= chunks.size()) return false;
    const pipeline::ChunkSpec& spec = chunks[chunk.chunk];
    return chunk.values.size() == pipeline::state_values(job.optimizer.kind, spec.elements) &&
           (job.is_relaxed() ? pipeline::has_valid_clocks(chunk, spec.sync->model, job.world_size,
                                                          spec.dtype, spec.elements)
                             : chunk.clocks.empty());
  });
}

}  // namespace

Result<std::vector<ChunkStart>> plan_starts(const JobSpec& spec, const Roster& roster,
                                            const PartState* state) {
  if (spec.is_relaxed()) return plan_starts_by_clocks(spec, roster, state);
  const auto workers = roster.stated();
  const uint32_t chunks = chunk_count(spec);
  auto starts = plan_recovery(workers, chunks);
  if (!starts || state == nullptr) return starts;
  // continues() has checked the rounds: with different rounds the weights would not be those of the
  // ranks.
  PBOX_CHECK(open_as_handed_over(workers, finished_rounds(*state, chunks), *starts));
  return starts;
}

Result<std::vector<ChunkStart>> plan_opening(const JobSpec& spec, const Roster& roster,
                                             const PartState* state) {
  const auto workers = roster.stated();
  if (workers.empty()) return std::vector<ChunkStart>();
  auto starts = plan_starts(spec, roster, state);
  if (!starts) return starts;
  Status opened = ok_status();
  if (spec.mode == pipeline::Mode::kOptimize) {
    opened = open_for_weights(workers, *starts);
  } else if (roster.has_newcomers()) {
    opened = open_for_newcomers(workers, chunk_counts(spec), *starts);
  }
  if (!opened) return opened.error();
  return starts;
}

bool continues(const JobSpec& spec, const Roster& roster, const PartState& state) {
  if (!has_shape_of(spec, state)) return false;
  if (spec.is_relaxed()) return continues_by_clocks(spec, roster, state);
  std::vector<ChunkStart> starts(chunk_count(spec));
  return open_as_handed_over(roster.stated(), finished_rounds(state, chunk_count(spec)), starts);
}

Result<std::vector<uint32_t>> beyond_recovery(const JobSpec& spec, const Roster& roster,
                                              const PartState* state) {
  std::vector<uint32_t> beyond;
  const auto workers = roster.stated();
  if (workers.empty()) return beyond;
  const auto starts = plan_starts(spec, roster, state);
  if (!starts) return starts.error();
  for (const ConsumedRounds& worker : workers) {
    if (is_beyond(worker, *starts)) beyond.push_back(worker.rank);
  }
  return beyond;
}

bool begins_somewhere(const JobSpec& spec, const Roster& roster, const PartState* state) {
  const auto starts = plan_starts(spec, roster, state);
  return starts && std::any_of(starts->begin(), starts->end(),
                               [](const ChunkStart& start) { return start.begins(); });
}

bool lacks_optimizer_state(const JobSpec& spec, const Roster& roster, const PartState* state) {
  if (spec.mode != pipeline::Mode::kOptimize || !roster.any_resumes()) return false;
  if (optimizer::state_floats_per_element(spec.optimizer.kind) == 0) return false;
  const auto starts = plan_starts(spec, roster, state);
  return starts && std::any_of(starts->begin(), starts->end(), [](const ChunkStart& start) {
           return !start.begins() && !start.is_handed_over;
         });
}

uint32_t chunk_count(const JobSpec& spec) {
  uint64_t count = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    count += wire::chunk_count(tensor.bytes(), spec.chunk_bytes);
  }
  return static_cast<uint32_t>(count);
}

std::vector<uint32_t> chunk_counts(const JobSpec& spec) {
  std::vector<uint32_t> counts;
  for (const TensorSpec& tensor : spec.tensors) {
    counts.push_back(static_cast<uint32_t>(wire::chunk_count(tensor.bytes(), spec.chunk_bytes)));
  }
  return counts;
}

std::vector<size_t> state_value_counts(const JobSpec& spec) {
  std::vector<size_t> counts;
  for (const auto& chunk : cut_into_chunks(spec)) {
    counts.push_back(pipeline::state_values(spec.optimizer.kind, chunk.elements));
  }
  return counts;
}

}  // namespace pbox::control
