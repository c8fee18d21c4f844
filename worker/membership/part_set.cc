#include "worker/membership/part_set.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "worker/membership/part_layout.h"

namespace pbox::worker {
namespace {

// Puts all tensors into one part, because the caller has divided the job itself.
std::vector<std::vector<Piece>> one_part(const std::vector<TensorSpec>& tensors, uint32_t part,
                                         uint32_t parts) {
  PBOX_CHECK(part < parts);
  std::vector<std::vector<Piece>> pieces(parts);
  for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    pieces[part].push_back({tensor, 0, tensors[tensor].elements});
  }
  return pieces;
}

}  // namespace

PartSet::PartSet(const MembershipOptions& options, const proto::PartMap& map,
                 const std::vector<TensorSpec>& tensors, const proto::Optimizer& optimizer)
    : world_size_(options.world_size),
      optimizes_(options.optimize),
      drops_rounds_(options.sync.model == wire::SyncModel::kDrop),
      verdict_(std::make_shared<HeldVerdict>(options.rejoin)),
      pieces_(tensors.size()),
      left_(tensors.size(), 0) {
  MembershipOptions part_options = options;
  part_options.verdict = verdict_;
  part_options.paths = std::make_shared<SendPaths>();
  merge_box_list(map, part_options.boxes);
  part_options.parts = static_cast<uint32_t>(map.parts_size());
  if (part_options.chunk_bytes == 0) part_options.chunk_bytes = map.chunk_bytes();
  std::vector<uint32_t> first_chunks;  // indexed by tensor
  uint64_t chunks = 0;
  for (const TensorSpec& tensor : tensors) {
    first_chunks.push_back(static_cast<uint32_t>(chunks));
    const uint64_t bytes = tensor.elements * wire::dtype_bytes(tensor.dtype);
    chunks += wire::chunk_count(bytes, part_options.chunk_bytes);
  }
  auto layout = options.parts > 1
                    ? one_part(tensors, options.part, options.parts)
                    : cut_into_parts(tensors, part_options.chunk_bytes, part_options.parts);
  if (options.parts > 1) part_options.parts = options.parts;
  part_options.filled_parts.clear();
  for (uint32_t index = 0; index < layout.size(); ++index) {
    if (!layout[index].empty()) part_options.filled_parts.push_back(index);
  }
  for (uint32_t index = 0; index < layout.size(); ++index) {
    if (layout[index].empty()) continue;
    const proto::PartPlace& place = map.parts(options.parts > 1 ? 0 : static_cast<int>(index));
    part_options.part = index;
    part_options.box_name = place.box();
    part_options.box = place.address().empty() ? options.box : place.address();
    part_options.seed = options.seed + index;
    std::vector<TensorSpec> of_pieces;
    for (const auto& piece : layout[index]) {
      of_pieces.push_back(tensors[piece.tensor]);
      of_pieces.back().elements = piece.elements;
      of_pieces.back().first_element = piece.first_element;
    }
    auto& part = *parts_.emplace_back(std::make_unique<Part>(part_options, of_pieces, optimizer));
    for (const auto& piece : layout[index]) {
      const auto tensor = static_cast<uint32_t>(part.tensors.size());
      const uint64_t offset = piece.first_element * wire::dtype_bytes(tensors[piece.tensor].dtype);
      part.tensors.push_back(piece.tensor);
      part.first_chunks.push_back(first_chunks[piece.tensor] +
                                  static_cast<uint32_t>(offset / part_options.chunk_bytes));
      part.chunk_counts.push_back(static_cast<uint32_t>(
          wire::chunk_count(piece.elements * wire::dtype_bytes(tensors[piece.tensor].dtype),
                            part_options.chunk_bytes)));
      pieces_[piece.tensor].push_back(
          {.part = static_cast<uint32_t>(parts_.size() - 1), .tensor = tensor, .offset = offset});
    }
  }
}

Status PartSet::begin() {
  uint32_t pipelines = 0;
  for (auto& part : parts_) {
    PBOX_CHECK(part->membership.exchange() != nullptr);
    part->first_pipeline = pipelines;
    pipelines += part->membership.exchange()->pipeline_count();
  }
  for (const auto& part : parts_) {
    const uint64_t snapshot = part->membership.history().restored.snapshot;
    if (snapshot == restored().snapshot) continue;
    return Error{ErrorCode::kMismatch,
                 "the boxes did not restore the same snapshot of the job: one has snapshot " +
                     std::to_string(restored().snapshot) + ", another one " +
                     std::to_string(snapshot) + "; set PBOX_RESTORE to the number of one snapshot"};
  }
  for (auto& pieces : pieces_) {
    uint32_t least = UINT32_MAX;
    for (const Piece& piece : pieces) least = std::min(least, exchange(piece).round(piece.tensor));
    for (Piece& piece : pieces) {
      const uint32_t ahead = exchange(piece).round(piece.tensor) - least;
      // With model `drop` other ranks need not wait for this one. A part that is behind answers the
      // first push with its newest result, and then skips to the round that is open.
      if (ahead > 1 && !drops_rounds_) {
        return Error{ErrorCode::kWorkerLost,
                     "the job went on between the joins of its parts: one part is in round " +
                         std::to_string(least) + ", another in round " +
                         std::to_string(least + ahead) + "; start this rank again with rejoin"};
      }
      // The operation for initial weights brings every part to round 1 by itself: a part that has
      // finished round 0 fetches them.
      piece.is_ahead = ahead > 0 && (least > 0 || !optimizes_);
    }
  }
  return ok_status();
}

void PartSet::start(const Operation& operation) {
  PBOX_CHECK(operation.tensor < pieces_.size() && left_[operation.tensor] == 0);
  left_[operation.tensor] = static_cast<uint32_t>(pieces_[operation.tensor].size());
  for (Piece& piece : pieces_[operation.tensor]) {
    Operation of_piece = operation;
    of_piece.tensor = piece.tensor;
    if (operation.input != nullptr) of_piece.input = operation.input + piece.offset;
    of_piece.output = operation.output + piece.offset;
    const bool is_ahead = !operation.initial_weights && std::exchange(piece.is_ahead, false);
    of_piece.fetch = operation.fetch || is_ahead;
    parts_[piece.part]->membership.start(of_piece);
  }
}

void PartSet::ask_priorities(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor) {
  for (auto& part : parts_) {
    std::vector<int32_t> priorities;
    if (!by_tensor.empty()) {
      for (const uint32_t tensor : part->tensors) priorities.push_back(by_tensor[tensor]);
    }
    part->membership.ask_priorities(policy, priorities);
  }
}

void PartSet::ask_learning_rate(float learning_rate) {
  for (auto& part : parts_) part->membership.ask_learning_rate(learning_rate);
}

void PartSet::ask_sync(const proto::SetSync& request) {
  for (auto& part : parts_) part->membership.ask_sync(request);
}

void PartSet::leave(const std::string& reason) {
  for (auto& part : parts_) part->membership.leave(reason);
}

std::vector<uint32_t> PartSet::take_completed() {
  std::vector<uint32_t> completed;
  for (auto& part : parts_) {
    if (part->membership.exchange() == nullptr) continue;
    for (const uint32_t piece : part->membership.exchange()->take_completed()) {
      const uint32_t tensor = part->tensors[piece];
      PBOX_CHECK(left_[tensor] > 0);
      if (--left_[tensor] == 0) completed.push_back(tensor);
    }
  }
  return completed;
}

uint32_t PartSet::round(uint32_t tensor) const {
  PBOX_CHECK(tensor < pieces_.size());
  uint32_t least = UINT32_MAX;
  for (const Piece& piece : pieces_[tensor]) {
    least = std::min(least, exchange(piece).round(piece.tensor));
  }
  return least;
}

uint32_t PartSet::contributors(uint32_t tensor) const {
  PBOX_CHECK(tensor < pieces_.size());
  uint32_t least = world_size_;
  for (const Piece& piece : pieces_[tensor]) {
    least = std::min<uint32_t>(least, exchange(piece).contributors(piece.tensor));
  }
  return least;
}

const std::optional<Error>& PartSet::failure() {
  if (failure_) return failure_;
  for (const auto& part : parts_) {
    if (part->membership.failure() && !failure_) failure_ = part->membership.failure();
  }
  if (!failure_) return failure_;
  for (auto& part : parts_) part->membership.abandon(*failure_);
  return failure_;
}

std::optional<PartSet::Loss> PartSet::loss() const {
  std::optional<Loss> longest;
  for (const auto& part : parts_) {
    const auto& loss = part->membership.loss();
    if (!loss || (longest && longest->since_ns <= loss->since_ns)) continue;
    longest = Loss{{loss->since_ns, loss->reason}, part->membership.box()};
  }
  return longest;
}

Membership::Restored PartSet::optimizer_state() const {
  std::optional<Membership::Restored> oldest;
  for (const auto& part : parts_) {
    if (part->membership.history().optimizer_restarts == 0) continue;
    const Membership::Restored& state = part->membership.history().optimizer_state;
    if (!oldest || state.snapshot < oldest->snapshot) oldest = state;
  }
  return oldest.value_or(Membership::Restored());
}

uint64_t PartSet::optimizer_restarts() const {
  uint64_t restarts = 0;
  for (const auto& part : parts_) restarts += part->membership.history().optimizer_restarts;
  return restarts;
}

uint64_t PartSet::recoveries() const {
  uint64_t recoveries = 0;
  for (const auto& part : parts_) recoveries += part->membership.history().recoveries;
  return recoveries;
}

uint64_t PartSet::learning_rates_set() const {
  uint64_t least = UINT64_MAX;
  for (const auto& part : parts_)
    least = std::min(least, part->membership.requests().learning_rates_set());
  return least;
}

uint64_t PartSet::syncs_answered() const {
  uint64_t least = UINT64_MAX;
  for (const auto& part : parts_)
    least = std::min(least, part->membership.requests().syncs_answered());
  return least;
}

std::string PartSet::sync_refusal(uint64_t sequence) const {
  std::string refusal;
  for (const auto& part : parts_) {
    if (refusal.empty()) refusal = part->membership.requests().sync_refusal(sequence);
  }
  return refusal;
}

std::vector<uint32_t> PartSet::absent_ranks() const {
  std::vector<uint32_t> absent;
  for (const auto& part : parts_) {
    std::vector<uint32_t> both;
    const auto& ranks = part->membership.absent_ranks();
    std::set_union(absent.begin(), absent.end(), ranks.begin(), ranks.end(),
                   std::back_inserter(both));
    absent = std::move(both);
  }
  return absent;
}

// A late rank is more useful to name than a late box.
PartSet::Late PartSet::laggard(uint32_t tensor, uint64_t now_ns) const {
  Late late;
  for (const Piece& piece : pieces_[tensor]) {
    const Part& part = *parts_[piece.part];
    if (!exchange(piece).busy(piece.tensor)) continue;
    const Laggard of_piece = exchange(piece).laggard(piece.tensor, now_ns);
    if (late.kind == Laggard::Kind::kRank || of_piece.kind == Laggard::Kind::kNobody) continue;
    if (late.kind == Laggard::Kind::kBox && of_piece.kind == Laggard::Kind::kBox) continue;
    late = {of_piece, part.membership.box()};
  }
  return late;
}

Statistics PartSet::statistics() const {
  Statistics sum;
  for (const auto& part : parts_) {
    const Statistics part_statistics = part->membership.exchange()->statistics();
    sum.bytes_pushed += part_statistics.bytes_pushed;
    sum.bytes_pulled += part_statistics.bytes_pulled;
    sum.zero_fragments += part_statistics.zero_fragments;
    sum.packets_sent += part_statistics.packets_sent;
    sum.packets_received += part_statistics.packets_received;
    sum.retransmitted_fragments += part_statistics.retransmitted_fragments;
    sum.probes_sent += part_statistics.probes_sent;
    sum.stale_packets += part_statistics.stale_packets;
    sum.rejected_packets += part_statistics.rejected_packets;
    sum.smoothed_rtt_us = std::max(sum.smoothed_rtt_us, part_statistics.smoothed_rtt_us);
    sum.shadow_bytes += part_statistics.shadow_bytes;
    sum.staleness.add(part_statistics.staleness);
    sum.dropped_rounds += part_statistics.dropped_rounds;
  }
  return sum;
}

uint32_t PartSet::pipeline_count() const {
  uint32_t count = 0;
  for (const auto& part : parts_) count += part->membership.exchange()->pipeline_count();
  return count;
}

void PartSet::trace_chunks(size_t capacity) {
  for (auto& part : parts_) part->membership.exchange()->trace_chunks(capacity);
}

size_t PartSet::take_chunk_times(std::span<ChunkTimes> times) {
  size_t count = 0;
  for (auto& part : parts_) {
    const size_t taken = part->membership.exchange()->take_chunk_times(times.subspan(count));
    for (ChunkTimes& one : times.subspan(count, taken)) {
      uint32_t first_in_part = 0;
      for (uint32_t before = 0; before < one.tensor; ++before) {
        first_in_part += part->chunk_counts[before];
      }
      one.chunk += part->first_chunks[one.tensor] - first_in_part;
      one.tensor = part->tensors[one.tensor];
      one.pipeline += part->first_pipeline;
    }
    count += taken;
  }
  return count;
}

}  // namespace pbox::worker
