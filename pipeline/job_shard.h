// The shard of one job on one pipeline: its chunks, their memory, and the sessions of the job's
// workers on this pipeline. The control thread builds it whole and hands it to the pipeline. Only
// the pipeline's core touches it until it is handed back.
//
// The slot machine. A chunk has a ring of two rounds, indexed by round & 1 and compared by full
// round number:
//   round == open_round      OPEN: fragments are claimed and added
//   round == open_round - 1  DONE: its result is kept, since a worker may still ask for it
//   older                    stale: every worker has consumed it, or open_round would not have
//                            opened
// Two slots suffice: a round finishes only with every worker's push, and a worker pushes a round
// only after it has consumed the result of the one before.
//
// Where pushes are applied on arrival (nic/wire/sync.h) this holds only for round 0, the initial
// weights; engine_sync.cc has the later rounds. With model `drop` a round finishes with only some
// of the workers, and only the newest result is ever sent. In a relaxed shard, BSP is `drop` with a
// quorum of all present ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/counter.h"
#include "base/numa_arena.h"
#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/wire/blocks.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/guard.h"
#include "nic/wire/header.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"
#include "pipeline/chunk_deltas.h"
#include "pipeline/chunk_zeros.h"
#include "pipeline/egress_queue.h"
#include "pipeline/observe/round_trace.h"
#include "pipeline/observe/straggler_ledger.h"
#include "pipeline/optimizer/optimizer.h"
#include "pipeline/session.h"
#include "pipeline/shaped_round.h"
#include "pipeline/state/uplink.h"
#include "pipeline/step_gate.h"
#include "pipeline/sync/chunk_sync.h"
#include "pipeline/sync/round_grace.h"
#include "pipeline/sync/rules.h"
#include "pipeline/table_rows.h"

namespace pbox::pipeline {

class StateCut;

inline constexpr uint32_t kNoRank = UINT32_MAX;

enum class Mode : uint8_t { kAggregate = 0, kOptimize = 1 };
enum class Reduction : uint8_t { kSum = 0, kMean = 1 };

struct ChunkSpec {
  uint32_t chunk = 0;  // job-local id
  uint32_t elements = 0;
  wire::Dtype dtype = wire::Dtype::kF32;  // on the wire. In blocks (blocks.h): see ChunkDeltas
  int32_t priority = 0;
  float lr_scale = 1;
  float weight_decay = 0;
  uint32_t row_bytes = 0;          // length of its table's rows; 0: the chunk is not of a table
  uint32_t row_skipped_bytes = 0;  // bytes of its first row that an earlier chunk has
  uint32_t first_round = 0;        // the round that is open at the start
  uint32_t copy_rank = kNoRank;    // see Chunk
  uint8_t uplink_lane = 0;         // relayed or replicated: the lane that sends it on
  // The tensor's own consistency model; nullopt: the shard's. A tensor has model `drop` only if the
  // shard has it.
  std::optional<wire::SyncSpec> sync = {};  // not kAdaptive
};

struct SessionSpec {
  uint32_t spi = 0;  // worker -> box; the way back is spi | wire::kSpiToWorker
  uint32_t credit_bytes = 0;
  bool present = true;  // false: the rank is excluded from the start
  // The far end of the worker's control connection. An address of any other host, or one that
  // differs after the first PUSH, counts only once the worker has echoed a challenge from there.
  // Nothing: every address counts.
  std::optional<nic::Endpoint> known_host = {};
  bool takes_zeros = false;  // the worker knows ZEROS, so zero fragments may be named to it
};

struct ShardSpec {
  std::string name;   // the job's, for people; at most limits::kJobNameBytesMax bytes
  uint32_t part = 0;  // index of the job's part
  uint32_t epoch = 1;
  uint16_t generation = 1;
  uint32_t fragment_bytes = limits::kFragmentBytesEthernet;
  Mode mode = Mode::kAggregate;
  // Chunks are slots, and their elements are bytes. Needs mode aggregate, delivery broadcast and
  // numerics fast; neither `partial` nor `relayed`.
  bool is_collective = false;
  Reduction reduction = Reduction::kSum;
  optimizer::OptimizerSpec optimizer;
  wire::SyncSpec sync;  // models other than BSP need mode optimize
  // A model other than BSP that some tensor of the job has, on any pipeline or box; BSP: no tensor
  // has one. Only needed where `sync` is BSP.
  wire::SyncModel relaxed_model = wire::SyncModel::kBsp;
  bool partial = false;  // ranks may be excluded, so contributors are counted
  // Pushes have weights (nic/wire/push_weight.h). Needs reduction mean, and neither tables nor
  // `relayed` nor pushes that are applied on arrival.
  bool weighted = false;
  // Sums go to another box before results leave (Uplink). In mode optimize that box has the
  // optimizer, and the initial weights go there too. Needs BSP and not `partial`.
  bool relayed = false;
  // States go to another box before results leave (Uplink). Needs mode optimize, and either BSP and
  // not `partial`, or model `drop`.
  bool replicated = false;
  // Number of workers whose gradients are in a whole sum; means are divided by it. It is more than
  // the number of ranks if the ranks are boxes. 0: the number of ranks.
  uint32_t workers = 0;
  uint32_t uplink_lanes = 1;  // relayed or replicated: the lanes to the other box
  bool gated = false;         // rounds wait for a verdict (StepGate). Needs mode optimize and BSP
  int report_fd = -1;         // an event of the control thread; -1: none
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;  // kOrdered needs BSP and no tables
  // kReject needs BSP; in mode optimize also `gated`.
  wire::GuardSpec guard = {};
  uint32_t job_chunk_count = 0;       // chunks of the job; bounds the chunk ids
  std::vector<ChunkSpec> chunks;      // the chunks of this pipeline
  std::vector<SessionSpec> sessions;  // by rank
  int numa_node = kAnyNumaNode;
  Hugepages hugepages = Hugepages::kIfFree;
  // kReadable: workers of this host may map the arena and read results there. Needs BSP for all
  // tensors, not `partial`, and delivery broadcast: then the first copy of a result stays as it is
  // until its rank has consumed it.
  Sharing sharing = Sharing::kPrivate;
};

// Return the bytes of arena that a shard of this spec takes: in total, for one chunk, and for what
// all chunks share. ShardMemory counts the memory outside of the arena too. Any thread.
size_t shard_footprint(const ShardSpec& spec);
size_t chunk_footprint(const ShardSpec& spec, const ChunkSpec& chunk);
size_t common_footprint(const ShardSpec& spec);

// The way of a relayed or replicated chunk to the other box. Before the first result of a relayed
// chunk in mode optimize, its initial weights are where the sum is.
struct ChunkUplink {
  uint8_t lane = 0;
  // Relayed: the open round's sum is with the lane, and its result may be replacing the last one.
  bool is_sent = false;
  // Relayed: the upper box's results, by round & 1. In mode aggregate both are one buffer. It keeps
  // a result as it came until the next one comes, because the upper box may need it back. Mode
  // optimize has two buffers: weights cannot be summed again, so the last ones stay until the next
  // are complete. Ranks are sent results from here unless they are to be narrowed.
  float* result[limits::kSlotRing] = {};

  bool is_relayed() const { return result[0] != nullptr; }
};

// One chunk. Its pointers lead into the shard's arena. The fields that every fragment touches come
// first, on one cache line.
struct alignas(kCacheLineBytes) Chunk {
  float* accumulator[limits::kSlotRing] = {};
  uint64_t* claimed = nullptr;    // fragments of the open round that were received, by rank
  uint64_t claimed_any = 0;       // fragments with a sum; the first push of another is stored
  uint64_t full_mask = 0;         // one bit per fragment of the chunk
  uint64_t rounds_finished = 0;   // since the job's start, also on other boxes
  uint32_t wire_bytes = 0;        // payload bytes of all fragments
  uint16_t complete_workers = 0;  // present ranks that have pushed all of the open round
  uint16_t fragment_count = 0;
  wire::Dtype dtype = wire::Dtype::kF32;
  uint32_t fragment_bytes = 0;  // payload bytes of all fragments but the last

  std::byte* result[limits::kSlotRing] = {};
  uint32_t id = 0, elements = 0;
  int32_t priority = 0;
  uint32_t fanned_out_rounds = 0;  // rounds whose result has left for every worker, modulo 2^32
  // In recovery only `copy_rank`'s part of the open round counts, which comes as STATE: the result
  // that this rank has consumed. Nothing is added. kNoRank: an ordinary round.
  uint32_t copy_rank = kNoRank;
  uint64_t first_round = 0;    // the oldest round whose result this box can have
  TableRows* table = nullptr;  // the rows of a table; null for other tensors
  // Mode optimize: the round of the weights from which the optimizer started with an empty state,
  // plus the skipped rounds. Modulo 2^64: with a snapshot's state it is before the first round.
  uint64_t stateless_round = 0;
  // By fragment: workers whose gradients a result holds, null unless ranks may be excluded; and the
  // sum of the weights that are in the open round's sum, null unless pushes have weights.
  uint16_t* contributors[limits::kSlotRing] = {};
  uint64_t* weight_sums = nullptr;
  uint32_t first_missing = 0;  // no present rank below has an incomplete push of the open round
  bool is_stepped = false;   // replicated: the open round is stepped, and waits for the backup box
  bool is_held = false;      // gated: the open round's sum is complete and waits for a verdict
  bool is_rejected = false;  // gated, guard `reject`: the open round contains an unsound value
  float* weights = nullptr;  // mode optimize. Replicated: a block (StateLayout) begins here
  // Replicated, relaxed, not narrowed: by round & 1, the weights of the last two results; else null
  float* published[limits::kSlotRing] = {};
  float* residue = nullptr;  // in blocks, mode aggregate: what rounding has taken from results
  ChunkDeltas deltas;
  // Numerics `ordered`: pushes of the open round by rank, wire_bytes each. Otherwise null.
  std::byte* pushed = nullptr;
  // [floats][elements]; if pushes are applied on arrival, this for each fragment. Null: no state.
  float* optimizer_state = nullptr;
  uint32_t* pulled = nullptr;  // delivery `pull`: by rank, the open round at its last queued answer
  ChunkUplink up;
  float lr_scale = 1, weight_decay = 0;
  // Weights and optimizer state are a snapshot's: round 0 gives these, whatever rank 0 pushes.
  bool is_restored = false;
  sync::ChunkSync* sync = nullptr;  // null unless the shard is relaxed
  ShapedRound* shaped = nullptr;    // the slot's rounds, by round & 1; null in other jobs
  ChunkZeros zeros;

  // True if pushes after the initial weights are applied on arrival.
  bool applies_on_arrival() const { return sync != nullptr && sync->next != nullptr; }
  // Optimizer steps applied to `optimizer_state`; valid once the weights are loaded.
  uint64_t steps() const {
    PBOX_DCHECK(rounds_made() > 0);
    return rounds_made() - 1 - stateless_round;
  }
  // Rounds whose result is made, also if it is not published yet.
  uint64_t rounds_made() const { return rounds_finished + (is_stepped ? 1 : 0); }
  // Modulo 2^32, as on the wire.
  uint32_t open_round() const { return static_cast<uint32_t>(rounds_finished); }
  // True if each rank is in a round of its own. All share round 0, the initial weights.
  bool has_own_rounds() const { return applies_on_arrival() && rounds_finished > 0; }
  // The round that the rank pushes next, modulo 2^32.
  uint32_t next_round(uint32_t rank) const {
    PBOX_DCHECK(sync == nullptr || rounds_finished == 0 || sync->next != nullptr ||
                sync->pushed != nullptr);
    return has_own_rounds() ? static_cast<uint32_t>(sync->progress.next(rank)) : open_round();
  }
};

inline bool gives_deltas(const Chunk& chunk) {
  return chunk.deltas.master != nullptr;
}

// Returns whether the open round's result is replacing the last one, before the round has finished.
// Every rank has consumed the last one, but for a new process that has taken a rank's place and, in
// relaxed shards, ranks that are late.
inline bool is_replacing(const Chunk& chunk) {
  return chunk.is_stepped || chunk.up.is_sent;
}

// Relaxed shards: returns whether the open round waits for the backup box, while other ranks may
// still push or lack the last result. Until it has finished, the chunk takes no push and makes no
// reply.
inline bool waits_for_copy(const Chunk& chunk) {
  return chunk.is_stepped && chunk.sync != nullptr;
}

// Keeps the weights that the round of this slot has given, until two rounds later. Packets that a
// full port has refused may point at them.
inline void keep_published(Chunk& chunk, size_t slot) {
  if (chunk.published[slot] == nullptr) return;
  PBOX_DCHECK(chunk.sync != nullptr && chunk.weights != nullptr && slot < limits::kSlotRing);
  std::copy_n(chunk.weights, chunk.elements, chunk.published[slot]);
}

// Returns the last finished round of a slot.
inline const ShapedRound& finished_shape(const Chunk& chunk) {
  PBOX_DCHECK(chunk.shaped != nullptr && chunk.rounds_finished > 0);
  return chunk.shaped[(chunk.open_round() - 1) & 1];
}

// Returns the fragments of a result that are named to the rank, not sent. `round`: the result's.
inline uint64_t named_zeros(const Chunk& chunk, const Session& session, uint32_t round) {
  return session.takes_zeros ? chunk.zeros.results[round & 1] : 0;
}

class JobShard {
 public:
  // Memory for a shard.
  struct Reserved {
    NumaArena arena;
    std::unique_ptr<Prefault> prefault;  // null: none is under way
  };
  // Takes shard_footprint(spec). kResourceExhausted: there is not enough memory. Control thread, as
  // create().
  static Result<NumaArena> reserve(const ShardSpec& spec);
  // `reserved`: the arena is from reserve(), or empty. If it does not suit `spec`, which may have
  // changed since, another one is taken.
  static Result<std::unique_ptr<JobShard>> create(const ShardSpec& spec, Reserved reserved = {});

  // Returns nullptr if this pipeline does not own the chunk or the job has no such chunk.
  Chunk* find(uint32_t chunk_id) {
    if (chunk_id >= local_index_.size()) return nullptr;
    const uint32_t index = local_index_[chunk_id];
    PBOX_DCHECK(index == kNotOwned || index < chunks_.size());
    return index == kNotOwned ? nullptr : &chunks_[index];
  }

  // Cuts the chunk's open round into fragments of this type.
  void take_layout(Chunk& chunk, wire::Dtype dtype) const;
  // The number of a fragment's first element: fragments hold whole elements, or blocks.
  uint32_t fragment_offset_elements(const Chunk& chunk, uint32_t fragment) const {
    PBOX_DCHECK(fragment < chunk.fragment_count);
    return wire::payload_elements(chunk.dtype, fragment * chunk.fragment_bytes);
  }

  // Numerics `ordered`: where a rank's fragment is kept until all pushes of the round are in.
  std::byte* pushed(const Chunk& chunk, uint32_t rank, uint32_t fragment) const {
    PBOX_DCHECK(rank < worker_count() && fragment < chunk.fragment_count);
    return chunk.pushed + size_t{rank} * chunk.wire_bytes + size_t{fragment} * chunk.fragment_bytes;
  }

  // The number of elements in a fragment of the chunk. Its last block may have room for more.
  size_t fragment_elements(const Chunk& chunk, uint32_t fragment) const {
    PBOX_DCHECK(fragment < chunk.fragment_count);
    const uint32_t bytes = wire::fragment_length(chunk.wire_bytes, chunk.fragment_bytes, fragment);
    return std::min(wire::payload_elements(chunk.dtype, bytes),
                    chunk.elements - fragment_offset_elements(chunk, fragment));
  }
  // True if the pushes of the open round are kept until all of them are in.
  bool keeps_pushes(const Chunk& chunk) const {
    return numerics == wire::Numerics::kOrdered && chunk.copy_rank == kNoRank;
  }
  // True if some tensor of the job has a model other than BSP. Each chunk then has its ChunkSync,
  // and results leave as replies.
  bool is_relaxed() const { return relaxed_model != wire::SyncModel::kBsp; }
  // True if rounds may wait for a relay or a verdict once all pushes are in, or for the end of
  // their grace.
  bool finishes_later() const { return has_uplinks() || gate != nullptr || grace.is_reserved(); }
  bool has_uplinks() const { return !uplinks.empty(); }
  // True if the open round carries weights, not gradients.
  bool receives_weights(const Chunk& chunk) const {
    return mode == Mode::kOptimize && (chunk.rounds_finished == 0 || chunk.copy_rank != kNoRank);
  }

  // Models other than BSP: queues the chunk to leave for the rank. A reply of the chunk that is
  // already leaving for the rank is older, and is dropped.
  void queue_reply(Chunk& chunk, uint32_t rank);
  // The same for all ranks that are owed a reply already.
  void queue_replies(Chunk& chunk);
  // Models that apply on arrival: the rank's read is parked, or no longer is.
  void park(Chunk& chunk, uint32_t rank, uint64_t now_ns);
  void unpark(Chunk& chunk, uint32_t rank, uint64_t now_ns);
  // Returns the rank as a reader of the chunk. It reads after the last round that it has pushed.
  sync::Reader reader(const Chunk& chunk, uint32_t rank) const;

  std::vector<Chunk>& chunks() { return chunks_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::vector<Session>& sessions() { return sessions_; }
  const std::vector<Session>& sessions() const { return sessions_; }
  uint32_t worker_count() const { return static_cast<uint32_t>(sessions_.size()); }
  uint32_t present_count() const { return present_count_; }
  // Packets of this generation are accepted. kNoGeneration, which no packet has, while a change of
  // the membership is under way.
  static constexpr uint32_t kNoGeneration = UINT32_MAX;
  uint32_t accepted_generation = 1;
  // Packets of this generation are accepted from now on, unless a push was rejected.
  void accept_generation(uint32_t accepted) {
    accepted_generation = has_rejected() || has_mismatch() ? kNoGeneration : accepted;
  }
  // Mode aggregate, guard `reject`: the rank's push of nonfinite_chunk_round contains an unsound
  // value. No packet is accepted and no round finishes from now on: the control thread, which this
  // wakes, ends the job.
  void reject(const Session& session);
  bool has_rejected() const { return rejected_.load(std::memory_order_relaxed) != 0; }
  bool has_mismatch() const { return has_mismatch_.load(std::memory_order_relaxed); }
  // Returns the rank whose push was rejected; kNoRank if none was. Any thread.
  uint32_t rejected_rank() const {
    return rejected_.load(std::memory_order_acquire) - 1;  // kNoRank is 0 - 1
  }
  // Ranks disagree about a round of a slot. As with reject(), the control thread ends the job.
  void reject_shape(const ShapeMismatch& mismatch);
  // Any thread.
  std::optional<ShapeMismatch> mismatch() const;
  // The number of ranks that must have pushed all of the chunk's open round for it to finish.
  uint32_t workers_needed(const Chunk& chunk) const {
    PBOX_DCHECK(present_count_ <= worker_count());
    if (chunk.sync == nullptr || chunk.rounds_finished == 0) return present_count_;
    const wire::SyncSpec& spec = chunk.sync->spec;
    const bool may_drop = spec.model == wire::SyncModel::kDrop;
    return may_drop && spec.quorum < present_count_ ? spec.quorum : present_count_;
  }
  // The number of present ranks whose push of the chunk's open round is incomplete, and the lowest
  // of them; there must be one. The search goes on where it stopped, so that all searches of a
  // round together cost O(ranks).
  uint32_t missing_workers(const Chunk& chunk) const {
    PBOX_DCHECK(chunk.complete_workers <= present_count_);
    return present_count_ - chunk.complete_workers;
  }
  uint32_t first_missing_rank(Chunk& chunk) const;
  // Changes whether rounds wait for the rank. recount() follows for each chunk, before a packet is
  // accepted.
  void set_present(Session& session, bool present);
  // Brings the chunk's counts up to date after a change of this rank.
  void recount(Chunk& chunk, const Session& changed) const;
  const NumaArena& arena() const { return arena_; }
  uint32_t index_of(const Chunk& chunk) const {
    PBOX_DCHECK(&chunk >= chunks_.data() && &chunk < chunks_.data() + chunks_.size());
    return static_cast<uint32_t>(&chunk - chunks_.data());
  }
  size_t chunk_count() const { return chunks_.size(); }
  uint32_t job_chunk_count() const { return static_cast<uint32_t>(local_index_.size()); }
  // Any thread: these values never change.
  uint32_t chunk_id(uint32_t index) const {
    PBOX_DCHECK(index < chunks_.size());
    return chunks_[index].id;
  }
  uint32_t elements(uint32_t index) const {
    PBOX_DCHECK(index < chunks_.size());
    return chunks_[index].elements;
  }

  std::string name;
  uint32_t part = 0;
  uint32_t flight_number = 0;  // id in the pipeline's flight recorder, from 1; 0: not installed
  uint32_t epoch = 1;
  uint16_t generation = 1;
  uint32_t fragment_bytes = 0;
  Mode mode = Mode::kAggregate;
  bool is_collective = false;
  bool has_tables = false;
  Reduction reduction = Reduction::kSum;
  bool weighted = false;
  uint32_t workers = 0;  // as in ShardSpec, but never 0
  wire::Numerics numerics = wire::Numerics::kFast;
  bool partial = false;
  wire::GuardSpec guard;
  float value_limit = FLT_MAX;                            // guard.limit()
  uint64_t rounding_seed = 0;                             // used by chunks in blocks
  uint64_t element_count = 0;                             // elements of all chunks
  wire::SyncModel relaxed_model = wire::SyncModel::kBsp;  // see ShardSpec
  uint64_t draw_seed = 0;  // for the models that wait by chance; the same in all parts of the job
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  optimizer::OptimizerSpec optimizer;
  EgressQueue egress;
  StragglerLedger stragglers;
  SingleWriterCounter rounds_finished;

  // Models that apply on arrival.
  float* gradient = nullptr;       // one fragment's gradient, widened to f32
  uint32_t parked_count = 0;       // parked reads of all chunks
  uint64_t parked_changed_ns = 0;  // when `parked_count` last changed
  SingleWriterCounter pulls, pulls_delayed, parked_ns, lead_rounds;
  SingleWriterCounter lead_sum;  // the readers' rounds ahead of the slowest rank, over all pulls
  sync::ReplyCursor reply_cursor;
  EgressPlace reply_place;  // place of reply_cursor.chunk

  sync::RoundGrace grace;          // reserved with model `drop` only
  SingleWriterCounter rounds_cut;  // rounds of chunks that have ended with their grace

  RoundTrace* trace = nullptr;  // null: no trace is requested
  // By lane; empty: neither relayed nor replicated.
  std::vector<std::unique_ptr<Uplink>> uplinks;
  std::unique_ptr<StepGate> gate;  // null: rounds need no verdict
  // Null: no snapshot is in progress. Mode optimize only.
  StateCut* cut = nullptr;

  uint32_t weight = 1;  // see egress_turns.h; the same in all shards of a tenant

 private:
  static constexpr uint32_t kNotOwned = UINT32_MAX;

  void count_parked(uint64_t now_ns);
  void lay_out(const ShardSpec& spec);
  void lay_out_chunk(const ShardSpec& job, const ChunkSpec& spec, Chunk& chunk);
  void lay_out_blocks(const ChunkSpec& spec, Chunk& chunk);
  void lay_out_weights(const ShardSpec& job, const ChunkSpec& spec, Chunk& chunk);
  void lay_out_relayed(const ShardSpec& job, const ChunkSpec& spec, Chunk& chunk);
  void lay_out_sync(const wire::SyncSpec& spec, Chunk& chunk);
  void open_uplinks(const ShardSpec& spec);
  void lay_out_table(const ChunkSpec& spec, const wire::SyncSpec& sync, Chunk& chunk);
  void expect_copy(Chunk& chunk, uint32_t rank);

  NumaArena arena_;
  std::unique_ptr<Prefault> prefault_;  // the arena gets its pages
  std::vector<Chunk> chunks_;
  std::vector<Session> sessions_;
  uint32_t present_count_ = 0;
  int report_fd_ = -1;
  std::atomic<uint32_t> rejected_{0};  // rank + 1; 0: no push was rejected
  ShapeMismatch mismatch_;             // valid if has_mismatch_
  std::atomic<bool> has_mismatch_{false};
  std::vector<uint32_t> local_index_;  // chunk id -> index in chunks_, or kNotOwned
};

}  // namespace pbox::pipeline
