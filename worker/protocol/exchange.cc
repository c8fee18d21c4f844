#include "worker/protocol/exchange.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::worker {
namespace {

// Results of a job of this size have left the CPU's caches before they are read.
constexpr uint64_t kOutOfCacheBytes = 8u << 20;

uint64_t bytes_of(const TensorSpec& tensor) {
  return tensor.elements * wire::dtype_bytes(tensor.dtype);
}

bool is_compressed(const TensorSpec& tensor) {
  return tensor.compression != wire::Compression::kNone;
}

bool has_deltas(const SessionSpec& session, const TensorSpec& tensor) {
  return session.optimizes && is_compressed(tensor);
}

// Returns the bytes of one copy of the tensor's results.
uint64_t result_bytes(const TensorSpec& tensor, uint32_t chunk_bytes) {
  if (!is_compressed(tensor)) return bytes_of(tensor);
  return EncodedTensor::bytes(wire::payload_dtype(tensor.compression), tensor.elements,
                              chunk_bytes / static_cast<uint32_t>(sizeof(float)));
}

void open_encoding(const SessionSpec& session, const TensorSpec& spec, ExchangeTensor& tensor) {
  PBOX_CHECK(spec.dtype == wire::Dtype::kF32 && spec.row_elements == 0);
  tensor.dtype = wire::payload_dtype(spec.compression);
  tensor.encoded.emplace(tensor.dtype, spec.elements,
                         session.chunk_bytes / static_cast<uint32_t>(sizeof(float)),
                         quantize::RoundingSource{.seed = session.rounding_seed,
                                                  .tensor = quantize::hash_of(spec.name),
                                                  .first_element = spec.first_element,
                                                  .rank = session.rank});
  if (!session.optimizes) return;
  tensor.deltas.emplace(tensor.dtype, spec.elements,
                        session.chunk_bytes / static_cast<uint32_t>(sizeof(float)));
}

}  // namespace

uint64_t shadow_bytes(const SessionSpec& session, const std::vector<TensorSpec>& tensors,
                      uint32_t shadow_count) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    if (has_deltas(session, tensor)) continue;  // its DeltaWeights keep the weights anyway
    const uint32_t count = tensor.row_elements > 0 ? 1 : shadow_count;
    bytes += count * align_up(result_bytes(tensor, session.chunk_bytes), kCacheLineBytes);
  }
  return bytes;
}

Exchange::Exchange(const SessionSpec& session, const std::vector<TensorSpec>& tensors,
                   NumaArena shadow, uint32_t shadow_count)
    : shadow_(std::move(shadow)) {
  state_.session = session;
  state_.rng = Rng(session.jitter_seed);
  PBOX_CHECK(shadow_count == 1 || shadow_count == 2);
  PBOX_CHECK(session.chunk_bytes > 0 && session.fragment_bytes > 0);
  add_tensors(tensors, shadow_count);
  open_cache(tensors);
  state_.statistics.shadow_bytes = shadow_.taken();
  open_lanes();
  if (session.open_rounds.empty()) return;
  PBOX_CHECK(session.open_rounds.size() == state_.chunks.size());
  for (Tensor& tensor : state_.tensors) {
    const auto first = session.open_rounds.begin() + tensor.first_chunk;
    tensor.round = *std::min_element(first, first + tensor.chunk_count);
    for (uint32_t id = tensor.first_chunk; id < tensor.first_chunk + tensor.chunk_count; ++id) {
      state_.chunks[id].round = tensor.round;
      state_.chunks[id].pulls_first = session.open_rounds[id] != tensor.round;
    }
  }
}

void Exchange::add_tensors(const std::vector<TensorSpec>& tensors, uint32_t shadow_count) {
  const uint32_t chunk_bytes = state_.session.chunk_bytes;
  uint64_t job_bytes = 0;
  for (const TensorSpec& spec : tensors) {
    PBOX_CHECK(spec.elements > 0);
    Tensor& tensor = state_.tensors.emplace_back();
    tensor.dtype = spec.dtype;
    if (is_compressed(spec)) open_encoding(state_.session, spec, tensor);
    tensor.model = spec.sync.value_or(state_.session.sync).model;
    tensor.own_priority = spec.priority;
    tensor.is_votes = spec.is_votes;
    if (!spec.is_form && !spec.is_votes) ++operations_of_round_;
    tensor.first_chunk = static_cast<uint32_t>(state_.chunks.size());
    const uint64_t bytes = bytes_of(spec);
    job_bytes += bytes;
    tensor.row_bytes = spec.row_elements * wire::dtype_bytes(spec.dtype);
    tensor.first_byte = spec.first_element * wire::dtype_bytes(spec.dtype);
    const bool has_shadow = shadow_.size() > 0 && !tensor.deltas;
    if (has_shadow && !wire::keeps_copies(state_.session.sync)) {
      const uint64_t copy_bytes = result_bytes(spec, chunk_bytes);
      tensor.shadow[0] = shadow_.take(copy_bytes);
      // A table's shadow changes by whole chunks (row_stage.h), so one is enough.
      const bool has_two = shadow_count == 2 && !tensor.is_table();
      tensor.shadow[1] = has_two ? shadow_.take(copy_bytes) : tensor.shadow[0];
    }
    for (uint64_t offset = 0; offset < bytes; offset += chunk_bytes) {
      Chunk& chunk = state_.chunks.emplace_back();
      chunk.tensor = static_cast<uint32_t>(state_.tensors.size() - 1);
      chunk.offset = chunk.shadow_offset = offset;
      chunk.wire_bytes = static_cast<uint32_t>(std::min<uint64_t>(chunk_bytes, bytes - offset));
      if (!tensor.encoded) continue;
      chunk.elements = chunk.wire_bytes / sizeof(float);
      chunk.wire_bytes = wire::payload_bytes(tensor.dtype, chunk.elements);
      chunk.shadow_offset = tensor.encoded->offset(offset / sizeof(float));
    }
    tensor.chunk_count = static_cast<uint32_t>(state_.chunks.size()) - tensor.first_chunk;
  }
  // Results that the caller keeps are read at once, by another core.
  state_.out_of_cache = job_bytes >= kOutOfCacheBytes && !state_.session.caller_keeps_results;
  const bool has_tables = std::any_of(state_.tensors.begin(), state_.tensors.end(),
                                      [](const Tensor& tensor) { return tensor.is_table(); });
  if (has_tables) state_.stages.resize(state_.chunks.size());
}

// Builds everything that depends on the current session.
void Exchange::open_lanes() {
  const SessionSpec& session = state_.session;
  PBOX_CHECK(session.chunk_pipeline.size() == state_.chunks.size());
  std::vector<uint32_t> largest(session.pipelines.size(), 0);
  for (size_t id = 0; id < state_.chunks.size(); ++id) {
    Chunk& chunk = state_.chunks[id];
    chunk.pipeline = session.chunk_pipeline[id];
    PBOX_CHECK(chunk.pipeline < session.pipelines.size());
    const bool is_slot = state_.tensors[chunk.tensor].slot != nullptr;
    largest[chunk.pipeline] =
        std::max(largest[chunk.pipeline], is_slot ? session.chunk_bytes : chunk.wire_bytes);
    if (state_.tensors[chunk.tensor].deltas) {
      state_.take_size(chunk);
    } else {
      state_.set_size(chunk, chunk.wire_bytes);
    }
  }
  lanes_.clear();
  lanes_.reserve(session.pipelines.size());
  for (size_t index = 0; index < session.pipelines.size(); ++index) {
    lanes_.emplace_back(state_, session.pipelines[index], largest[index]);
  }
  lane_times_.resize(std::max(lane_times_.size(), lanes_.size()));
}

void Exchange::start(const Operation& operation) {
  PBOX_CHECK(operation.tensor < state_.tensors.size());
  Tensor& tensor = state_.tensors[operation.tensor];
  PBOX_CHECK(tensor.chunks_left == 0);
  PBOX_CHECK(!operation.fetch || tensor.round > 0);
  tensor.input = operation.fetch ? nullptr : operation.input;
  tensor.output = operation.output;
  tensor.priority = operation.priority.value_or(tensor.own_priority);
  tensor.weight_code = operation.weight_code;
  tensor.fetching = operation.fetch;
  tensor.slot = operation.slot;
  tensor.rows = operation.fetch ? nullptr : operation.rows;
  PBOX_CHECK(tensor.rows == nullptr || (tensor.is_table() && tensor.round > 0));
  if (state_.session.caller_keeps_results) {
    PBOX_CHECK(operation.input != operation.output);  // a lost round is pushed again
    PBOX_CHECK(!tensor.encoded);
    std::byte*& shadow = tensor.shadow[tensor.round & 1];
    PBOX_CHECK(shadow == nullptr || shadow == operation.output);
    shadow = operation.output;
    if (!state_.session.optimizes) tensor.shadow[(tensor.round + 1) & 1] = shadow;
  }
  begin(tensor);
}

void Exchange::begin(Tensor& tensor) {
  ++active_tensors_;
  tensor.chunks_left = tensor.unannounced = tensor.chunk_count;
  tensor.contributors = UINT16_MAX;
  tensor.staleness = 0;
  tensor.is_dropped = false;
  const uint32_t round = state_.drops_rounds() ? start_round(tensor.round) : 0;
  for (uint32_t id = tensor.first_chunk; id < tensor.first_chunk + tensor.chunk_count; ++id) {
    Chunk& chunk = state_.chunks[id];
    chunk.fetched = false;
    if (state_.drops_rounds()) chunk.round = round;
    // A chunk that restores a result is in flight already. It continues with this round by itself.
    if (!chunk.restoring) state_.take_size(chunk);
    if (!suspended_ && !chunk.restoring) lane(chunk.pipeline).queue(id, tensor.priority);
  }
}

// Returns whether the active operation of the chunk's tensor still needs the chunk.
bool Exchange::is_pending(const Chunk& chunk) const {
  const Tensor& tensor = state_.tensors[chunk.tensor];
  if (tensor.chunks_left == 0) return false;
  if (tensor.fetching) return !chunk.fetched;
  return chunk.round == (state_.drops_rounds() ? skips_.round(tensor.round) : tensor.round);
}

std::span<const nic::TxPacket> Exchange::to_send(uint32_t pipeline, uint64_t now_ns) {
  if (active_tensors_ > 0 && busy_since_ns_ == 0) busy_since_ns_ = now_ns;
  PBOX_DCHECK(!suspended_ || !has_unsent(pipeline));
  return lane(pipeline).to_send(now_ns);
}

bool Exchange::on_timer(uint64_t now_ns, bool receiving) {
  bool probes = false;
  for (Lane& lane : lanes_) probes = lane.probe_overdue(now_ns, receiving) || probes;
  return probes;
}

bool Exchange::awaits_results() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.is_idle(); });
}

uint64_t Exchange::next_deadline_ns() const {
  uint64_t deadline = UINT64_MAX;
  for (const Lane& lane : lanes_) deadline = std::min(deadline, lane.deadline_ns());
  return deadline;
}

void Exchange::abandon() {
  clear_flight();
  for (Tensor& tensor : state_.tensors) tensor.chunks_left = 0;
  active_tensors_ = 0;
  completed_.clear();
  state_.cache.reset();
}

std::vector<uint32_t> Exchange::take_completed() {
  return std::exchange(completed_, {});
}

Laggard Exchange::laggard(uint32_t tensor_id, uint64_t now_ns) const {
  PBOX_CHECK(tensor_id < state_.tensors.size());
  const Tensor& tensor = state_.tensors[tensor_id];
  Laggard laggard;
  if (tensor.chunks_left == 0) return laggard;
  const CollectiveCall* call = tensor.slot != nullptr ? tensor.slot->call.get() : nullptr;
  laggard.call = call;
  for (uint32_t index = 0; index < tensor.chunk_count; ++index) {
    const Chunk& chunk = state_.chunks[tensor.first_chunk + index];
    if (!chunk.in_flight) continue;
    if (chunk.waits_for_others) {
      PBOX_DCHECK(chunk.missing_workers > 0);
      if (laggard.kind == Laggard::Kind::kRank && laggard.asked_ns >= chunk.asked_ns) continue;
      laggard = {.kind = Laggard::Kind::kRank,
                 .rank = chunk.first_missing_rank,
                 .missing_workers = chunk.missing_workers,
                 .asked_ns = chunk.asked_ns,
                 .waited_ms = chunk.waited_ms,
                 .last_percent = chunk.last_percent,
                 .call = call};
      continue;
    }
    if (laggard.kind == Laggard::Kind::kRank) continue;
    const uint64_t heard_ns = std::max(lanes_[chunk.pipeline].last_heard_ns(), chunk.pushed_ns);
    laggard = {.kind = Laggard::Kind::kBox,
               .silent_ns = now_ns > heard_ns ? now_ns - heard_ns : 0,
               .call = call};
  }
  return laggard;
}

Statistics Exchange::statistics() const {
  Statistics statistics = state_.statistics;
  for (const Lane& lane : lanes_) {
    statistics.smoothed_rtt_us =
        std::max(statistics.smoothed_rtt_us, static_cast<uint32_t>(lane.smoothed_rtt_ns() / 1000));
  }
  return statistics;
}

}  // namespace pbox::worker
