// Takes an exchange from one session to the next.
#include <algorithm>

#include "base/check.h"
#include "worker/protocol/exchange.h"

namespace pbox::worker {

void Exchange::clear_flight() {
  for (Lane& lane : lanes_) lane.clear();
  for (Chunk& chunk : state_.chunks) {
    chunk.in_flight = chunk.in_window = chunk.on_path = chunk.waits_for_others = false;
    chunk.to_send = chunk.result_mask = chunk.fetched_number = 0;
    chunk.restoring = chunk.announced = false;
  }
}

void Exchange::suspend() {
  clear_flight();
  suspended_ = true;
  PBOX_DCHECK(!awaits_results());
}

std::vector<uint32_t> Exchange::consumed_rounds() const {
  std::vector<uint32_t> rounds;
  rounds.reserve(state_.chunks.size());
  for (const Chunk& chunk : state_.chunks) rounds.push_back(chunk.round);
  PBOX_DCHECK(rounds.size() == state_.chunks.size());
  return rounds;
}

Status Exchange::check_resumption(const SessionSpec& session) const {
  if (session.chunk_bytes != state_.session.chunk_bytes ||
      session.open_rounds.size() != state_.chunks.size()) {
    return Error{ErrorCode::kMismatch,
                 "the box divides the job into " + std::to_string(session.open_rounds.size()) +
                     " chunks of at most " + std::to_string(session.chunk_bytes) +
                     " bytes; when this rank joined there were " +
                     std::to_string(state_.chunks.size()) + " of " +
                     std::to_string(state_.session.chunk_bytes) +
                     "; set the option chunk_bytes, so that every box uses the same size"};
  }
  for (size_t id = 0; id < state_.chunks.size() && !state_.drops_rounds(); ++id) {
    const Chunk& chunk = state_.chunks[id];
    const int32_t ahead = wire::round_distance(session.open_rounds[id], chunk.round);
    if (ahead >= -1 && ahead <= 1) continue;
    return Error{ErrorCode::kWorkerLost,
                 "this rank was left behind: the box is in round " +
                     std::to_string(session.open_rounds[id]) + " of chunk " + std::to_string(id) +
                     ", this rank in round " + std::to_string(chunk.round) + "; start it again"};
  }
  for (const uint32_t id : session.chunks_to_restore) {
    if (id < state_.chunks.size() && state_.chunks[id].in_shadow &&
        wire::round_distance(session.open_rounds[id], state_.chunks[id].round) == -1) {
      continue;
    }
    return Error{ErrorCode::kWorkerLost,
                 "the box needs the last result of chunk " + std::to_string(id) +
                     ", which this rank no longer has; start the job again"};
  }
  return ok_status();
}

Status Exchange::resume(const SessionSpec& session) {
  PBOX_CHECK(suspended_);
  if (Status status = check_resumption(session); !status) return status;
  state_.session = session;
  if (state_.cache) state_.cache->set_fragment_bytes(session.fragment_bytes);
  open_lanes();
  suspended_ = false;
  for (const uint32_t id : session.chunks_to_restore) {
    PBOX_CHECK(id < state_.chunks.size());
    Chunk& chunk = state_.chunks[id];
    if (chunk.restoring) continue;
    chunk.restoring = true;
    state_.take_size(chunk);
    lane(chunk.pipeline).queue(id, kRestorePriority);
  }
  for (Tensor& tensor : state_.tensors) tensor.unannounced = tensor.chunks_left;
  PBOX_DCHECK(session.open_rounds.size() == state_.chunks.size());
  for (uint32_t id = 0; id < state_.chunks.size(); ++id) {
    Chunk& chunk = state_.chunks[id];
    PBOX_DCHECK(!chunk.in_flight && chunk.to_send == 0);
    chunk.pulls_first =
        !chunk.restoring && (chunk.pushed || session.open_rounds[id] != chunk.round);
    if (chunk.restoring || !is_pending(chunk)) continue;
    state_.take_size(chunk);
    lane(chunk.pipeline).queue(id, state_.tensors[chunk.tensor].priority);
  }
  return ok_status();
}

void Exchange::set_generation(uint16_t generation) {
  state_.session.generation = generation;
  for (Lane& lane : lanes_) lane.set_generation(generation);
}

}  // namespace pbox::worker
