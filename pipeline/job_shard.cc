#include "pipeline/job_shard.h"

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "nic/quantize/rounding.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/state/state_codec.h"
#include "pipeline/sync/rules.h"

namespace pbox::pipeline {
namespace {

size_t cache_lines(size_t bytes) {
  return align_up(bytes, kCacheLineBytes);
}

// Arrays that begin at the same offset in their pages slow each other down by a third
// (perf/cores.md). One more cache line gives every accumulator another offset.
size_t staggered(size_t bytes) {
  return cache_lines(bytes) + kCacheLineBytes;
}

wire::SyncModel relaxed_model_of(const ShardSpec& spec) {
  return spec.sync.model != wire::SyncModel::kBsp ? spec.sync.model : spec.relaxed_model;
}

bool is_relaxed(const ShardSpec& spec) {
  return relaxed_model_of(spec) != wire::SyncModel::kBsp;
}

// True if some chunk's pushes may be applied on arrival.
bool may_apply_on_arrival(const ShardSpec& spec) {
  return is_relaxed(spec) && spec.sync.model != wire::SyncModel::kDrop;
}

wire::SyncSpec sync_of(const ShardSpec& spec, const ChunkSpec& chunk) {
  return chunk.sync.value_or(spec.sync);
}

bool applies_on_arrival(const ShardSpec& spec, const ChunkSpec& chunk) {
  return wire::applies_on_arrival(sync_of(spec, chunk).model);
}

// True if the number of contributors may differ by fragment. Where pushes are applied on arrival,
// contributors are not counted.
bool counts_contributors(const ShardSpec& spec, const ChunkSpec& chunk) {
  if (sync_of(spec, chunk).model == wire::SyncModel::kDrop) return true;
  return spec.partial && !applies_on_arrival(spec, chunk);
}

size_t contributors_bytes() {
  return cache_lines(limits::kFragmentCountMax * sizeof(uint16_t));
}

size_t weight_sums_bytes(const ShardSpec& spec) {
  return spec.weighted ? cache_lines(limits::kFragmentCountMax * sizeof(uint64_t)) : 0;
}

size_t updates_bytes() {
  return cache_lines(limits::kFragmentCountMax * sizeof(uint64_t));
}

size_t sizes_bytes(size_t workers) {
  return cache_lines(workers * sizeof(sync::PushSize));
}

// Returns the size for the largest fragment of the narrowest elements, because the fragment size of
// the job's path is not known when its memory is checked.
size_t gradient_bytes() {
  return staggered(limits::kFragmentBytesMax / wire::dtype_bytes(wire::Dtype::kF16) *
                   sizeof(float));
}

size_t sync_footprint(const ShardSpec& spec, const ChunkSpec& chunk) {
  if (!is_relaxed(spec)) return 0;
  const size_t workers = spec.sessions.size();
  return cache_lines(sizeof(sync::ChunkSync)) +
         (applies_on_arrival(spec, chunk)
              ? cache_lines(workers * sizeof(uint64_t)) + updates_bytes() + sizes_bytes(workers)
              : cache_lines(workers * sizeof(sync::Pushed)));
}

// Returns a size that is enough wherever in a row the chunk begins.
size_t touched_bytes(const ChunkSpec& chunk) {
  const uint32_t bytes = chunk.elements * wire::dtype_bytes(chunk.dtype);
  return cache_lines(wire::row_words(bytes / chunk.row_bytes + 2) * sizeof(uint32_t));
}

size_t changed_bytes(const ChunkSpec& chunk) {
  const uint32_t bytes = chunk.elements * wire::dtype_bytes(chunk.dtype);
  return cache_lines((bytes / chunk.row_bytes + 2) * sizeof(uint32_t));
}

size_t readers_bytes(size_t ranks) {
  return cache_lines(ranks * sizeof(TableRows::Reader));
}

size_t table_footprint(const ShardSpec& spec, const ChunkSpec& chunk) {
  if (chunk.row_bytes == 0) return 0;
  const size_t bytes = cache_lines(sizeof(TableRows)) + limits::kSlotRing * touched_bytes(chunk);
  if (!applies_on_arrival(spec, chunk)) return bytes;
  return bytes + changed_bytes(chunk) + readers_bytes(spec.sessions.size());
}

size_t pulled_bytes(const ShardSpec& spec) {
  return spec.delivery == wire::Delivery::kPull ? spec.sessions.size() * sizeof(uint32_t) : 0;
}

size_t shaped_bytes(const ShardSpec& spec) {
  return spec.is_collective ? cache_lines(limits::kSlotRing * sizeof(ShapedRound)) : 0;
}

// Returns the bytes of a chunk's sum. The elements of a slot are bytes.
size_t sum_bytes(const ShardSpec& spec, const ChunkSpec& chunk) {
  return size_t{chunk.elements} * (spec.is_collective ? 1 : sizeof(float));
}

// Returns the bytes of all ranks' pushes of one round.
size_t pushed_bytes(const ShardSpec& spec, const ChunkSpec& chunk) {
  if (spec.numerics != wire::Numerics::kOrdered) return 0;
  return spec.sessions.size() * wire::payload_bytes(chunk.dtype, chunk.elements);
}

// Returns the bytes of a result in blocks.
size_t blocks_bytes(const ChunkSpec& chunk) {
  return staggered(wire::payload_bytes(chunk.dtype, chunk.elements));
}

// Returns the bytes of a buffer for results that are narrowed or in blocks; 0 for other results.
size_t narrow_result_bytes(const ChunkSpec& chunk) {
  if (wire::is_in_blocks(chunk.dtype)) return blocks_bytes(chunk);
  return chunk.dtype == wire::Dtype::kF32 ? 0 : cache_lines(size_t{chunk.elements} * 2);
}

// Returns the bytes of the optimizer's own weights, which only chunks with deltas have.
size_t master_bytes(const ChunkSpec& chunk) {
  return wire::is_in_blocks(chunk.dtype) ? staggered(chunk.elements * sizeof(float)) : 0;
}

// True if the last result must stay in memory while the next one waits for the backup box, because
// packets with the last result may not have left yet.
bool keeps_last_result(const ShardSpec& spec) {
  return spec.replicated && is_relaxed(spec);
}

// Returns the bytes of one array of Chunk::published.
size_t published_bytes(const ShardSpec& spec, const ChunkSpec& chunk) {
  const bool is_narrowed = chunk.dtype != wire::Dtype::kF32 && !wire::is_in_blocks(chunk.dtype);
  return keeps_last_result(spec) && !is_narrowed ? staggered(chunk.elements * sizeof(float)) : 0;
}

StateLayout block_layout(const ShardSpec& spec, const ChunkSpec& chunk) {
  return StateLayout::block(spec.optimizer.kind, chunk.elements,
                            is_relaxed(spec) ? spec.sessions.size() : 0);
}

}  // namespace

// Counts the bytes that JobShard::lay_out and lay_out_chunk take for one chunk.
size_t chunk_footprint(const ShardSpec& spec, const ChunkSpec& chunk) {
  const size_t floats = staggered(sum_bytes(spec, chunk));
  const size_t masks =
      cache_lines(spec.sessions.size() * sizeof(uint64_t)) + shaped_bytes(spec) +
      sync_footprint(spec, chunk) + cache_lines(pulled_bytes(spec)) +
      cache_lines(pushed_bytes(spec, chunk)) + table_footprint(spec, chunk) +
      weight_sums_bytes(spec) +
      (counts_contributors(spec, chunk) ? limits::kSlotRing * contributors_bytes() : 0);
  if (spec.relayed) {
    const size_t results = spec.mode == Mode::kOptimize ? limits::kSlotRing : 1;
    return masks + (1 + results) * floats + narrow_result_bytes(chunk);
  }
  if (spec.mode == Mode::kAggregate) {
    if (wire::is_in_blocks(chunk.dtype)) return masks + 2 * floats + blocks_bytes(chunk);
    return masks + limits::kSlotRing * floats;
  }
  const size_t state = optimizer::state_floats_per_element(spec.optimizer.kind);
  const size_t result = narrow_result_bytes(chunk) + master_bytes(chunk);
  const size_t state_bytes = state * size_t{chunk.elements} * sizeof(float);
  const size_t sum = applies_on_arrival(spec, chunk) ? 0 : floats;
  if (spec.replicated) {
    return masks + staggered(block_layout(spec, chunk).floats * sizeof(float)) + sum + result +
           published_bytes(spec, chunk) * limits::kSlotRing +
           (keeps_last_result(spec) ? narrow_result_bytes(chunk) : 0);
  }
  return masks + floats + sum + result + (state > 0 ? staggered(state_bytes) : 0);
}

size_t common_footprint(const ShardSpec& spec) {
  return may_apply_on_arrival(spec) ? gradient_bytes() : 0;
}

size_t shard_footprint(const ShardSpec& spec) {
  size_t bytes = common_footprint(spec);
  for (const ChunkSpec& chunk : spec.chunks) bytes += chunk_footprint(spec, chunk);
  return bytes;
}

Result<NumaArena> JobShard::reserve(const ShardSpec& spec) {
  return NumaArena::create(shard_footprint(spec), spec.numa_node, spec.hugepages, spec.sharing);
}

Result<std::unique_ptr<JobShard>> JobShard::create(const ShardSpec& spec, Reserved reserved) {
  const NumaArena& arena = reserved.arena;
  auto shard = std::make_unique<JobShard>();
  if (arena.size() == NumaArena::mapped_bytes(shard_footprint(spec)) &&
      arena.node() == spec.numa_node && arena.file().ok() == (spec.sharing == Sharing::kReadable)) {
    shard->arena_ = std::move(reserved.arena);
    shard->prefault_ = std::move(reserved.prefault);
  } else {
    reserved.prefault.reset();
    reserved.arena = {};
    auto other = reserve(spec);
    if (!other) return other.error();
    shard->arena_ = std::move(*other);
  }
  shard->lay_out(spec);
  if (spec.relayed || spec.replicated) shard->open_uplinks(spec);
  if (spec.gated) shard->gate = std::make_unique<StepGate>(spec.chunks.size(), spec.report_fd);
  return shard;
}

void JobShard::open_uplinks(const ShardSpec& spec) {
  PBOX_CHECK(spec.uplink_lanes > 0 && spec.uplink_lanes <= Uplink::kLanesMax);
  std::vector<size_t> counts(spec.uplink_lanes, 0);
  for (const ChunkSpec& chunk : spec.chunks) {
    PBOX_CHECK(chunk.uplink_lane < spec.uplink_lanes);
    ++counts[chunk.uplink_lane];
  }
  for (const size_t count : counts) {
    uplinks.push_back(std::make_unique<Uplink>(std::max<size_t>(count, 1)));
  }
}

void JobShard::lay_out(const ShardSpec& spec) {
  name = spec.name;
  part = spec.part;
  epoch = spec.epoch;
  generation = spec.generation;
  accepted_generation = spec.generation;
  fragment_bytes = spec.fragment_bytes;
  mode = spec.mode;
  is_collective = spec.is_collective;
  reduction = spec.reduction;
  weighted = spec.weighted;
  workers = spec.workers != 0 ? spec.workers : static_cast<uint32_t>(spec.sessions.size());
  partial = spec.partial || spec.sync.model == wire::SyncModel::kDrop;
  relaxed_model = relaxed_model_of(spec);
  draw_seed = sync::seed_of(spec.name);
  rounding_seed = quantize::hash_of(spec.name);
  delivery = spec.delivery;
  numerics = spec.numerics;
  guard = spec.guard;
  value_limit = guard.limit();
  report_fd_ = spec.report_fd;
  optimizer = spec.optimizer;
  PBOX_CHECK(!is_relaxed() || mode == Mode::kOptimize);
  PBOX_CHECK(!is_collective || mode == Mode::kAggregate);
  PBOX_CHECK(!is_collective || (!partial && !spec.relayed));
  PBOX_CHECK(!spec.weighted || (reduction == Reduction::kMean && !is_collective && !spec.relayed));
  const bool rejects = guard.policy == wire::Guard::kReject;
  PBOX_CHECK(!rejects || !is_relaxed());
  PBOX_CHECK(!rejects || spec.gated || mode == Mode::kAggregate);
  PBOX_CHECK(!spec.gated || (!is_relaxed() && mode == Mode::kOptimize));
  if (may_apply_on_arrival(spec)) {
    gradient = reinterpret_cast<float*>(arena_.take(gradient_bytes()));
  }

  sessions_ = std::vector<Session>(spec.sessions.size());
  for (uint32_t rank = 0; rank < sessions_.size(); ++rank) {
    sessions_[rank].spi = spec.sessions[rank].spi;
    sessions_[rank].forget_address(spec.sessions[rank].known_host);
    sessions_[rank].takes_zeros = spec.sessions[rank].takes_zeros;
    sessions_[rank].rank = rank;
    sessions_[rank].credit_bytes = spec.sessions[rank].credit_bytes;
    sessions_[rank].present = spec.sessions[rank].present;
    present_count_ += spec.sessions[rank].present ? 1 : 0;
  }
  local_index_.assign(spec.job_chunk_count, kNotOwned);
  chunks_.resize(spec.chunks.size());
  for (Chunk& chunk : chunks_) {  // close together: these arrays are small and always in use
    chunk.claimed = reinterpret_cast<uint64_t*>(arena_.take(sessions_.size() * sizeof(uint64_t)));
    if (pulled_bytes(spec) == 0) continue;
    chunk.pulled = reinterpret_cast<uint32_t*>(arena_.take(pulled_bytes(spec)));
  }
  for (uint32_t index = 0; index < chunks_.size(); ++index) {
    PBOX_CHECK(spec.chunks[index].chunk < spec.job_chunk_count);
    PBOX_CHECK(local_index_[spec.chunks[index].chunk] == kNotOwned);
    local_index_[spec.chunks[index].chunk] = index;
    element_count += spec.chunks[index].elements;
    lay_out_chunk(spec, spec.chunks[index], chunks_[index]);
    if (const size_t bytes = pushed_bytes(spec, spec.chunks[index]); bytes > 0) {
      chunks_[index].pushed = arena_.take(bytes);
    }
  }
  stragglers.reserve(chunks_.size());
  if (spec.sync.model == wire::SyncModel::kDrop) grace.reserve(chunks_.size());
  egress.reserve(limits::kSlotRing * chunks_.size(), delivery == wire::Delivery::kPull);
}

void JobShard::lay_out_chunk(const ShardSpec& job, const ChunkSpec& spec, Chunk& chunk) {
  const size_t float_bytes = sum_bytes(job, spec);
  chunk.id = spec.chunk;
  chunk.elements = spec.elements;
  chunk.priority = spec.priority;
  chunk.up.lane = spec.uplink_lane;
  chunk.lr_scale = spec.lr_scale;
  chunk.weight_decay = spec.weight_decay;
  const bool begins_in_full = mode == Mode::kOptimize && wire::is_in_blocks(spec.dtype);
  take_layout(chunk, begins_in_full ? wire::Dtype::kF32 : spec.dtype);
  chunk.first_round = chunk.stateless_round = chunk.rounds_finished = spec.first_round;
  chunk.fanned_out_rounds = spec.first_round;
  PBOX_CHECK(mode == Mode::kAggregate || spec.first_round == 0 || spec.copy_rank != kNoRank);
  if (spec.copy_rank != kNoRank) expect_copy(chunk, spec.copy_rank);
  if (counts_contributors(job, spec)) {
    for (uint16_t*& counts : chunk.contributors) {
      counts = reinterpret_cast<uint16_t*>(arena_.take(contributors_bytes()));
    }
  }

  if (job.weighted) {
    PBOX_CHECK(spec.row_bytes == 0 && !applies_on_arrival(job, spec));
    chunk.weight_sums = reinterpret_cast<uint64_t*>(arena_.take(weight_sums_bytes(job)));
  }
  const wire::SyncSpec sync = sync_of(job, spec);
  if (spec.row_bytes > 0) lay_out_table(spec, sync, chunk);
  if (is_relaxed()) lay_out_sync(sync, chunk);
  if (is_collective) chunk.shaped = new (arena_.take(shaped_bytes(job))) ShapedRound[2];

  if (job.relayed) return lay_out_relayed(job, spec, chunk);
  if (mode == Mode::kOptimize) return lay_out_weights(job, spec, chunk);
  if (wire::is_in_blocks(spec.dtype)) return lay_out_blocks(spec, chunk);
  for (size_t slot = 0; slot < limits::kSlotRing; ++slot) {
    chunk.accumulator[slot] = reinterpret_cast<float*>(arena_.take(staggered(float_bytes)));
    chunk.result[slot] = reinterpret_cast<std::byte*>(chunk.accumulator[slot]);
  }
}

void JobShard::take_layout(Chunk& chunk, wire::Dtype dtype) const {
  PBOX_DCHECK(chunk.claimed_any == 0 && chunk.elements > 0);
  chunk.dtype = dtype;
  chunk.wire_bytes = wire::payload_bytes(dtype, chunk.elements);
  chunk.fragment_bytes = wire::fragment_bytes_of(dtype, fragment_bytes);
  chunk.fragment_count =
      static_cast<uint16_t>(wire::fragment_count(chunk.wire_bytes, chunk.fragment_bytes));
  PBOX_CHECK(chunk.fragment_count > 0 && chunk.fragment_count <= limits::kFragmentCountMax);
  chunk.full_mask = wire::full_mask(chunk.fragment_count);
}

// Mode optimize. One accumulator and one result serve both slots. The sum is used up when the round
// finishes, and the weights change only when every worker has consumed the result before (PHub's
// two buffers). Pushes that are applied on arrival need no sum.
void JobShard::lay_out_weights(const ShardSpec& job, const ChunkSpec& spec, Chunk& chunk) {
  const size_t float_bytes = sum_bytes(job, spec);
  const auto take_floats = [&](size_t bytes) {
    return reinterpret_cast<float*>(arena_.take(staggered(bytes)));
  };
  if (!wire::applies_on_arrival(sync_of(job, spec).model)) {
    chunk.accumulator[0] = chunk.accumulator[1] = take_floats(float_bytes);
  }
  const StateLayout block = block_layout(job, spec);
  chunk.weights = take_floats(job.replicated ? block.floats * sizeof(float) : float_bytes);
  if (published_bytes(job, spec) > 0) {
    for (float*& published : chunk.published) published = take_floats(float_bytes);
  }
  const size_t narrow = narrow_result_bytes(spec);
  for (size_t slot = 0; slot < limits::kSlotRing; ++slot) {
    float* const whole = chunk.published[slot] != nullptr ? chunk.published[slot] : chunk.weights;
    const bool is_shared = slot > 0 && !keeps_last_result(job);
    chunk.result[slot] = narrow == 0 ? reinterpret_cast<std::byte*>(whole)
                         : is_shared ? chunk.result[0]
                                     : arena_.take(narrow);
  }
  PBOX_DCHECK(chunk.weights != nullptr && chunk.result[0] != nullptr);
  const size_t state = optimizer::state_floats_per_element(optimizer.kind);
  if (state > 0) {
    chunk.optimizer_state =
        job.replicated ? chunk.weights + block.optimizer_state : take_floats(state * float_bytes);
  }
  if (!wire::is_in_blocks(spec.dtype)) return;
  PBOX_CHECK(!is_relaxed() || relaxed_model == wire::SyncModel::kDrop);
  PBOX_CHECK(chunk.table == nullptr);
  chunk.deltas.dtype = spec.dtype;
  chunk.deltas.master = take_floats(float_bytes);
}

// Mode aggregate. One sum and one result serve both slots: a round finishes, and its sum is
// encoded, only when every rank has consumed the result before.
void JobShard::lay_out_blocks(const ChunkSpec& spec, Chunk& chunk) {
  PBOX_CHECK(!is_collective);
  const size_t floats = staggered(size_t{spec.elements} * sizeof(float));
  chunk.accumulator[0] = chunk.accumulator[1] = reinterpret_cast<float*>(arena_.take(floats));
  chunk.residue = reinterpret_cast<float*>(arena_.take(floats));
  chunk.result[0] = chunk.result[1] = arena_.take(blocks_bytes(spec));
}

// One sum and one narrow result serve both slots: the upper box's result of a round comes once all
// ranks have consumed the result before, and the next round's sum begins after that.
void JobShard::lay_out_relayed(const ShardSpec& job, const ChunkSpec& spec, Chunk& chunk) {
  PBOX_CHECK(!partial && !is_relaxed() && !job.gated);
  PBOX_CHECK(!wire::is_in_blocks(spec.dtype));
  const auto take_floats = [&] {
    return reinterpret_cast<float*>(arena_.take(staggered(sum_bytes(job, spec))));
  };
  const bool optimizes = mode == Mode::kOptimize;
  chunk.accumulator[0] = chunk.accumulator[1] = take_floats();
  if (optimizes) chunk.weights = chunk.accumulator[0];
  chunk.up.result[0] = take_floats();
  chunk.up.result[1] = optimizes ? take_floats() : chunk.up.result[0];
  const size_t own = narrow_result_bytes(spec);
  std::byte* const narrow = own > 0 ? arena_.take(own) : nullptr;
  for (size_t slot = 0; slot < limits::kSlotRing; ++slot) {
    auto* const upper = reinterpret_cast<std::byte*>(chunk.up.result[slot]);
    chunk.result[slot] = narrow != nullptr ? narrow : upper;
  }
}

void JobShard::lay_out_table(const ChunkSpec& spec, const wire::SyncSpec& sync, Chunk& chunk) {
  PBOX_CHECK(mode == Mode::kOptimize && numerics == wire::Numerics::kFast);
  chunk.table = new (arena_.take(cache_lines(sizeof(TableRows)))) TableRows;
  chunk.table->layout = {.row_bytes = spec.row_bytes,
                         .skipped_bytes = spec.row_skipped_bytes,
                         .chunk_bytes = chunk.wire_bytes,
                         .fragment_bytes = fragment_bytes};
  for (uint32_t*& touched : chunk.table->touched) {
    touched = reinterpret_cast<uint32_t*>(arena_.take(touched_bytes(spec)));
  }
  has_tables = true;
  if (!wire::applies_on_arrival(sync.model)) return;
  chunk.table->changed = reinterpret_cast<uint32_t*>(arena_.take(changed_bytes(spec)));
  chunk.table->reader_count = worker_count();
  chunk.table->readers =
      new (arena_.take(readers_bytes(sessions_.size()))) TableRows::Reader[sessions_.size()];
}

void JobShard::lay_out_sync(const wire::SyncSpec& spec, Chunk& chunk) {
  PBOX_CHECK(spec.model != wire::SyncModel::kAdaptive);
  PBOX_DCHECK(is_relaxed() && chunk.sync == nullptr);
  chunk.sync = new (arena_.take(cache_lines(sizeof(sync::ChunkSync)))) sync::ChunkSync;
  chunk.sync->spec = spec;
  const size_t workers = sessions_.size();
  if (wire::applies_on_arrival(spec.model)) {
    chunk.sync->next = reinterpret_cast<uint64_t*>(arena_.take(workers * sizeof(uint64_t)));
    chunk.sync->updates = reinterpret_cast<uint64_t*>(arena_.take(updates_bytes()));
    chunk.sync->sizes = new (arena_.take(sizes_bytes(workers))) sync::PushSize[workers];
  } else {
    chunk.sync->pushed = new (arena_.take(workers * sizeof(sync::Pushed))) sync::Pushed[workers];
  }
}

// All other ranks count as having pushed the round already.
void JobShard::expect_copy(Chunk& chunk, uint32_t rank) {
  PBOX_CHECK(rank < sessions_.size() && sessions_[rank].present);
  chunk.copy_rank = rank;
  std::fill_n(chunk.claimed, sessions_.size(), chunk.full_mask);
  chunk.claimed[rank] = 0;
  chunk.complete_workers = static_cast<uint16_t>(present_count_ - 1);
}

}  // namespace pbox::pipeline
