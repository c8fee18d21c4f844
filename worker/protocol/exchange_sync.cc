// What the job's consistency model changes on a worker: which results answer a push, and, where
// reads are cached, when a push is done and what is handed out then.
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

uint64_t Exchange::cache_bytes(const SessionSpec& session, const std::vector<TensorSpec>& tensors) {
  if (!caches_reads(session.sync)) return 0;
  return ReadCache::footprint_bytes(cached_chunks(session, tensors), session.sync.staleness);
}

void Exchange::open_cache(const std::vector<TensorSpec>& tensors) {
  if (!caches_reads(session_.sync)) return;
  cache_.emplace(cached_chunks(session_, tensors), session_.sync.staleness, session_.gradient_scale,
                 shadow_);
}

bool Exchange::is_current(const Chunk& chunk, const wire::Header& header) const {
  const bool is_result = header.type() == wire::PacketType::kResult;
  if (is_result && reads_cache(chunk)) return true;
  if (!chunk.in_flight) return false;
  const int32_t ahead = wire::round_distance(header.round, chunk.flight_round);
  if (!is_result) return ahead == 0;
  // Who was dropped takes what a later round has made. It may know already that its push comes too
  // late; then what it has read by now is later still.
  if (drops_rounds()) return ahead >= 0 && wire::round_distance(header.round + 1, chunk.clock) >= 0;
  // A round of initial weights is like any other of BSP. After it the box never has more of ours
  // than what is in flight; a result that has less is an answer to an earlier push.
  if (chunk.flight_round == 0 || !wire::applies_on_arrival(session_.sync.model)) return ahead == 0;
  return header.applied() == chunk.flight_round + 1 && ahead <= 0;
}

// Model drop: the round that an operation's gradient is for, the same one in all chunks.
//
// Who was dropped skips the rounds that are closed in every chunk. If it skipped chunk by chunk,
// ranks could wait for each other for ever: each for one chunk's quorum, with its push to the
// other's chunk to come after that. As it is, nobody is beyond the oldest round that is open
// anywhere; who is before it waits for nothing; and once all are in it, it has everybody's push.
uint32_t Exchange::round_of(uint32_t operation) {
  if (wire::round_distance(operation, newest_operation_) > 0) {
    newest_operation_ = operation;
    skip_closed_rounds();
  }
  return round_begun(operation);
}

uint32_t Exchange::round_begun(uint32_t operation) const {
  auto skip = skips_.end() - 1;
  while (skip != skips_.begin() && wire::round_distance(skip->operation, operation) > 0) --skip;
  return operation + skip->rounds;
}

void Exchange::skip_closed_rounds() {
  uint32_t open = chunks_.front().clock;
  for (const Chunk& chunk : chunks_) {
    if (wire::round_distance(chunk.clock, open) < 0) open = chunk.clock;
  }
  uint32_t slowest = newest_operation_;
  for (const Tensor& tensor : tensors_) {
    if (wire::round_distance(tensor.round, slowest) < 0) slowest = tensor.round;
  }
  const auto unused_yet = std::find_if(skips_.begin() + 1, skips_.end(), [&](const Skip& skip) {
    return wire::round_distance(skip.operation, slowest) > 0;
  });
  skips_.erase(skips_.begin(), unused_yet - 1);
  const uint32_t rounds = open - newest_operation_;
  if (wire::round_distance(rounds, skips_.back().rounds) <= 0) return;
  skips_.push_back({newest_operation_, rounds});
}

// All of a chunk's fragments are of one round, so those of an older one are in the way.
void Exchange::begin_anew(Chunk& chunk, uint32_t round) const {
  chunk.flight_round = round;
  chunk.result_mask = 0;
}

void Exchange::note_version(Chunk& chunk, const wire::Header& header) const {
  const uint32_t clock = header.round + 1;
  if (chunk.result_mask == 0 || wire::round_distance(clock, chunk.clock) < 0) chunk.clock = clock;
  const bool has_ours = wire::round_distance(header.applied(), chunk.round) > 0;
  chunk.is_dropped = drops_rounds() && (!has_ours || (chunk.result_mask != 0 && chunk.is_dropped));
}

// At any time, whether asked for or not.
void Exchange::on_cached_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed,
                                uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  const ReadCache::Version version{.clock = header.round + 1, .applied = header.applied()};
  const uint32_t pushed = chunk.round + (chunk.in_flight ? 1 : 0);
  if (wire::round_distance(version.clock, version.applied) > 0 ||
      wire::round_distance(version.applied, pushed) > 0) {
    ++statistics_.rejected_packets;  // of rounds that this worker has not pushed yet
    return;
  }
  if (!cache_->store(chunk_id(chunk), header.fragment, version, parsed.payload)) {
    ++statistics_.stale_packets;
    return;
  }
  statistics_.bytes_pulled += header.payload_bytes;
  if (!chunk.in_flight) return;
  const uint64_t bit = uint64_t{1} << header.fragment;
  if (version.applied == pushed && acknowledge(lane, chunk, bit, now_ns)) return;
  if (finish_if_readable(lane, chunk, now_ns)) return;
  if (chunk.waits_for_others && (held_mask(chunk) & bit) != 0) {  // the rest is due
    chunk.waits_for_others = false;
    arm(lane, chunk, now_ns);
  }
}

void Exchange::on_acknowledgement(Lane& lane, Chunk& chunk, uint64_t received_mask,
                                  uint64_t now_ns) {
  const bool is_news = !is_acknowledged(chunk);
  if (is_news && acknowledge(lane, chunk, received_mask & chunk.full_mask, now_ns)) return;
  if (!is_acknowledged(chunk)) {
    push_again(lane, chunk, chunk.full_mask & ~chunk.acknowledged_mask);
    return;
  }
  // An answer to the question for newer weights, or ESSP, where nobody asks.
  if (is_news && session_.sync.model != wire::SyncModel::kEssp) return;
  chunk.waits_for_others = chunk.missing_workers > 0;
  if (chunk.waits_for_others) leave_window(lane, chunk);
  arm(lane, chunk, now_ns);
}

// The box has these fragments of what is in flight. True if that ends it.
bool Exchange::acknowledge(Lane& lane, Chunk& chunk, uint64_t fragments, uint64_t now_ns) {
  if (is_acknowledged(chunk)) return false;
  chunk.acknowledged_mask |= fragments;
  if (!is_acknowledged(chunk)) return false;
  measure(lane, chunk, now_ns);
  chunk.probes = std::max(chunk.probes, 1u);  // what follows takes as long as the others do
  send_no_more(lane, chunk);
  drop_unsent(lane, chunk_id(chunk));
  if (finish_if_readable(lane, chunk, now_ns)) return true;
  const bool comes_unasked = session_.sync.model == wire::SyncModel::kEssp;
  if (!comes_unasked) lane.to_probe.push_back(chunk_id(chunk));
  arm(lane, chunk, now_ns);
  return false;
}

bool Exchange::finish_if_readable(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  if (!is_acknowledged(chunk) || !cache_->is_readable(chunk_id(chunk), chunk.flight_round)) {
    return false;
  }
  finish_chunk(lane, chunk, now_ns);
  return true;
}

// What the box need not send. All of it: the question is only what the box has of ours.
uint64_t Exchange::held_mask(const Chunk& chunk) const {
  if (session_.results_stay) return chunk.full_mask;
  if (!reads_cache(chunk)) return chunk.result_mask;
  return cache_->readable_mask(chunk_id(chunk), chunk.flight_round);
}

void Exchange::read_cache(const Tensor& tensor, Chunk& chunk) {
  const uint32_t id = chunk_id(chunk);
  chunk.clock = cache_->clock(id);
  cache_->read(id, chunk.flight_round, session_.learning_rate, tensor.input + chunk.offset,
               tensor.output + chunk.offset);
}

void Exchange::note_read(Tensor& tensor, const Chunk& chunk) const {
  tensor.staleness =
      std::min(tensor.staleness, wire::round_distance(chunk.clock, chunk.flight_round + 1));
  tensor.is_dropped = tensor.is_dropped || chunk.is_dropped;
}

void Exchange::count_read(Tensor& tensor) {
  ++tensor.round;
  statistics_.staleness.count(tensor.staleness);
  if (tensor.is_dropped) ++statistics_.dropped_rounds;
}

}  // namespace pbox::worker
