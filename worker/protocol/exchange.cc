#include "worker/protocol/exchange.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::worker {
namespace {

// Results of a job of this size have left the caches before anybody reads them.
constexpr uint64_t kOutOfCacheBytes = 8u << 20;

uint64_t bytes_of(const TensorSpec& tensor) {
  return tensor.elements * wire::dtype_bytes(tensor.dtype);
}

}  // namespace

Exchange::Exchange(const SessionSpec& session, const std::vector<TensorSpec>& tensors,
                   NumaArena shadow, uint32_t shadows)
    : session_(session), shadow_(std::move(shadow)), rng_(session.jitter_seed) {
  uint64_t job_bytes = 0;
  for (const TensorSpec& spec : tensors) {
    Tensor& tensor = tensors_.emplace_back();
    tensor.dtype = spec.dtype;
    tensor.first_chunk = static_cast<uint32_t>(chunks_.size());
    const uint64_t bytes = bytes_of(spec);
    job_bytes += bytes;
    if (shadow_.size() > 0 && !caches_reads(session.sync)) {
      tensor.shadow[0] = shadow_.take(bytes);
      tensor.shadow[1] = shadows == 2 ? shadow_.take(bytes) : tensor.shadow[0];
    }
    for (uint64_t offset = 0; offset < bytes; offset += session.chunk_bytes) {
      Chunk& chunk = chunks_.emplace_back();
      chunk.tensor = static_cast<uint32_t>(tensors_.size() - 1);
      chunk.offset = offset;
      chunk.wire_bytes =
          static_cast<uint32_t>(std::min<uint64_t>(session.chunk_bytes, bytes - offset));
    }
    tensor.chunk_count = static_cast<uint32_t>(chunks_.size()) - tensor.first_chunk;
  }
  out_of_cache_ = job_bytes >= kOutOfCacheBytes;
  open_cache(tensors);
  statistics_.shadow_bytes = shadow_.taken();
  open_lanes();
  if (session.open_rounds.empty()) return;
  for (Tensor& tensor : tensors_) {
    const auto first = session.open_rounds.begin() + tensor.first_chunk;
    tensor.round = *std::min_element(first, first + tensor.chunk_count);
    for (uint32_t id = tensor.first_chunk; id < tensor.first_chunk + tensor.chunk_count; ++id) {
      chunks_[id].round = tensor.round;
      chunks_[id].pulls_first = session.open_rounds[id] != tensor.round;
    }
  }
}

uint64_t Exchange::shadow_bytes(const std::vector<TensorSpec>& tensors, uint32_t shadows) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes += align_up(bytes_of(tensor), kCacheLineBytes);
  return shadows * bytes;
}

// What depends on the session at hand.
void Exchange::open_lanes() {
  lanes_.clear();
  for (const auto& pipeline : session_.pipelines) {
    Lane& lane = lanes_.emplace_back();
    lane.spi = pipeline.spi;
    lane.box = pipeline.box;
    lane.next_packet_number = pipeline.first_packet_number;
    lane.window_bytes = std::min(pipeline.credit_bytes, session_.window_bytes);
  }
  PBOX_CHECK(session_.chunk_pipeline.size() == chunks_.size());
  std::vector<uint32_t> largest(lanes_.size(), 0);
  for (size_t id = 0; id < chunks_.size(); ++id) {
    Chunk& chunk = chunks_[id];
    chunk.pipeline = session_.chunk_pipeline[id];
    PBOX_CHECK(chunk.pipeline < lanes_.size());
    chunk.full_mask =
        wire::full_mask(wire::fragment_count(chunk.wire_bytes, session_.fragment_bytes));
    largest[chunk.pipeline] = std::max(largest[chunk.pipeline], chunk.wire_bytes);
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].window = {largest[lane], session_.rto_floor_ns};
  }
}

void Exchange::start(uint32_t tensor_id, const std::byte* input, std::byte* output,
                     int32_t priority) {
  Tensor& tensor = tensors_[tensor_id];
  PBOX_CHECK(tensor.chunks_left == 0);
  tensor.input = input;
  tensor.output = output;
  tensor.priority = priority;
  tensor.fetching = false;
  begin(tensor);
}

void Exchange::fetch(uint32_t tensor_id, std::byte* output, int32_t priority) {
  Tensor& tensor = tensors_[tensor_id];
  PBOX_CHECK(tensor.chunks_left == 0 && tensor.round > 0);
  tensor.output = output;
  tensor.priority = priority;
  tensor.fetching = true;
  begin(tensor);
}

void Exchange::begin(Tensor& tensor) {
  ++tensors_under_way_;
  tensor.chunks_left = tensor.unannounced = tensor.chunk_count;
  tensor.contributors = UINT16_MAX;
  tensor.staleness = 0;
  tensor.is_dropped = false;
  const uint32_t round = drops_rounds() ? round_of(tensor.round) : 0;
  for (uint32_t id = tensor.first_chunk; id < tensor.first_chunk + tensor.chunk_count; ++id) {
    Chunk& chunk = chunks_[id];
    chunk.fetched = false;
    if (drops_rounds()) chunk.round = round;
    // One that is giving is on its way already; it goes on by itself.
    if (!suspended_ && !chunk.giving) lanes_[chunk.pipeline].queue.push(id, tensor.priority);
  }
}

// The operation of the chunk's tensor still needs it.
bool Exchange::is_pending(const Chunk& chunk) const {
  const Tensor& tensor = tensors_[chunk.tensor];
  if (tensor.chunks_left == 0) return false;
  if (tensor.fetching) return !chunk.fetched;
  return chunk.round == (drops_rounds() ? round_begun(tensor.round) : tensor.round);
}

void Exchange::arm(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  // x2 per unanswered probe, up to 64 ms or the time-out itself; +/-25 % so that workers do not
  // probe in step.
  constexpr uint64_t kBackOffCapNs = 64'000'000;
  constexpr uint64_t kPollFloorNs = 10'000'000;
  constexpr uint64_t kPollSpacingNs = 200'000;  // of a lane's chunks that wait for other workers
  const uint64_t base = lane.rtt.timeout_ns(session_.rto_floor_ns);
  uint64_t wait = base << std::min<uint32_t>(chunk.probes, 6);
  wait = std::min(wait, std::max(base, kBackOffCapNs));
  if (chunk.overtaken && chunk.probes <= 1) wait = usual_ns(lane);
  if (chunk.waits_for_others) {
    wait = std::max({wait, kPollFloorNs, lane.in_flight.size() * kPollSpacingNs});
  }
  set_deadline(lane, chunk, now_ns + wait * 3 / 4 + rng_.below(wait / 2 + 1));
}

void Exchange::set_deadline(Lane& lane, Chunk& chunk, uint64_t deadline_ns) {
  chunk.deadline_ns = deadline_ns;
  lane.deadline_ns = std::min(lane.deadline_ns, deadline_ns);
}

// A lane that hears of other chunks is slow rather than lossy: the box has a queue before it. Its
// chunks are given more time before the first probe, since the answer to a needless one is a whole
// result.
bool Exchange::may_still_come(const Lane& lane, const Chunk& chunk, uint64_t now_ns,
                              uint64_t& until_ns) const {
  constexpr uint64_t kPatience = 4;
  if (chunk.probes > 0 || chunk.overtaken) return false;
  const uint64_t timeout_ns = lane.rtt.timeout_ns(session_.rto_floor_ns);
  until_ns = std::min(lane.last_heard_ns + timeout_ns, chunk.pushed_ns + kPatience * timeout_ns);
  return until_ns > now_ns;
}

// All ranks push in one order, so results come about in that order too, but for urgent ones, which
// overtake others on every rank and in the box. One that later ones of no higher priority have
// overtaken misses something: ours, another rank's, or a part of the result. It is asked for as
// soon as it is later than usual, which costs a small packet; to wait for the time-out would cost
// the window (RFC 9002, 6.1: packet and time threshold; RFC 5827: fewer where nothing follows). A
// chunk that was asked for is no measure of the path, so one rank's losses do not stretch the
// time-outs of all.
//
// Whatever was pushed before is with the box as well, or lost: it is on the path no more.
void Exchange::note_overtaken(Lane& lane, const Chunk& done) {
  const bool is_last = lane.queue.empty() && lane.sending.empty();
  const uint64_t overtakers = is_last ? 1 : 3;
  size_t kept = 0, seen = 0;
  for (; seen < lane.pushed.size(); ++seen) {
    const auto [id, sequence] = lane.pushed[seen];
    if (sequence >= done.push_sequence) break;
    Chunk& chunk = chunks_[id];
    if (!chunk.in_flight || chunk.push_sequence != sequence) continue;
    if (chunk.to_send == 0) leave_path(lane, chunk);
    if (chunk.probes > 0) continue;
    if (chunk.to_send != 0 || sequence + overtakers > done.push_sequence ||
        priority(chunk) < priority(done)) {
      lane.pushed[kept++] = lane.pushed[seen];
      continue;
    }
    chunk.overtaken = true;
    set_deadline(lane, chunk, std::min(chunk.deadline_ns, chunk.pushed_ns + usual_ns(lane)));
  }
  const auto begin = lane.pushed.begin();
  lane.pushed.erase(begin + static_cast<ptrdiff_t>(kept), begin + static_cast<ptrdiff_t>(seen));
}

// A result that is sent again says so, one that was due anyway does not: only of the others nobody
// knows which packet was answered (Karn, Partridge 1987).
bool Exchange::answers_are_told_apart() const {
  return session_.sync.model == wire::SyncModel::kBsp &&
         session_.delivery == wire::Delivery::kBroadcast;
}

bool Exchange::on_timer(uint64_t now_ns, bool receiving) {
  constexpr uint64_t kLookAgainNs = 100'000;
  bool probes = false;
  for (Lane& lane : lanes_) {
    if (lane.deadline_ns > now_ns) continue;
    lane.deadline_ns = UINT64_MAX;
    for (const uint32_t id : lane.in_flight) {
      Chunk& chunk = chunks_[id];
      if (chunk.to_send != 0) continue;  // armed when it has left
      uint64_t deadline_ns = chunk.deadline_ns;
      if (deadline_ns > now_ns || may_still_come(lane, chunk, now_ns, deadline_ns)) {
        set_deadline(lane, chunk, deadline_ns);
        continue;
      }
      if (receiving && !chunk.overtaken) {
        set_deadline(lane, chunk, now_ns + kLookAgainNs);
        continue;
      }
      chunk.measures = chunk.measures && answers_are_told_apart();
      ++chunk.probes;
      probes = true;
      lane.to_probe.push_back(id);
      arm(lane, chunk, now_ns);
    }
  }
  return probes;
}

bool Exchange::awaits_results() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.in_flight.empty(); });
}

uint64_t Exchange::next_deadline_ns() const {
  uint64_t deadline = UINT64_MAX;
  for (const Lane& lane : lanes_) deadline = std::min(deadline, lane.deadline_ns);
  return deadline;
}

void Exchange::abandon() {
  forget_flight();
  for (Tensor& tensor : tensors_) tensor.chunks_left = 0;
  tensors_under_way_ = 0;
  completed_.clear();
  cache_.reset();
}

std::vector<uint32_t> Exchange::take_completed() {
  return std::exchange(completed_, {});
}

Laggard Exchange::laggard(uint32_t tensor_id, uint64_t now_ns) const {
  const Tensor& tensor = tensors_[tensor_id];
  Laggard laggard;
  if (tensor.chunks_left == 0) return laggard;
  for (uint32_t index = 0; index < tensor.chunk_count; ++index) {
    const Chunk& chunk = chunks_[tensor.first_chunk + index];
    if (!chunk.in_flight) continue;
    if (chunk.waits_for_others && chunk.missing_workers > 0) {
      return {.kind = Laggard::Kind::kRank,
              .rank = chunk.first_missing_rank,
              .missing_workers = chunk.missing_workers,
              .asked_ns = chunk.asked_ns,
              .waited_ms = chunk.waited_ms,
              .last_percent = chunk.last_percent};
    }
    const uint64_t heard_ns = std::max(lanes_[chunk.pipeline].last_heard_ns, chunk.pushed_ns);
    laggard = {.kind = Laggard::Kind::kBox, .silent_ns = now_ns > heard_ns ? now_ns - heard_ns : 0};
  }
  return laggard;
}

Statistics Exchange::statistics() const {
  Statistics statistics = statistics_;
  for (const Lane& lane : lanes_) {
    statistics.smoothed_rtt_us =
        std::max(statistics.smoothed_rtt_us, static_cast<uint32_t>(lane.rtt.smoothed_ns() / 1000));
  }
  return statistics;
}

}  // namespace pbox::worker
