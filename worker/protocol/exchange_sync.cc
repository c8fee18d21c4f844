// The consistency models on the worker's side: which results answer a push. If reads are cached,
// also when a push is done and what a read returns.
#include <algorithm>

#include "base/check.h"
#include "worker/protocol/exchange.h"

namespace pbox::worker {
namespace {

std::vector<CachedChunk> cached_chunks(const SessionSpec& session,
                                       const std::vector<TensorSpec>& tensors) {
  std::vector<CachedChunk> chunks;
  for (const TensorSpec& tensor : tensors) {
    const uint64_t bytes = tensor.elements * wire::dtype_bytes(tensor.dtype);
    for (uint64_t offset = 0; offset < bytes; offset += session.chunk_bytes) {
      const auto length =
          static_cast<uint32_t>(std::min<uint64_t>(session.chunk_bytes, bytes - offset));
      chunks.push_back({length, session.fragment_bytes, tensor.dtype, tensor.lr_scale});
    }
  }
  return chunks;
}

}  // namespace

wire::SyncModel relaxed_model(const wire::SyncSpec& job, const std::vector<TensorSpec>& tensors) {
  wire::SyncModel model = job.model;
  for (const TensorSpec& tensor : tensors) {
    if (model == wire::SyncModel::kBsp && tensor.sync) model = tensor.sync->model;
  }
  return model;
}

uint64_t cache_bytes(const SessionSpec& session, const std::vector<TensorSpec>& tensors) {
  if (!wire::keeps_copies(session.sync)) return 0;
  return ReadCache::footprint_bytes(cached_chunks(session, tensors), session.sync.staleness);
}

void Exchange::open_cache(const std::vector<TensorSpec>& tensors) {
  if (!wire::keeps_copies(state_.session.sync)) return;
  state_.cache.emplace(cached_chunks(state_.session, tensors), state_.session.sync.staleness,
                       state_.session.gradient_scale, state_.session.guard, shadow_);
}

bool Exchange::is_current(const Chunk& chunk, const wire::Header& header) const {
  PBOX_DCHECK(header.chunk == state_.chunk_id(chunk));
  const bool is_result = header.type() == wire::PacketType::kResult;
  if (is_result && state_.reads_cache(chunk)) return true;
  if (!chunk.in_flight) return false;
  const int32_t ahead = wire::round_distance(header.round, chunk.flight_round);
  if (!is_result) return ahead == 0;
  // A worker whose push was dropped takes the result of a later round. It may know already that its
  // push is too late. Then the result it takes is not older than the one it has read.
  if (state_.drops_rounds())
    return ahead >= 0 && wire::round_distance(header.round + 1, chunk.clock) >= 0;
  // The round of initial weights is like any round of BSP. After it, the box never has more of this
  // worker's rounds than the one in flight. A result that includes fewer answers an earlier push.
  const wire::SyncModel model = state_.tensors[chunk.tensor].model;
  if (chunk.flight_round == 0 || !wire::applies_on_arrival(model)) return ahead == 0;
  const bool is_answer = header.applied() == chunk.flight_round + 1 && ahead <= 0;
  // If a former process of this rank made the push, answers to the fetch match it too. An answer
  // that left the box before the fetched weights may be older than these.
  const bool fetching = state_.tensors[chunk.tensor].fetching;
  return is_answer && (fetching || header.packet_number > chunk.fetched_number);
}

// Returns the round of an operation that begins.
uint32_t Exchange::start_round(uint32_t operation) {
  PBOX_DCHECK(state_.drops_rounds());
  if (skips_.is_newest(operation)) {
    uint32_t oldest_open = state_.chunks.front().clock;
    for (const Chunk& chunk : state_.chunks) {
      if (wire::round_distance(chunk.clock, oldest_open) < 0) oldest_open = chunk.clock;
    }
    uint32_t slowest = operation;
    for (const Tensor& tensor : state_.tensors) {
      if (wire::round_distance(tensor.round, slowest) < 0) slowest = tensor.round;
    }
    skips_.begin(operation, oldest_open, slowest);
  }
  return skips_.round(operation);
}

void Exchange::note_version(Chunk& chunk, const wire::Header& header) const {
  const uint32_t clock = header.round + 1;
  if (chunk.result_mask == 0 || wire::round_distance(clock, chunk.clock) < 0) chunk.clock = clock;
  const bool has_ours = wire::round_distance(header.applied(), chunk.round) > 0;
  chunk.is_dropped =
      state_.drops_rounds() && (!has_ours || (chunk.result_mask != 0 && chunk.is_dropped));
}

// Stores a result that arrives at any time, whether it was asked for or not.
void Exchange::on_cached_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed,
                                uint64_t now_ns) {
  PBOX_DCHECK(state_.cache.has_value());
  const wire::Header& header = parsed.header;
  const ReadCache::Version version{.clock = header.round + 1, .applied = header.applied()};
  const uint32_t pushed = chunk.round + (chunk.in_flight ? 1 : 0);
  if (wire::round_distance(version.clock, version.applied) > 0 ||
      wire::round_distance(version.applied, pushed) > 0) {
    ++state_.statistics.rejected_packets;  // it claims rounds that this worker has not pushed yet
    return;
  }
  if (!state_.cache->store(state_.chunk_id(chunk), header.fragment, version, parsed.payload)) {
    ++state_.statistics.stale_packets;
    return;
  }
  state_.statistics.bytes_pulled += header.payload_bytes;
  if (!chunk.in_flight) return;
  const uint64_t bit = uint64_t{1} << header.fragment;
  if (version.applied == pushed && acknowledge(lane, chunk, bit, now_ns)) return;
  if (finish_if_readable(lane, chunk, now_ns)) return;
  // The other fragments are due now.
  if (chunk.waits_for_others && (state_.held_mask(chunk) & bit) != 0) {
    lane.end_wait(chunk, (header.flags & wire::flag::kRetransmission) != 0, now_ns);
    lane.arm(chunk, now_ns);
  }
}

void Exchange::on_acknowledgement(Lane& lane, Chunk& chunk, uint64_t received_mask,
                                  uint64_t now_ns) {
  const bool is_news = !chunk.is_acknowledged();
  if (is_news && acknowledge(lane, chunk, received_mask & chunk.full_mask, now_ns)) return;
  if (!chunk.is_acknowledged()) {
    push_again(lane, chunk, chunk.full_mask & ~chunk.acknowledged_mask, now_ns);
    return;
  }
  // `is_news`: the push has just been acknowledged, so acknowledge() has asked for newer weights,
  // except with ESSP.
  if (is_news && state_.session.sync.model != wire::SyncModel::kEssp) return;
  if (chunk.missing_workers > 0) return lane.wait_for_others(chunk, now_ns);
  lane.end_wait(chunk, false, now_ns);
  lane.arm(chunk, now_ns);
}

// Notes that the box has these fragments of the push in flight. Returns whether that finished the
// chunk.
bool Exchange::acknowledge(Lane& lane, Chunk& chunk, uint64_t fragments, uint64_t now_ns) {
  if (chunk.is_acknowledged()) return false;
  PBOX_DCHECK(chunk.in_flight && (fragments & ~chunk.full_mask) == 0);
  chunk.acknowledged_mask |= fragments;
  if (!chunk.is_acknowledged()) return false;
  lane.measure(chunk, now_ns);
  chunk.probes = std::max(chunk.probes, 1u);  // newer weights take as long as other ranks take
  lane.cancel_sending(chunk);
  lane.drop_unsent(state_.chunk_id(chunk));
  if (finish_if_readable(lane, chunk, now_ns)) return true;
  const bool comes_unasked = state_.session.sync.model == wire::SyncModel::kEssp;
  if (comes_unasked) {
    lane.arm(chunk, now_ns);
  } else {
    lane.pull(chunk, now_ns);
  }
  return false;
}

bool Exchange::finish_if_readable(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  if (!chunk.is_acknowledged() ||
      !state_.cache->is_readable(state_.chunk_id(chunk), chunk.flight_round)) {
    return false;
  }
  finish_chunk(lane, chunk, now_ns);
  return true;
}

void Exchange::read_cache(const Tensor& tensor, Chunk& chunk) {
  const uint32_t id = state_.chunk_id(chunk);
  PBOX_DCHECK(state_.cache->is_readable(id, chunk.flight_round));
  chunk.clock = state_.cache->clock(id);
  state_.cache->read(id, chunk.flight_round, state_.session.learning_rate,
                     tensor.input + chunk.offset, tensor.output + chunk.offset);
}

void Exchange::count_read(Tensor& tensor) {
  PBOX_DCHECK(tensor.chunks_left == 0 && tensor.staleness <= 0);
  ++tensor.round;
  state_.statistics.staleness.count(tensor.staleness);
  if (tensor.is_dropped) ++state_.statistics.dropped_rounds;
}

}  // namespace pbox::worker
