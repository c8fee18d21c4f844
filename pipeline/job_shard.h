// What one pipeline owns of one job: its chunks, their memory, and the sessions of the job's
// workers on this pipeline. Built whole by the control thread, then handed to the pipeline and
// touched by that core alone until it is handed back.
//
// The slot machine. Per chunk a ring of two rounds, indexed by round & 1 and compared by full
// round:
//   round == open_round      OPEN: fragments are claimed and added
//   round == open_round - 1  DONE: its result is kept, since a worker may still ask for it
//   older                    stale: every worker has consumed it, or open_round would not have
//   opened
// Two slots suffice because finishing a round takes every worker's push of it, and a worker pushes
// a round only after it has consumed the one before.
//
// Where pushes are applied as they come (nic/wire/sync.h) this holds for round 0 alone, the initial
// weights; what comes after is in engine_sync.cc. With model drop a round finishes with a part of
// the workers, and only the newest result is ever sent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/counter.h"
#include "base/numa_arena.h"
#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/wire/header.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"
#include "pipeline/egress_queue.h"
#include "pipeline/observe/round_trace.h"
#include "pipeline/observe/straggler_ledger.h"
#include "pipeline/optimizer/optimizer.h"
#include "pipeline/state/uplink.h"
#include "pipeline/sync/chunk_sync.h"

namespace pbox::pipeline {

class StateCut;

inline constexpr uint32_t kNoRank = UINT32_MAX;

enum class Mode : uint8_t { kAggregate = 0, kOptimize = 1 };
enum class Reduction : uint8_t { kSum = 0, kMean = 1 };

struct ChunkSpec {
  uint32_t chunk = 0;  // job-local id
  uint32_t elements = 0;
  wire::Dtype dtype = wire::Dtype::kF32;
  int32_t priority = 0;
  float lr_scale = 1;
  float weight_decay = 0;
  uint32_t first_round = 0;      // the round that opens; those before are history
  uint32_t copy_rank = kNoRank;  // see Chunk
};

struct SessionSpec {
  uint32_t spi = 0;  // worker -> box; the way back is spi | wire::kSpiToWorker
  uint32_t credit_bytes = 0;
  bool present = true;  // false: excluded from the start
};

struct ShardSpec {
  std::string name;   // of the job, for people; at most limits::kJobNameBytesMax
  uint32_t part = 0;  // of the job
  uint32_t epoch = 1;
  uint16_t generation = 1;
  uint32_t fragment_bytes = limits::kFragmentBytesEthernet;
  Mode mode = Mode::kAggregate;
  Reduction reduction = Reduction::kSum;
  optimizer::OptimizerSpec optimizer;
  wire::SyncSpec sync;      // other than BSP: mode optimize
  bool partial = false;     // ranks may be excluded: contributors are counted
  bool relayed = false;     // sums go on to another box: see Uplink. Of mode aggregate, not partial
  bool replicated = false;  // states go to another box before results leave: see Uplink. Of mode
                            // optimize and BSP, not partial
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  wire::Numerics numerics = wire::Numerics::kFast;  // other than that: BSP
  uint32_t job_chunk_count = 0;                     // of the whole job; chunk ids are below it
  std::vector<ChunkSpec> chunks;                    // those of this pipeline
  std::vector<SessionSpec> sessions;                // by rank
  int numa_node = kAnyNumaNode;
  Hugepages hugepages = Hugepages::kIfFree;
};

// Bytes of arena that a shard of this spec takes: what quotas are checked against.
size_t shard_footprint(const ShardSpec& spec);

// One chunk's state. Pointers lead into the shard's arena. What every fragment touches stands
// first, on one cache line.
struct alignas(kCacheLineBytes) Chunk {
  float* accumulator[limits::kSlotRing] = {};
  uint64_t* claimed = nullptr;  // of the open round, per rank: fragments received
  uint64_t claimed_any = 0;     // union over ranks: which fragments are a store, which an add
  uint64_t full_mask = 0;
  uint64_t rounds_finished = 0;  // since the job's start, on whatever box
  uint32_t wire_bytes = 0;
  uint16_t complete_workers = 0;
  uint16_t fragment_count = 0;
  wire::Dtype dtype = wire::Dtype::kF32;

  std::byte* result[limits::kSlotRing] = {};
  uint32_t id = 0;
  uint32_t elements = 0;
  int32_t priority = 0;
  uint32_t fanned_out_rounds = 0;  // rounds whose result has left for every worker
  // Of a round that somebody consumed before the box was lost: what this rank consumed is the
  // round's only result. It comes as STATE, and nothing is added. kNoRank: an ordinary round.
  uint32_t copy_rank = kNoRank;
  uint64_t first_round = 0;  // no result of an earlier round is here
  // Optimize mode: the round that gave the weights which the steps since began from, with no
  // optimizer state. Modulo 2^64: before the first round, with the state of a snapshot.
  uint64_t stateless_round = 0;
  // Per fragment, how many workers' gradients a result holds; null unless ranks may be excluded.
  uint16_t* contributors[limits::kSlotRing] = {};
  // Replicated: weights and state are those after the open round, which finishes once the backup
  // box has them.
  bool is_stepped = false;
  // Per rank, the open round at which it last was given a result on asking; null unless delivery is
  // pull.
  uint32_t* pulled = nullptr;
  float* weights = nullptr;  // optimize mode; replicated: a BackupBlock begins there
  // Numerics ordered: what each rank has pushed of the open round, wire_bytes of each, by rank.
  // Null where pushes are added as they come.
  std::byte* pushed = nullptr;
  // Optimizer state. Where pushes are applied as they come, fragment by fragment: all that belongs
  // to one lies together.
  float* state = nullptr;
  float lr_scale = 1;
  float weight_decay = 0;
  // Weights and state are those of a snapshot: round 0 gives these, whatever rank 0 pushes.
  bool is_restored = false;
  sync::ChunkSync* sync = nullptr;  // null: BSP

  // Beyond the initial weights, and of a model that has no rounds that wait for all.
  bool applies_on_arrival() const { return sync != nullptr && sync->next != nullptr; }
  // That the optimizer has taken upon its state, once the weights are here.
  uint64_t steps() const { return rounds_made() - 1 - stateless_round; }
  // Finished, or only yet to be given out.
  uint64_t rounds_made() const { return rounds_finished + (is_stepped ? 1 : 0); }
  // As the wire counts: modulo 2^32.
  uint32_t open_round() const { return static_cast<uint32_t>(rounds_finished); }
  // Each rank is in a round of its own; the initial weights are a round of all in every model.
  bool has_own_rounds() const { return applies_on_arrival() && rounds_finished > 0; }
  // The round that the rank pushes next.
  uint32_t next_round(uint32_t rank) const {
    return has_own_rounds() ? static_cast<uint32_t>(sync->progress.next(rank)) : open_round();
  }
};

// A worker's session on this pipeline. The counters are read by other threads.
struct Session {
  uint32_t spi = 0;
  uint32_t rank = 0;
  nic::Endpoint endpoint;  // learned from the worker's newest authentic packet
  uint64_t newest_packet_number = 0;
  bool reachable = false;
  bool present = true;  // false: excluded; no round waits for it and nothing is sent to it
  uint64_t next_packet_number = 1;
  uint32_t credit_bytes = 0;
  int64_t resend_budget_bytes = 0;
  uint64_t resend_refill_ns = 0;
  SingleWriterCounter bytes_received, fragments_received, duplicates, last_arrivals, last_packet_ns;
  // Fragments that had an infinity or a NaN in them; and the newest of these (chunk << 32 | round,
  // as the wire counts it).
  SingleWriterCounter nonfinite, nonfinite_chunk_round, nonfinite_at_ns;
  SingleWriterCounter dropped;  // model drop: fragments of rounds that had closed without them
  // From the straggler ledger. Of rounds that this rank ended: how late it was, in all, and when it
  // was the latest (chunk << 32 | round, as the wire counts it).
  SingleWriterCounter late_ns, worst_late_ns, worst_chunk_round, worst_at_ns;
  // The others wait for its push of this chunk and round, and how long they have; 0: they do not.
  // As of the last Engine::tick.
  SingleWriterCounter awaited_ns, awaited_chunk_round;
};

class JobShard {
 public:
  static Result<std::unique_ptr<JobShard>> create(const ShardSpec& spec);

  // nullptr if this pipeline does not own the chunk or there is none of that id.
  Chunk* find(uint32_t chunk_id) {
    if (chunk_id >= local_index_.size()) return nullptr;
    const uint32_t index = local_index_[chunk_id];
    return index == kNotHere ? nullptr : &chunks_[index];
  }

  // One fixed element offset for both memory and wire, since fragments hold whole elements.
  uint32_t fragment_offset_elements(const Chunk& chunk, uint32_t fragment) const {
    return fragment * fragment_bytes / wire::dtype_bytes(chunk.dtype);
  }

  // Numerics ordered: where a rank's fragment is kept until the round is full.
  std::byte* pushed(const Chunk& chunk, uint32_t rank, uint32_t fragment) const {
    return chunk.pushed + size_t{rank} * chunk.wire_bytes + size_t{fragment} * fragment_bytes;
  }

  std::vector<Chunk>& chunks() { return chunks_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::vector<Session>& sessions() { return sessions_; }
  const std::vector<Session>& sessions() const { return sessions_; }
  uint32_t worker_count() const { return static_cast<uint32_t>(sessions_.size()); }
  uint32_t present_count() const { return present_count_; }
  // How many must have pushed the chunk's open round in full for it to finish.
  uint32_t workers_needed(const Chunk& chunk) const {
    const bool may_drop = sync.model == wire::SyncModel::kDrop && chunk.rounds_finished > 0;
    return may_drop && sync.quorum < present_count_ ? sync.quorum : present_count_;
  }
  void set_present(Session& session, bool present);
  const NumaArena& arena() const { return arena_; }
  uint32_t index_of(const Chunk& chunk) const {
    return static_cast<uint32_t>(&chunk - chunks_.data());
  }
  size_t chunk_count() const { return chunks_.size(); }
  uint32_t job_chunk_count() const { return static_cast<uint32_t>(local_index_.size()); }
  // Any thread: what it is of does not change.
  uint32_t chunk_id(uint32_t index) const { return chunks_[index].id; }
  uint32_t elements(uint32_t index) const { return chunks_[index].elements; }

  std::string name;
  uint32_t part = 0;
  uint32_t flight_number = 0;  // in the pipeline's flight recorder, counted from 1
  uint32_t epoch = 1;
  uint16_t generation = 1;
  uint32_t fragment_bytes = 0;
  Mode mode = Mode::kAggregate;
  Reduction reduction = Reduction::kSum;
  wire::Numerics numerics = wire::Numerics::kFast;
  bool partial = false;
  wire::SyncSpec sync;
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  optimizer::OptimizerSpec optimizer;
  EgressQueue egress;
  StragglerLedger stragglers;  // not of pushes that are applied as they come
  SingleWriterCounter rounds_finished;

  // Models that apply on arrival.
  float* gradient = nullptr;  // one fragment's, as f32
  uint32_t parked_count = 0;  // reads that wait, over all chunks
  uint64_t parked_changed_ns = 0;
  SingleWriterCounter pulls, pulls_delayed, parked_ns, lead_rounds;
  sync::Departure departure;

  RoundTrace* trace = nullptr;     // null: nobody has asked. Of BSP alone
  std::unique_ptr<Uplink> uplink;  // null: sums, or states, stay here
  StateCut* cut = nullptr;         // null: no snapshot is taken. Of BSP and mode optimize alone

  int64_t egress_deficit_bytes = 0;  // deficit round robin between jobs

 private:
  static constexpr uint32_t kNotHere = UINT32_MAX;

  void lay_out(const ShardSpec& spec);
  void lay_out_chunk(const ShardSpec& job, const ChunkSpec& spec, Chunk& chunk);
  void lay_out_sync(Chunk& chunk);
  void await_copy(Chunk& chunk, uint32_t rank);

  NumaArena arena_;
  std::vector<Chunk> chunks_;
  std::vector<Session> sessions_;
  uint32_t present_count_ = 0;
  std::vector<uint32_t> local_index_;
};

}  // namespace pbox::pipeline
