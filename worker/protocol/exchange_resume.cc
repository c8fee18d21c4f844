// From one session to the next.
#include <algorithm>

#include "nic/wire/chunk_layout.h"
#include "worker/protocol/exchange.h"

namespace pbox::worker {
void Exchange::forget_flight() {
  for (Lane& lane : lanes_) {
    lane.queue = {};
    lane.sending.clear();
    lane.to_probe.clear();
    lane.in_flight.clear();
    lane.pushed.clear();
    lane.outstanding_bytes = lane.path_bytes = 0;
    lane.deadline_ns = UINT64_MAX;
    lane.outgoing_begin = lane.outgoing_end = 0;
  }
  for (Chunk& chunk : chunks_) {
    chunk.in_flight = chunk.in_window = chunk.on_path = false;
    chunk.to_send = chunk.result_mask = 0;
    chunk.giving = chunk.announced = false;
  }
}

void Exchange::suspend() {
  forget_flight();
  suspended_ = true;
}

std::vector<uint32_t> Exchange::consumed_rounds() const {
  std::vector<uint32_t> rounds;
  rounds.reserve(chunks_.size());
  for (const Chunk& chunk : chunks_) rounds.push_back(chunk.round);
  return rounds;
}

Status Exchange::check_resumption(const SessionSpec& session) const {
  if (session.chunk_bytes != session_.chunk_bytes || session.open_rounds.size() != chunks_.size()) {
    return Error{ErrorCode::kMismatch,
                 "the box cuts the job into " + std::to_string(session.open_rounds.size()) +
                     " chunks of at most " + std::to_string(session.chunk_bytes) +
                     " bytes, before it was " + std::to_string(chunks_.size()) + " of " +
                     std::to_string(session_.chunk_bytes) + "; set chunk_bytes"};
  }
  for (size_t id = 0; id < chunks_.size() && !drops_rounds(); ++id) {
    const Chunk& chunk = chunks_[id];
    const int32_t ahead = wire::round_distance(session.open_rounds[id], chunk.round);
    if (ahead >= -1 && ahead <= 1) continue;
    return Error{ErrorCode::kWorkerLost,
                 "this rank was left behind: the box is in round " +
                     std::to_string(session.open_rounds[id]) + " of chunk " + std::to_string(id) +
                     ", this rank in round " + std::to_string(chunk.round) + "; start it again"};
  }
  for (const uint32_t id : session.give) {
    if (id < chunks_.size() && chunks_[id].in_shadow &&
        wire::round_distance(session.open_rounds[id], chunks_[id].round) == -1) {
      continue;
    }
    return Error{ErrorCode::kWorkerLost,
                 "the box needs a result of chunk " + std::to_string(id) +
                     " back that this rank no longer has; start the job again"};
  }
  return ok_status();
}

Status Exchange::resume(const SessionSpec& session) {
  PBOX_CHECK(suspended_);
  if (Status status = check_resumption(session); !status) return status;
  session_ = session;
  open_lanes();
  suspended_ = false;
  for (const uint32_t id : session.give) {
    Chunk& chunk = chunks_[id];
    if (chunk.giving) continue;
    chunk.giving = true;
    lanes_[chunk.pipeline].queue.push(id, kGivePriority);
  }
  for (Tensor& tensor : tensors_) tensor.unannounced = tensor.chunks_left;
  for (uint32_t id = 0; id < chunks_.size(); ++id) {
    Chunk& chunk = chunks_[id];
    chunk.pulls_first = !chunk.giving && (chunk.pushed || session.open_rounds[id] != chunk.round);
    if (chunk.giving || !is_pending(chunk)) continue;
    lanes_[chunk.pipeline].queue.push(id, tensors_[chunk.tensor].priority);
  }
  return ok_status();
}

void Exchange::set_generation(uint16_t generation) {
  session_.generation = generation;
  for (Lane& lane : lanes_) {
    for (size_t index = lane.outgoing_begin; index < lane.outgoing_end; ++index) {
      nic::TxPacket& packet = lane.outgoing[index];
      packet.header.generation = generation;
      packet.tag = wire::make_tag(session_.tag, packet.header, packet.payload);
    }
  }
}

}  // namespace pbox::worker
