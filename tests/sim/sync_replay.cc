#include "tests/sim/sync_replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/push_weight.h"
#include "pipeline/optimizer/reference.h"
#include "pipeline/reduce/reference.h"
#include "pipeline/sync/rules.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

using wire::SyncModel;

namespace {

// Returns whether a chunk of a tensor of this model may have the rule. An adaptive tensor may have
// any PSSP within its bounds.
bool follows(const wire::SyncSpec& rule, const wire::SyncSpec& model) {
  return rule == model ||
         (model.model == SyncModel::kAdaptive && rule.model == SyncModel::kPssp &&
          rule.staleness >= model.staleness_min && rule.staleness <= model.staleness &&
          rule.probability >= model.probability && rule.probability <= 1);
}

}  // namespace

SyncReplay::SyncReplay(pipeline::JobShard& shard, JobModel& job)
    : shard_(shard), job_(job), spis_(shard.worker_count()) {
  const uint32_t ranks = shard.worker_count();
  present_ = follow_sessions();
  for (const pipeline::Chunk& held : shard.chunks()) {
    Chunk chunk;
    chunk.held = &held;
    chunk.rule = held.sync->spec;
    chunk.next.resize(ranks);
    chunk.claimed.resize(ranks);
    chunk.pushed.resize(ranks);
    chunk.weights.resize(held.elements);
    chunk.sums.resize(held.elements);
    chunk.weight_sums.resize(held.fragment_count);
    if (held.rounds_finished > 0) begin_as_held(chunk);
    chunks_.push_back(std::move(chunk));
    check_model(chunks_.back());
  }
}

void SyncReplay::begin_as_held(Chunk& chunk) const {
  const pipeline::Chunk& held = *chunk.held;
  chunk.clock = held.rounds_finished;
  chunk.weights.assign(held.weights, held.weights + held.elements);
  if (has_deltas(chunk)) begin_deltas(chunk);
  for (uint32_t rank = 0; rank < chunk.next.size(); ++rank) {
    chunk.next[rank] = chunk.clock;
    if (!applies_on_arrival(chunk)) {
      const sync::Pushed& pushed = held.sync->pushed[rank];
      chunk.pushed[rank] = {pushed.round, pushed.mask, pushed.counted};
      continue;
    }
    chunk.next[rank] = held.sync->progress.next(rank);
    chunk.claimed[rank] = held.claimed[rank];
    chunk.parked |= uint32_t{held.sync->progress.is_parked(rank)} << rank;
  }
}

void SyncReplay::check_model(const Chunk& chunk) const {
  const wire::SyncSpec& model = job_.model_of(chunk.held->id);
  const wire::SyncSpec& rule = chunk.held->sync->spec;
  const uint32_t tensor = job_.chunks[chunk.held->id].tensor;
  const bool is_former = !job_.former_models.empty() && follows(rule, job_.former_models[tensor]);
  const bool is_registered = job_.may_have_registered_models && follows(rule, job_.options.sync);
  require(follows(rule, model) || is_former || is_registered, [&] {
    return place(chunk) + ": the box runs another model, " + wire::sync_text(rule) +
           " instead of " + wire::sync_text(model);
  });
}

std::string SyncReplay::place(const Chunk& chunk) const {
  return job_.title + " chunk " + std::to_string(chunk.held->id) + " clock " +
         std::to_string(chunk.clock);
}

bool SyncReplay::applies_on_arrival(const Chunk& chunk) const {
  return wire::applies_on_arrival(chunk.rule.model) && chunk.clock > 0;
}

bool SyncReplay::is_gradient_of_table(const Chunk& chunk) const {
  return chunk.held->table != nullptr && chunk.clock > 0;
}

bool SyncReplay::is_sound(const Chunk& chunk, const wire::Header& header) const {
  if (header.type() == wire::PacketType::kPull) {
    return header.payload_bytes == sizeof(wire::PullPayload) ||
           header.payload_bytes == sizeof(wire::ProvingPullPayload);
  }
  if (header.type() == wire::PacketType::kPush && is_gradient_of_table(chunk)) {
    return (header.dtype_scale & 15) == static_cast<uint16_t>(job_.options.dtype);
  }
  return header.type() == wire::PacketType::kPush && header.fragment < fragment_count(chunk) &&
         (header.dtype_scale & 15) == static_cast<uint16_t>(dtype_of(chunk)) &&
         (job_.options.weighted || wire::weight_code(header) == 0) &&
         header.payload_bytes ==
             wire::payload_bytes(dtype_of(chunk), elements_of(chunk, header.fragment));
}

void SyncReplay::received(uint32_t rank, const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  // A rank whose packets come from another host's address gets no packets before it has proved that
  // address.
  if (shard_.sessions()[rank].reachable) heard_ |= 1u << rank;
  if (header.epoch != epoch_ || header.generation != generation_) return;
  const pipeline::Chunk* held = shard_.find(header.chunk);
  if (held == nullptr) return;
  Chunk& chunk = chunks_[static_cast<size_t>(held - shard_.chunks().data())];
  if (!is_sound(chunk, header)) return;
  if (header.type() == wire::PacketType::kPull) {
    on_pull(chunk, rank, parsed);
  } else {
    on_push(chunk, rank, parsed);
  }
}

void SyncReplay::on_push(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  const bool applies = applies_on_arrival(chunk);
  if (chunk.last && chunk.clock > 0) return;  // takes no push until the backup box has a copy
  wire::RowsView rows;
  uint64_t fragments = uint64_t{1} << header.fragment;
  if (is_gradient_of_table(chunk)) {
    if (!wire::read_push(chunk.held->table->layout, parsed, rows)) return;
    fragments = rows.fragments;
  }
  const uint64_t expected = applies ? chunk.next[rank] : chunk.clock;
  const int32_t ahead = wire::round_distance(header.round, static_cast<uint32_t>(expected));
  const bool is_late = !applies && ahead < 0 && chunk.clock > 0;
  if (is_late && wire::round_distance(header.round, chunk.pushed[rank].round) > 0) {
    chunk.pushed[rank] = {header.round, 0, 0};
  }
  if (is_late && header.round == chunk.pushed[rank].round) {
    const uint64_t before =
        std::exchange(chunk.pushed[rank].mask, chunk.pushed[rank].mask | fragments);
    const bool is_whole =
        before != chunk.pushed[rank].mask && chunk.pushed[rank].mask == full_mask(chunk);
    if (is_whole && ahead == -1) note_lateness(chunk, chunk.former_ns);
    const bool counts = before != chunk.pushed[rank].mask && chunk.rule.counts_late;
    if (counts && is_gradient_of_table(chunk)) take_rows(chunk, rows);
    if (counts && !is_gradient_of_table(chunk)) add(chunk, rank, parsed);
    if (is_whole) chunk.due |= (1u << rank) & heard_;
  }
  const bool is_claimed = (chunk.claimed[rank] & fragments) != 0;
  const bool is_parked = (chunk.parked >> rank & 1) != 0;
  if (ahead != 0 || is_claimed || is_parked) return;
  if (is_gradient_of_table(chunk)) {
    chunk.claimed[rank] |= fragments;
    take_rows(chunk, rows);
  } else {
    chunk.claimed[rank] |= fragments;
    add(chunk, rank, parsed);
  }
  if (chunk.claimed[rank] != full_mask(chunk)) return;
  if (!applies) {
    if (chunk.quorum_ns != 0) note_lateness(chunk, chunk.quorum_ns);
    close_if_complete(chunk);
    return;
  }
  const uint64_t round = chunk.next[rank]++;
  chunk.claimed[rank] = 0;
  advance(chunk);
  if (chunk.reads_cached()) return;
  if (waits(chunk, rank, round)) {
    chunk.parked |= 1u << rank;
  } else {
    chunk.due |= (1u << rank) & heard_;
  }
}

void SyncReplay::take_rows(Chunk& chunk, const wire::RowsView& rows) const {
  const uint32_t element_bytes = job_.element_bytes();
  wire::for_each_run(
      chunk.held->table->layout, rows, [&](const wire::RowRun& run, const std::byte* source) {
        std::vector<float> values((run.end - run.begin) / element_bytes);
        reduce::reference::store(job_.options.dtype, values.data(), source, values.size(), FLT_MAX);
        const size_t first = run.begin / element_bytes;
        if (applies_on_arrival(chunk)) {
          step({chunk.weights.data() + first, values.size()}, values);
        } else {
          for (size_t index = 0; index < values.size(); ++index) {
            chunk.sums[first + index] += values[index];
          }
        }
      });
}

void SyncReplay::divide_by_weights(const Chunk& chunk, uint32_t fragment,
                                   std::span<float> sums) const {
  if (!job_.options.weighted) return;
  const float share = 1.0f / static_cast<float>(chunk.weight_sums[fragment]);
  reduce::reference::scale(sums.data(), share, sums.size());
}

void SyncReplay::step(Chunk& chunk, uint32_t fragment, std::span<const float> gradient) const {
  if (!job_.options.weighted) return step(part(chunk.weights, chunk, fragment), gradient);
  std::vector<float> mean(gradient.begin(), gradient.end());
  divide_by_weights(chunk, fragment, mean);
  const optimizer::OptimizerSpec spec = optimizer_of(job_.options);
  const auto coefficients = optimizer::step_coefficients(
      spec, {.learning_rate = spec.learning_rate, .gradient_scale = 1, .step = 1});
  optimizer::reference::step(spec.kind, coefficients, part(chunk.weights, chunk, fragment).data(),
                             nullptr, mean.data(), mean.size());
}

void SyncReplay::step(std::span<float> weights, std::span<const float> gradient) const {
  const bool is_mean = job_.options.reduction == pipeline::Reduction::kMean;
  const float share = is_mean ? 1.0f / static_cast<float>(job_.options.workers) : 1.0f;
  const float rate = optimizer_of(job_.options).learning_rate;
  for (size_t index = 0; index < weights.size(); ++index) {
    weights[index] -= rate * (share * gradient[index]);
  }
}

// Advances the clock, which is the lowest round that any rank pushes next, and releases the reads
// that may go on.
void SyncReplay::advance(Chunk& chunk) {
  uint64_t slowest = UINT64_MAX;
  for (uint32_t rank = 0; rank < chunk.next.size(); ++rank) {
    if (is_present(rank)) slowest = std::min(slowest, chunk.next[rank]);
  }
  if (slowest == UINT64_MAX || slowest == chunk.clock) return;
  chunk.clock = slowest;
  for (uint32_t rank = 0; rank < chunk.next.size(); ++rank) {
    const bool is_parked = (chunk.parked >> rank & 1) != 0;
    if (!is_parked || !goes_on(chunk, chunk.next[rank] - 1)) continue;
    chunk.parked &= ~(1u << rank);
    chunk.due |= (1u << rank) & heard_;
  }
  const bool sends_unasked = chunk.rule.model == SyncModel::kEssp && chunk.reads_cached();
  if (sends_unasked) chunk.due |= present_ & heard_;
}

uint64_t SyncReplay::fastest(const Chunk& chunk) const {
  uint64_t fastest = 0;
  for (uint32_t rank = 0; rank < chunk.next.size(); ++rank) {
    if (is_present(rank)) fastest = std::max(fastest, chunk.next[rank]);
  }
  return fastest - 1;
}

// Returns whether a rank that has pushed `round` must wait. A cached or answered read waits until
// the data is new enough. A fresh read waits depending on the rank's lead.
bool SyncReplay::waits(const Chunk& chunk, uint32_t rank, uint64_t round) const {
  const auto staleness = static_cast<int64_t>(chunk.rule.staleness);
  const auto lead = static_cast<int64_t>(round) - static_cast<int64_t>(chunk.clock);
  if (chunk.waits_for_clock()) return lead + 1 > staleness;
  if (chunk.rule.model == SyncModel::kAsp || lead < staleness) return false;
  if (chunk.rule.model == SyncModel::kSsp) return true;
  if (round != fastest(chunk)) return false;
  const bool is_dynamic = chunk.rule.model == SyncModel::kDpssp;
  const double share =
      is_dynamic ? 1 + std::exp(static_cast<double>(staleness) - static_cast<double>(lead)) : 1;
  const double significance =
      chunk.rule.by_gradient ? static_cast<double>(chunk.held->sync->sizes[rank].significance) : 1;
  return sync::draw(shard_.draw_seed, rank, round) <=
         static_cast<double>(chunk.rule.probability) * significance / share;
}

// Returns whether a rank that waits to read `round` is released, now that the clock has advanced.
bool SyncReplay::goes_on(const Chunk& chunk, uint64_t round) const {
  if (chunk.waits_for_clock()) return chunk.clock + chunk.rule.staleness >= round + 1;
  return chunk.rule.release == wire::Release::kSoft || chunk.clock > round;
}

void SyncReplay::on_pull(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed) {
  if (has_deltas(chunk)) return note_pull(chunk, rank, parsed.header);
  wire::PullPayload pull;
  std::memcpy(&pull, parsed.payload, sizeof(pull));
  const bool wants = (chunk.held->full_mask & ~pull.held_mask) != 0;
  if (!chunk.reads_cached() || !applies_on_arrival(chunk) || !wants) return;
  if (parsed.header.round + 1 != static_cast<uint32_t>(chunk.next[rank])) return;
  if (waits(chunk, rank, chunk.next[rank] - 1)) chunk.parked |= 1u << rank;
}

// Takes over the shard's epoch, generation and sessions. Returns which ranks are in the job, as
// bits.
uint32_t SyncReplay::follow_sessions() {
  epoch_ = shard_.epoch;
  generation_ = shard_.generation;
  uint32_t present = 0;
  for (const auto& session : shard_.sessions()) {
    spis_[session.rank] = session.spi;
    present |= uint32_t{session.present} << session.rank;
    if (!session.reachable) heard_ &= ~(1u << session.rank);
  }
  return present;
}

void SyncReplay::note_command() {
  for (Chunk& chunk : chunks_) chunk.due = 0;
  const std::vector<uint32_t> former_spis = spis_;
  const uint32_t present = follow_sessions();
  for (uint32_t rank = 0; rank < spis_.size(); ++rank) {
    if (spis_[rank] != former_spis[rank]) forget_late_push(rank);
  }
  for (Chunk& chunk : chunks_) {
    if (chunk.held->sync->spec != chunk.rule) follow_model(chunk);
  }
  if (present == present_) return;
  present_ = present;
  for (Chunk& chunk : chunks_) {
    chunk.parked &= present;
    if (applies_on_arrival(chunk)) {
      advance(chunk);
    } else {
      close_if_complete(chunk);
    }
  }
}

// Called when a rank has a new session. The rest of a late push that had not arrived in the old
// session never comes, and the new session may belong to a process without weights.
void SyncReplay::forget_late_push(uint32_t rank) {
  for (Chunk& chunk : chunks_) {
    const bool has_closed = chunk.last != nullptr && has_deltas(chunk);
    chunk.pushed[rank].mask = has_closed ? delta_mask(chunk) : full_mask(chunk);
    chunk.lacking |= 1u << rank;
  }
}

// Applies a changed model to the chunk. A read that waits is judged by the new model; a read that
// was answered stays answered.
void SyncReplay::follow_model(Chunk& chunk) {
  chunk.rule = chunk.held->sync->spec;
  check_model(chunk);
  if (!applies_on_arrival(chunk)) return close_if_complete(chunk);
  for (uint32_t rank = 0; rank < chunk.next.size(); ++rank) {
    if ((chunk.parked >> rank & 1) == 0 || waits(chunk, rank, chunk.next[rank] - 1)) continue;
    chunk.parked &= ~(1u << rank);
    chunk.due |= (1u << rank) & heard_;
  }
}

void SyncReplay::check_sent(uint32_t rank, const nic::TxPacket& packet) {
  const wire::Header& header = packet.header;
  const pipeline::Chunk* held = shard_.find(header.chunk);
  if (header.type() != wire::PacketType::kResult || held == nullptr) return;
  Chunk& current = chunks_[static_cast<size_t>(held - shard_.chunks().data())];
  current.due &= ~(1u << rank);
  const Chunk& chunk = current.last ? *current.last : current;
  const auto who = [&] { return place(chunk) + ", sent to rank " + std::to_string(rank) + ": "; };
  require(is_present(rank), [&] { return who() + "it was excluded"; });
  require(header.round + 1 == static_cast<uint32_t>(chunk.clock),
          [&] { return who() + "says that its clock is " + std::to_string(header.round + 1); });
  // A parked rank is told one round less than the box has.
  const bool is_exact = chunk.reads_cached();
  const bool has_more = (is_exact ? chunk.claimed[rank] : 0) >> header.fragment & 1;
  const bool is_waiting = !is_exact && (chunk.parked >> rank & 1) != 0;
  uint64_t applied = chunk.next[rank] + (has_more ? 1 : 0) - (is_waiting ? 1 : 0);
  if (!applies_on_arrival(chunk)) {
    const Pushed& pushed = chunk.pushed[rank];
    const bool is_full = has_deltas(chunk) && names_f32(header);
    const bool is_whole = pushed.counted == full_mask(chunk);
    applied = pushed.round + (is_full ? is_whole : pushed.counted >> header.fragment & 1);
  }
  require(header.applied() == static_cast<uint32_t>(applied), [&] {
    return who() + "says that its rounds below " + std::to_string(header.applied()) +
           " are in, but it is " + std::to_string(applied);
  });
  if (!job_.can_be_replayed()) return;
  if (has_deltas(chunk)) return check_delta_sent(chunk, rank, packet);
  const auto compare = [&](uint32_t first, const std::byte* payload, uint32_t count) {
    for (uint32_t index = 0; index < count; ++index) {
      const float weight = reduce::reference::load_element(job_.options.dtype, payload, index);
      require(weight == chunk.weights[first + index],
              [&] { return who() + "the payload differs from the current weights"; });
    }
  };
  const uint32_t element_bytes = job_.element_bytes();
  if ((header.flags & wire::flag::kRows) == 0) {
    compare(header.fragment * (shard_.fragment_bytes / element_bytes), packet.payload,
            elements_of(chunk, header.fragment));
    return;
  }
  wire::RowsView rows;
  require(held->table != nullptr &&
              wire::parse_rows(held->table->layout, {header, packet.payload}, rows),
          [&] { return who() + "a payload by rows is malformed"; });
  wire::for_each_run(
      held->table->layout, rows, [&](const wire::RowRun& run, const std::byte* source) {
        compare(run.begin / element_bytes, source, (run.end - run.begin) / element_bytes);
      });
}

void SyncReplay::check_chunk(uint32_t id) const {
  const pipeline::Chunk* held = shard_.find(id);
  if (held == nullptr) return;
  const Chunk& chunk = chunks_[static_cast<size_t>(held - shard_.chunks().data())];
  const auto where = [&] { return place(chunk) + ": "; };
  require(held->rounds_finished == chunk.clock, [&] {
    return where() + "the replay's clock differs from the box's, " +
           std::to_string(held->rounds_finished);
  });
  const bool applies = applies_on_arrival(chunk);
  const sync::Progress& progress = held->sync->progress;
  for (uint32_t rank = 0; rank < chunk.next.size(); ++rank) {
    const auto who = [&] { return where() + "rank " + std::to_string(rank) + ": "; };
    require(held->claimed[rank] == chunk.claimed[rank],
            [&] { return who() + "the claimed fragments differ from those that arrived"; });
    require(is_present(rank) || !held->sync->replies_due.has(rank),
            [&] { return who() + "is owed a reply, but was excluded"; });
    if (!applies) continue;
    require(!is_present(rank) || progress.next(rank) == chunk.next[rank], [&] {
      return who() + "has pushed the rounds below " + std::to_string(chunk.next[rank]) +
             ", the box has counted " + std::to_string(progress.next(rank));
    });
    const bool is_parked = (chunk.parked >> rank & 1) != 0;
    require(progress.is_parked(rank) == is_parked, [&] {
      return who() + (is_parked ? "must wait, but does not" : "waits, but need not");
    });
  }
  require(!applies || present_ == 0 || progress.slowest() == chunk.clock,
          [&] { return where() + "the slowest is not at " + std::to_string(progress.slowest()); });
  require(!applies || present_ == 0 || progress.fastest() == fastest(chunk),
          [&] { return where() + "the fastest is not at " + std::to_string(progress.fastest()); });
}

void SyncReplay::check_answers(uint32_t id) const {
  const pipeline::Chunk* held = shard_.find(id);
  if (held == nullptr) return;
  const Chunk& chunk = chunks_[static_cast<size_t>(held - shard_.chunks().data())];
  for (uint32_t rank = 0; rank < chunk.next.size(); ++rank) {
    const bool departs = shard_.reply_cursor.chunk == held && shard_.reply_cursor.ranks.has(rank);
    const bool is_forgotten =
        (chunk.due >> rank & 1) != 0 && !departs && !held->sync->replies_due.has(rank);
    require(!is_forgotten, [&] {
      return place(chunk) + ": rank " + std::to_string(rank) +
             " may read, but no packet is queued for it";
    });
  }
}

void SyncReplay::check_weights(uint32_t id, uint32_t fragment) const {
  const pipeline::Chunk* held = shard_.find(id);
  if (held == nullptr || fragment >= held->fragment_count || !job_.can_be_replayed()) return;
  const Chunk& chunk = chunks_[static_cast<size_t>(held - shard_.chunks().data())];
  const uint32_t first = first_of(chunk, fragment);
  const uint32_t count = elements_of(chunk, fragment);
  const bool equal = std::equal(held->weights + first, held->weights + first + count,
                                chunk.weights.begin() + first);
  require(equal, [&] {
    return place(chunk) + ", fragment " + std::to_string(fragment) +
           ": the weights differ from the sum of the updates that arrived";
  });
  if (has_deltas(chunk)) check_delta(chunk);
}

void SyncReplay::check_all() const {
  uint32_t parked = 0;
  for (const Chunk& chunk : chunks_) {
    check_model(chunk);
    check_chunk(chunk.held->id);
    for (uint32_t index = 0; index < chunk.held->fragment_count; ++index) {
      check_weights(chunk.held->id, index);
    }
    parked += static_cast<uint32_t>(std::popcount(chunk.parked));
  }
  require(shard_.parked_count == parked,
          [&] { return job_.title + ": the number of reads that wait is wrong"; });
}

void SyncReplay::check_end() const {
  check_all();
  if (present_ != job_.all_ranks() || !job_.reads.all_finished() || !job_.has_known_sums()) return;
  if (job_.options.sync.model == SyncModel::kDrop) return;
  for (const Chunk& chunk : chunks_) {
    const JobModel::Chunk& layout = job_.chunks[chunk.held->id];
    std::vector<std::byte> bytes(chunk.held->wire_bytes);
    reduce::reference::narrow(job_.options.dtype, bytes.data(), chunk.held->weights,
                              chunk.held->elements);
    const auto what =
        job_.reads.lacks(layout.tensor, layout.first_element, layout.elements, bytes.data());
    require(!what, [&] { return place(chunk) + ": " + *what; });
  }
}

}  // namespace pbox::sim
