// The state that an Exchange shares with its lanes: the session, and every tensor and chunk. It
// belongs to the thread that drives the Exchange.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/zeros.h"
#include "worker/protocol/chunk_trace.h"
#include "worker/protocol/delta_weights.h"
#include "worker/protocol/encoded_tensor.h"
#include "worker/protocol/read_cache.h"
#include "worker/protocol/row_push.h"
#include "worker/protocol/row_stage.h"
#include "worker/protocol/session_spec.h"
#include "worker/protocol/slot_round.h"
#include "worker/protocol/statistics.h"
#include "worker/protocol/window.h"

namespace pbox::worker {

// Chunks that restore a result on the box go first: every worker waits for them.
inline constexpr int32_t kRestorePriority = INT32_MAX;
// A PULL is small, and goes before every push.
inline constexpr int32_t kProbePriority = INT32_MAX;

struct ExchangeChunk {
  uint64_t offset = 0;         // bytes into the tensor
  uint64_t shadow_offset = 0;  // bytes into its shadow: the same, unless the tensor is compressed
  uint64_t full_mask = 0;
  uint64_t push_mask = 0;          // fragments that a push consists of
  uint64_t to_send = 0;            // fragments still to be pushed
  uint64_t unsent = 0;             // fragments of the push that have not been sent yet
  uint64_t zero_mask = 0;          // fragments of the push that are zero: named, not sent
  uint64_t zero_result_mask = 0;   // fragments of the current or last result that were named zero
  uint64_t result_mask = 0;        // fragments of the current result that have arrived
  uint64_t acknowledged_mask = 0;  // cached reads: own fragments that the box is known to have
  uint64_t pushed_ns = 0;
  Window::Mark mark;
  uint64_t push_sequence = 0;  // position among the lane's pushes
  uint64_t path_sequence = 0;  // position among all that set out on the path (send_path.h)
  uint64_t deadline_ns = 0;
  uint64_t asked_ns = 0;        // when the PULL was sent whose answer named the missing ranks
  uint64_t fetched_number = 0;  // newest packet of the fetched result; 0: nothing was fetched
  uint32_t tensor = 0;
  uint32_t wire_bytes = 0;
  // Payload bytes that count in the window and on the path: those of the push or of its result,
  // whichever is expected to be more. Fragments that are zero in both are left out.
  uint32_t flight_bytes = 0;
  uint32_t fragment_bytes = 0;  // size of all fragments but the last, in this session
  uint32_t elements = 0;        // used by compressed tensors
  uint32_t round = 0;           // the next round whose result is needed
  uint32_t flight_round = 0;    // round of the push or result in flight
  uint32_t sent_us = 0;         // when a fragment was last sent; wraps
  uint32_t clock = 0;           // clock of the current result: the minimum over its fragments
  uint32_t probes = 0;          // PULLs sent since the push; sets the back-off
  uint32_t flight_index = 0;    // position in the lane's in_flight_, or in its waiting_
  uint16_t missing_workers = 0;
  uint16_t first_missing_rank = 0;
  uint16_t last_percent = 0;           // rounds that first_missing_rank finished last, in %
  uint32_t waited_ms = 0;              // how long the box has waited for first_missing_rank
  uint16_t contributors = UINT16_MAX;  // minimum over the fragments that have arrived
  uint8_t pipeline = 0;
  uint8_t flight_packets = 0;  // packets, counted like flight_bytes
  bool in_flight = false;
  bool in_window = false;      // counts against the box's credit
  bool on_path = false;        // in the window, and may still be on its way
  bool is_measurable = false;  // the time from push to result shows the path's and the ranks' time
  bool retransmitting = false;
  bool is_portion = false;        // a PULL follows to_send, because there was no credit for all
  bool waits_for_others = false;  // the box has all of its push and waits for other ranks
  bool restoring = false;    // sends the previous round's result to the box before it continues
  bool pulls_first = false;  // the box may already have the push, or even the result
  bool pushed = false;       // some of `round` was pushed, in this session or an earlier one
  bool fetched = false;
  bool is_dropped = false;  // some of the push is missing from the current result
  bool overtaken = false;   // results of chunks pushed later have arrived
  bool in_shadow = false;   // a shadow holds the previous round's result
  bool announced = false;   // delivery by pull: the result can be pulled
  bool is_encoded = false;  // compressed tensors: the push of `round` is encoded
  bool is_full = false;     // with deltas: weights are in flight, not a delta

  bool is_acknowledged() const {
    PBOX_DCHECK((acknowledged_mask & ~full_mask) == 0);
    return acknowledged_mask == full_mask;
  }
  // A result's fragments are all of one round, so those of an older round are discarded.
  void restart_result(uint32_t new_round) {
    flight_round = new_round;
    result_mask = 0;
  }
};

struct ExchangeTensor {
  uint32_t first_chunk = 0;
  uint32_t chunk_count = 0;
  uint32_t chunks_left = 0;
  uint32_t unannounced = 0;  // subset of chunks_left; at 0 all announced chunks are pulled
  uint32_t round = 0;
  uint16_t contributors = UINT16_MAX;  // the active operation's minimum so far
  uint16_t last_contributors = UINT16_MAX;
  int32_t staleness = 0;    // the active operation's minimum so far
  bool is_dropped = false;  // some of the gradient is missing from the result
  int32_t own_priority = 0;
  int32_t priority = 0;                           // the active operation's
  uint16_t weight_code = 0;                       // see Operation
  wire::Dtype dtype = wire::Dtype::kF32;          // the payloads' type
  std::optional<EncodedTensor> encoded;           // set if the tensor is compressed
  std::optional<DeltaWeights> deltas;             // set if, in addition, its results are deltas
  wire::SyncModel model = wire::SyncModel::kBsp;  // as registered
  bool is_votes = false;                          // see TensorSpec
  bool fetching = false;
  uint32_t row_bytes = 0;               // bytes of a row of a table; 0 for other tensors
  uint64_t first_byte = 0;              // a piece's offset in its tensor
  std::shared_ptr<const RowPush> rows;  // rows of a table that the active operation pushes, or null
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // For slots: the round of the active operation, or of the last one; and the last round that was
  // consumed. Null before the first round, and for other tensors.
  std::shared_ptr<const SlotRound> slot, consumed_slot;
  // Indexed by round & 1; both may be the same. Null: no shadow is kept.
  std::array<std::byte*, 2> shadow{};

  bool is_table() const { return row_bytes > 0; }
  // The input must outlive the first fragments of a result that is written over it, so they are
  // staged in the shadow.
  bool is_staged(const ExchangeChunk& chunk) const {
    PBOX_DCHECK(chunk.full_mask != 0);
    return input == output && chunk.full_mask > 1;
  }
  void note_read(const ExchangeChunk& chunk) {
    staleness = std::min(staleness, wire::round_distance(chunk.clock, chunk.flight_round + 1));
    is_dropped = is_dropped || chunk.is_dropped;
  }
};

struct ExchangeState {
  SessionSpec session;
  std::vector<ExchangeTensor> tensors;
  std::vector<ExchangeChunk> chunks;
  std::vector<RowStage> stages;    // by chunk; empty if no tensor is a table
  std::optional<ReadCache> cache;  // set if reads are cached
  ChunkTrace trace;
  Statistics statistics;
  Rng rng = Rng(1);
  bool out_of_cache = false;  // tensors do not stay in the CPU's caches between uses

  uint32_t chunk_id(const ExchangeChunk& chunk) const {
    PBOX_DCHECK(&chunk >= chunks.data() && &chunk < chunks.data() + chunks.size());
    return static_cast<uint32_t>(&chunk - chunks.data());
  }
  int32_t priority(const ExchangeChunk& chunk) const {
    PBOX_DCHECK(chunk.tensor < tensors.size());
    return chunk.restoring ? kRestorePriority : tensors[chunk.tensor].priority;
  }
  // Returns the slot's round in flight, or the next one; null if the chunk belongs to no slot.
  const SlotRound* slot(const ExchangeChunk& chunk) const {
    const ExchangeTensor& tensor = tensors[chunk.tensor];
    return chunk.restoring ? tensor.consumed_slot.get() : tensor.slot.get();
  }
  // Returns the type of the payloads that are in flight, or will be next.
  wire::Dtype payload_dtype(const ExchangeChunk& chunk) const {
    return chunk.is_full ? wire::Dtype::kF32 : tensors[chunk.tensor].dtype;
  }
  void set_size(ExchangeChunk& chunk, uint32_t bytes) const {
    chunk.wire_bytes = bytes;
    chunk.fragment_bytes = wire::fragment_bytes_of(payload_dtype(chunk), session.fragment_bytes);
    const uint32_t fragments = bytes == 0 ? 1 : wire::fragment_count(bytes, chunk.fragment_bytes);
    chunk.push_mask = chunk.full_mask = wire::full_mask(fragments);
    chunk.zero_mask = chunk.zero_result_mask = 0;
  }
  // Sets whether a chunk of a tensor with deltas exchanges weights in full, now or next.
  void set_full(ExchangeChunk& chunk, bool is_full) const {
    PBOX_DCHECK(tensors[chunk.tensor].deltas && chunk.to_send == 0);
    chunk.is_full = is_full;
    chunk.result_mask = 0;
    set_size(chunk, wire::payload_bytes(payload_dtype(chunk), chunk.elements));
  }
  // Returns whether the chunk pushes or fetches weights next. Initial weights count too.
  bool carries_weights(const ExchangeChunk& chunk) const {
    return chunk.restoring || tensors[chunk.tensor].fetching || chunk.round == 0;
  }
  // Returns whether the chunk's push is done, and it waits for weights in full.
  bool awaits_full(const ExchangeChunk& chunk) const {
    return chunk.is_full && !carries_weights(chunk);
  }
  // Gives a chunk that is not in flight the size of what it pushes or fetches next, if that varies.
  void take_size(ExchangeChunk& chunk) const {
    if (tensors[chunk.tensor].deltas) return set_full(chunk, carries_weights(chunk));
    const SlotRound* next = slot(chunk);
    if (next == nullptr) return;
    PBOX_DCHECK(!chunk.in_flight && chunk.to_send == 0 && chunk.offset == 0);
    PBOX_DCHECK(next->bytes <= session.chunk_bytes);
    set_size(chunk, next->bytes);
    if (pushes_nothing(chunk)) chunk.push_mask = chunk.full_mask & ~(chunk.full_mask >> 1);
  }
  // Returns whether the push says that this rank has no data. STATE carries a result's data.
  bool pushes_nothing(const ExchangeChunk& chunk) const {
    const SlotRound* round = slot(chunk);
    return round != nullptr && (chunk.restoring ? round->bytes == 0 : round->is_empty);
  }
  // Return how the rows of a table lie in the chunk, and which row of the tensor comes first in it.
  wire::RowLayout row_layout(const ExchangeChunk& chunk) const {
    const ExchangeTensor& tensor = tensors[chunk.tensor];
    PBOX_DCHECK(tensor.is_table());
    return {.row_bytes = tensor.row_bytes,
            .skipped_bytes =
                static_cast<uint32_t>((tensor.first_byte + chunk.offset) % tensor.row_bytes),
            .chunk_bytes = chunk.wire_bytes,
            .fragment_bytes = session.fragment_bytes};
  }
  uint64_t first_row(const ExchangeChunk& chunk) const {
    const ExchangeTensor& tensor = tensors[chunk.tensor];
    return (tensor.first_byte + chunk.offset) / tensor.row_bytes;
  }
  // Returns whether the chunk's push in flight, or the next one, is by rows.
  bool pushes_rows(const ExchangeChunk& chunk) const {
    return !chunk.restoring && tensors[chunk.tensor].rows != nullptr;
  }
  // Returns whether ZEROS may name fragments of the chunk. Relaxed jobs, tables and slots have no
  // ZEROS, because their pushes and results have rules of their own.
  bool may_name_zeros(const ExchangeChunk& chunk) const {
    const ExchangeTensor& tensor = tensors[chunk.tensor];
    return session.takes_zeros && !session.is_relaxed() && !tensor.is_table() &&
           tensor.slot == nullptr;
  }
  // Returns whether zero fragments of the chunk's push are named, not sent. STATE is sent whole.
  bool names_zeros(const ExchangeChunk& chunk) const {
    return may_name_zeros(chunk) && !chunk.restoring;
  }
  // Finds out which of these fragments of the push are zero. Encodes the push if need be.
  void find_zeros(ExchangeChunk& chunk, uint64_t fragments) {
    PBOX_DCHECK(names_zeros(chunk) && (fragments & ~chunk.full_mask) == 0);
    const uint64_t unknown = fragments & ~chunk.zero_mask;
    chunk.zero_mask |=
        wire::zero_fragments(push(chunk), chunk.wire_bytes, chunk.fragment_bytes, unknown);
  }
  // Returns whether the chunk's result is kept in `stages` until it is complete. A fetch writes
  // directly to the output, because there is no earlier result to keep.
  bool stages_result(const ExchangeChunk& chunk) const {
    const ExchangeTensor& tensor = tensors[chunk.tensor];
    return tensor.is_table() && !tensor.fetching;
  }
  RowChunk row_chunk(const ExchangeChunk& chunk) const {
    PBOX_DCHECK(pushes_rows(chunk));
    return {row_layout(chunk), first_row(chunk), *tensors[chunk.tensor].rows};
  }
  // Returns the bytes of the result that the chunk restores.
  const std::byte* given_back(const ExchangeChunk& chunk) const {
    const ExchangeTensor& tensor = tensors[chunk.tensor];
    if (tensor.deltas) {
      const uint64_t first = chunk.offset / sizeof(float);
      PBOX_DCHECK(tensor.deltas->round(first) == chunk.round - 1);
      return reinterpret_cast<const std::byte*>(tensor.deltas->weights(first));
    }
    PBOX_DCHECK(tensor.shadow[0] != nullptr);
    return tensor.shadow[(chunk.round - 1) & 1] + chunk.shadow_offset;
  }
  // Returns the bytes of the chunk's push. Encodes them if that has not been done yet.
  const std::byte* push(ExchangeChunk& chunk) {
    ExchangeTensor& tensor = tensors[chunk.tensor];
    PBOX_DCHECK(tensor.input != nullptr);
    if (!tensor.encoded || chunk.is_full) return tensor.input + chunk.offset;
    const uint64_t first = chunk.offset / sizeof(float);
    if (!chunk.is_encoded) {
      PBOX_DCHECK(chunk.flight_round == chunk.round);
      tensor.encoded->encode(first, reinterpret_cast<const float*>(tensor.input) + first,
                             chunk.elements, chunk.round);
      chunk.is_encoded = true;
    }
    return tensor.encoded->push(first);
  }
  bool drops_rounds() const { return session.sync.model == wire::SyncModel::kDrop; }
  bool reads_cache(const ExchangeChunk& chunk) const { return cache && chunk.round > 0; }
  // Returns the fragments that the box need not send: all if only an acknowledgement is wanted.
  uint64_t held_mask(const ExchangeChunk& chunk) const {
    PBOX_DCHECK((chunk.result_mask & ~chunk.full_mask) == 0);
    if (session.ignores_results) return chunk.full_mask;
    if (!reads_cache(chunk)) return chunk.result_mask;
    return cache->readable_mask(chunk_id(chunk), chunk.flight_round);
  }
};

}  // namespace pbox::worker
