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
// weights; engine_sync.cc handles the later rounds. With model `drop` a round finishes with only
// some of the workers, and only the newest result is ever sent. In a relaxed shard a tensor with
// BSP is treated like one with `drop` whose quorum is all present ranks.
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
  wire::Dtype dtype = wire::Dtype::kF32;  // type on the wire; for blocks see ChunkDeltas
  int32_t priority = 0;
  float lr_scale = 1;
  float weight_decay = 0;
  uint32_t row_bytes = 0;          // length of its table's rows; 0: the tensor is not a table
  uint32_t row_skipped_bytes = 0;  // bytes of its first row that lie in earlier chunks
  uint32_t first_round = 0;        // the round that is open at the start
  uint32_t copy_rank = kNoRank;    // see Chunk::copy_rank
  uint8_t uplink_lane = 0;         // if relayed or replicated: index of the lane that sends it on
  // The tensor's own consistency model; nullopt: the shard's. A tensor has model `drop` only if the
  // shard has it.
  std::optional<wire::SyncSpec> sync = {};  // never kAdaptive
};

struct SessionSpec {
  uint32_t spi = 0;  // in packets to the box; packets to the worker have spi | wire::kSpiToWorker
  uint32_t credit_bytes = 0;
  bool present = true;  // false: the rank is excluded from the start
  // The worker's address on its control connection. Packets from another host, or from a new
  // address after the first PUSH, change the session's address only once the worker has echoed a
  // challenge from there. nullopt: the newest packet's address always counts.
  std::optional<nic::Endpoint> known_host = {};
  bool takes_zeros = false;  // the worker understands ZEROS, so zero fragments may be named to it
};

struct ShardSpec {
  std::string name;   // the job's name; at most limits::kJobNameBytesMax bytes
  uint32_t part = 0;  // index of the job's part
  uint32_t epoch = 1;
  uint16_t generation = 1;
  uint32_t fragment_bytes = limits::kFragmentBytesEthernet;
  Mode mode = Mode::kAggregate;
  // The job is one of collectives: chunks are slots, and their elements are bytes. Needs mode
  // aggregate, delivery broadcast and numerics fast; excludes `partial` and `relayed`.
  bool is_collective = false;
  Reduction reduction = Reduction::kSum;
  optimizer::OptimizerSpec optimizer;
  wire::SyncSpec sync;  // models other than BSP need mode optimize
  // A model other than BSP that some tensor of the job has, on any pipeline or box; kBsp if no
  // tensor has one. Only needed if `sync` is BSP.
  wire::SyncModel relaxed_model = wire::SyncModel::kBsp;
  bool partial = false;  // ranks may be excluded, so contributors are counted
  // Pushes have weights (nic/wire/push_weight.h). Needs reduction mean; excludes tables, `relayed`
  // and pushes that are applied on arrival.
  bool weighted = false;
  // Sums go to another box before results leave (Uplink). In mode optimize that box has the
  // optimizer, and the initial weights go there too. Needs BSP and not `partial`.
  bool relayed = false;
  // States go to another box before results leave (Uplink). Needs mode optimize, and either BSP and
  // not `partial`, or model `drop`.
  bool replicated = false;
  // Number of workers whose gradients are in a whole sum; means are divided by it. It is more than
  // the number of ranks if the ranks are boxes. 0 stands for the number of ranks.
  uint32_t workers = 0;
  uint32_t uplink_lanes = 1;  // if relayed or replicated: number of lanes to the other box
  bool gated = false;         // rounds wait for a verdict (StepGate). Needs mode optimize and BSP
  int report_fd = -1;         // event that wakes the control thread; -1: none
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;  // kOrdered needs BSP and no tables
  // Policy kReject needs BSP, and in mode optimize also `gated`.
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
// all chunks share. ShardMemory counts other memory too. Any thread may call them.
size_t shard_footprint(const ShardSpec& spec);
size_t chunk_footprint(const ShardSpec& spec, const ChunkSpec& chunk);
size_t common_footprint(const ShardSpec& spec);

// How a relayed or replicated chunk reaches the other box. Until the first result of a relayed
// chunk in mode optimize arrives, its initial weights are in the sum's buffer.
struct ChunkUplink {
  uint8_t lane = 0;  // index of the lane to the other box
  // Relayed: the lane has the open round's sum, and its result may be overwriting the last one.
  bool is_sent = false;
  // Relayed: the upper box's results, by round & 1. In mode aggregate both are one buffer. A result
  // stays in it unchanged until the next one arrives, because the upper box may need it back. Mode
  // optimize has two buffers: weights cannot be summed again, so the last ones stay until the next
  // are complete. Ranks are sent results from here unless results have to be narrowed.
  float* result[limits::kSlotRing] = {};

  bool is_relayed() const { return result[0] != nullptr; }
};

// One chunk. Its pointers point into the shard's arena. The fields that every fragment touches come
// first, on one cache line.
struct alignas(kCacheLineBytes) Chunk {
  float* accumulator[limits::kSlotRing] = {};
  uint64_t* claimed = nullptr;    // fragments of the open round that were received, by rank
  uint64_t claimed_any = 0;       // fragments that have a sum; a first push is stored, not added
  uint64_t full_mask = 0;         // one bit per fragment of the chunk
  uint64_t rounds_finished = 0;   // since the job's start, including rounds on other boxes
  uint32_t wire_bytes = 0;        // payload bytes of all fragments
  uint16_t complete_workers = 0;  // present ranks that have pushed all of the open round
  uint16_t fragment_count = 0;
  wire::Dtype dtype = wire::Dtype::kF32;
  uint32_t fragment_bytes = 0;  // payload bytes of all fragments but the last

  std::byte* result[limits::kSlotRing] = {};
  uint32_t id = 0, elements = 0;
  int32_t priority = 0;
  uint32_t fanned_out_rounds = 0;  // rounds whose result has left for every worker, modulo 2^32
  // In recovery: the rank that sends the open round's result, which it has consumed, back as STATE.
  // Only its packets count, and nothing is added. kNoRank in an ordinary round.
  uint32_t copy_rank = kNoRank;
  uint64_t first_round = 0;    // the oldest round whose result this box can have
  TableRows* table = nullptr;  // the rows of a table; null for other tensors
  // Mode optimize: rounds_made() - 1 minus the optimizer's steps. Each skipped round adds one.
  // Modulo 2^64, because a snapshot's state may have more steps than the job has rounds.
  uint64_t stateless_round = 0;
  // By round & 1 and fragment: number of workers whose gradients the result has; null: all.
  uint16_t* contributors[limits::kSlotRing] = {};
  // By fragment: sum of the weights of the open round's pushes; null if pushes have no weights.
  uint64_t* weight_sums = nullptr;
  uint32_t first_missing = 0;  // every present rank below it has pushed all of the open round
  bool is_stepped = false;   // replicated: the open round is stepped, and waits for the backup box
  bool is_held = false;      // gated: the open round's sum is complete and waits for a verdict
  bool is_rejected = false;  // gated, guard `reject`: the open round contains an unsound value
  float* weights = nullptr;  // mode optimize; if replicated, a block (StateLayout) begins here
  // By round & 1: weights of the last two results. Null unless replicated, relaxed, not narrowed.
  float* published[limits::kSlotRing] = {};
  float* residue = nullptr;  // in blocks, mode aggregate: what rounding has taken from results
  ChunkDeltas deltas;
  // Numerics `ordered`: pushes of the open round by rank, wire_bytes each. Otherwise null.
  std::byte* pushed = nullptr;
  // [floats][elements]; one such array per fragment if applied on arrival. Null: it has no state.
  float* optimizer_state = nullptr;
  uint32_t* pulled = nullptr;  // delivery `pull`: by rank, round open at its last queued answer
  ChunkUplink up;
  float lr_scale = 1, weight_decay = 0;
  // Weights and optimizer state are a snapshot's: round 0 returns them, whatever rank 0 pushes.
  bool is_restored = false;
  sync::ChunkSync* sync = nullptr;  // null unless the shard is relaxed
  ShapedRound* shaped = nullptr;    // jobs of collectives: rounds of the slot, by round & 1
  ChunkZeros zeros;

  // True if pushes after the initial weights are applied on arrival.
  bool applies_on_arrival() const { return sync != nullptr && sync->next != nullptr; }
  // Optimizer steps applied to `optimizer_state`; valid once the weights are loaded.
  uint64_t steps() const {
    PBOX_DCHECK(rounds_made() > 0);
    return rounds_made() - 1 - stateless_round;
  }
  // Rounds whose result is made, including one that is not published yet.
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

// Returns whether the open round's result is overwriting the last one, although the round has not
// finished. Every rank has consumed the last one, except a new process that has taken a rank's
// place and, in relaxed shards, ranks that are late.
inline bool is_replacing(const Chunk& chunk) {
  return chunk.is_stepped || chunk.up.is_sent;
}

// Relaxed shards: returns whether the open round waits for the backup box, while other ranks may
// still push or lack the last result. Until it has finished, the chunk takes no push and makes no
// reply.
inline bool waits_for_copy(const Chunk& chunk) {
  return chunk.is_stepped && chunk.sync != nullptr;
}

// Copies the weights that the round of this slot has made. The copy stays for two rounds, because
// packets that a full port has refused may point at it. Does nothing if the chunk keeps no copies.
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

// Returns the zero fragments of this round's result, which are named to the rank and not sent.
inline uint64_t named_zeros(const Chunk& chunk, const Session& session, uint32_t round) {
  return session.takes_zeros ? chunk.zeros.results[round & 1] : 0;
}

class JobShard {
 public:
  // Memory that is reserved for a shard.
  struct Reserved {
    NumaArena arena;
    std::unique_ptr<Prefault> prefault;  // null: the arena is not being prefaulted
  };
  // Takes shard_footprint(spec) bytes of memory. kResourceExhausted: there is not enough. The
  // control thread calls this and create().
  static Result<NumaArena> reserve(const ShardSpec& spec);
  // The arena in `reserved` is from reserve(), or empty. If it does not fit `spec`, which may have
  // changed since, a new one is taken.
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
  // Returns the index of a fragment's first element. Fragments hold whole elements, or blocks.
  uint32_t fragment_offset_elements(const Chunk& chunk, uint32_t fragment) const {
    PBOX_DCHECK(fragment < chunk.fragment_count);
    return wire::payload_elements(chunk.dtype, fragment * chunk.fragment_bytes);
  }

  // Numerics `ordered`: returns where a rank's fragment is kept until all pushes have arrived.
  std::byte* pushed(const Chunk& chunk, uint32_t rank, uint32_t fragment) const {
    PBOX_DCHECK(rank < worker_count() && fragment < chunk.fragment_count);
    return chunk.pushed + size_t{rank} * chunk.wire_bytes + size_t{fragment} * chunk.fragment_bytes;
  }

  // Returns the number of elements in a fragment, whose last block may have room for more.
  size_t fragment_elements(const Chunk& chunk, uint32_t fragment) const {
    PBOX_DCHECK(fragment < chunk.fragment_count);
    const uint32_t bytes = wire::fragment_length(chunk.wire_bytes, chunk.fragment_bytes, fragment);
    return std::min(wire::payload_elements(chunk.dtype, bytes),
                    chunk.elements - fragment_offset_elements(chunk, fragment));
  }
  // True if the pushes of the open round are kept until all of them have arrived.
  bool keeps_pushes(const Chunk& chunk) const {
    return numerics == wire::Numerics::kOrdered && chunk.copy_rank == kNoRank;
  }
  // True if some tensor of the job has a model other than BSP. Each chunk then has its ChunkSync,
  // and results leave as replies.
  bool is_relaxed() const { return relaxed_model != wire::SyncModel::kBsp; }
  // True if rounds may wait for a relay, a verdict, or the end of their grace after their pushes.
  bool finishes_later() const { return has_uplinks() || gate != nullptr || grace.is_reserved(); }
  bool has_uplinks() const { return !uplinks.empty(); }
  // True if the open round carries weights, not gradients.
  bool receives_weights(const Chunk& chunk) const {
    return mode == Mode::kOptimize && (chunk.rounds_finished == 0 || chunk.copy_rank != kNoRank);
  }

  // Relaxed shards: queues a reply with the chunk's result for the rank. If an earlier reply of the
  // chunk to this rank is partly sent, its remaining fragments are not sent.
  void queue_reply(Chunk& chunk, uint32_t rank);
  // Queues the chunk for all ranks in its `replies_due`. The chunk is not in the queue yet.
  void queue_replies(Chunk& chunk);
  // Models that apply on arrival: park the rank's read, or end its parking.
  void park(Chunk& chunk, uint32_t rank, uint64_t now_ns);
  void unpark(Chunk& chunk, uint32_t rank, uint64_t now_ns);
  // Returns the rank's next read, which follows its last push, for the rules in sync/rules.h.
  sync::Reader reader(const Chunk& chunk, uint32_t rank) const;

  std::vector<Chunk>& chunks() { return chunks_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::vector<Session>& sessions() { return sessions_; }
  const std::vector<Session>& sessions() const { return sessions_; }
  uint32_t worker_count() const { return static_cast<uint32_t>(sessions_.size()); }
  uint32_t present_count() const { return present_count_; }
  // Only packets of this generation are accepted. While the membership changes it is kNoGeneration,
  // which no packet has.
  static constexpr uint32_t kNoGeneration = UINT32_MAX;
  uint32_t accepted_generation = 1;
  // Accepts packets of this generation from now on, unless reject() or reject_shape() was called.
  void accept_generation(uint32_t accepted) {
    accepted_generation = has_rejected() || has_mismatch() ? kNoGeneration : accepted;
  }
  // Mode aggregate, guard `reject`: called when the rank's push of Session::nonfinite_chunk_round
  // contains an unsound value. From now on no packet is accepted and no round finishes. Wakes the
  // control thread, which ends the job.
  void reject(const Session& session);
  bool has_rejected() const { return rejected_.load(std::memory_order_relaxed) != 0; }
  bool has_mismatch() const { return has_mismatch_.load(std::memory_order_relaxed); }
  // Returns the rank whose push was rejected; kNoRank if none was. Any thread may call it.
  uint32_t rejected_rank() const {
    return rejected_.load(std::memory_order_acquire) - 1;  // kNoRank is 0 - 1
  }
  // Called when ranks disagree about a round of a slot. Has the effects of reject().
  void reject_shape(const ShapeMismatch& mismatch);
  // Returns the mismatch that was reported, if any. Any thread may call it.
  std::optional<ShapeMismatch> mismatch() const;
  // Returns how many ranks must have pushed all of the chunk's open round for it to finish.
  uint32_t workers_needed(const Chunk& chunk) const {
    PBOX_DCHECK(present_count_ <= worker_count());
    if (chunk.sync == nullptr || chunk.rounds_finished == 0) return present_count_;
    const wire::SyncSpec& spec = chunk.sync->spec;
    const bool may_drop = spec.model == wire::SyncModel::kDrop;
    return may_drop && spec.quorum < present_count_ ? spec.quorum : present_count_;
  }
  // Returns the number of present ranks whose push of the chunk's open round is incomplete.
  uint32_t missing_workers(const Chunk& chunk) const {
    PBOX_DCHECK(chunk.complete_workers <= present_count_);
    return present_count_ - chunk.complete_workers;
  }
  // Returns the lowest of these ranks; there must be one. The search goes on where the last one
  // stopped, so that all searches of a round together cost O(ranks).
  uint32_t first_missing_rank(Chunk& chunk) const;
  // Sets whether rounds wait for the rank. Call recount() for each chunk before accepting packets.
  void set_present(Session& session, bool present);
  // Updates the chunk's counts after set_present() has changed this rank.
  void recount(Chunk& chunk, const Session& changed) const;
  const NumaArena& arena() const { return arena_; }
  uint32_t index_of(const Chunk& chunk) const {
    PBOX_DCHECK(&chunk >= chunks_.data() && &chunk < chunks_.data() + chunks_.size());
    return static_cast<uint32_t>(&chunk - chunks_.data());
  }
  size_t chunk_count() const { return chunks_.size(); }
  uint32_t job_chunk_count() const { return static_cast<uint32_t>(local_index_.size()); }
  // Any thread may call these two, because their values never change.
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
  uint64_t draw_seed = 0;  // for models that wait with a probability; equal in all parts of the job
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  optimizer::OptimizerSpec optimizer;
  EgressQueue egress;
  StragglerLedger stragglers;
  SingleWriterCounter rounds_finished;

  // The following fields are used by models that apply pushes on arrival.
  float* gradient = nullptr;       // one fragment's gradient, widened to f32
  uint32_t parked_count = 0;       // parked reads of all chunks
  uint64_t parked_changed_ns = 0;  // when `parked_count` last changed
  SingleWriterCounter pulls, pulls_delayed, parked_ns, lead_rounds;
  SingleWriterCounter lead_sum;  // sum over all pulls: rounds that the reader leads the slowest by
  sync::ReplyCursor reply_cursor;
  EgressPlace reply_place;  // place of reply_cursor.chunk

  sync::RoundGrace grace;          // reserved with model `drop` only
  SingleWriterCounter rounds_cut;  // chunk rounds that ended because their grace was over

  RoundTrace* trace = nullptr;  // null: no trace is requested
  // By lane; empty unless the shard is relayed or replicated.
  std::vector<std::unique_ptr<Uplink>> uplinks;
  std::unique_ptr<StepGate> gate;  // null: rounds need no verdict
  // Null if no snapshot is in progress. Only in mode optimize.
  StateCut* cut = nullptr;

  uint32_t weight = 1;  // weight of its tenant's turns to send (egress_turns.h)

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
  std::unique_ptr<Prefault> prefault_;  // faults in the arena's pages; may be null
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
