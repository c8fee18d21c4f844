#include "worker/collective/collectives.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "nic/wire/crc32c.h"
#include "worker/collective/call_text.h"

namespace pbox::worker {
namespace {

using wire::Audience;
using wire::Combine;
using wire::reduces;
using wire::Verb;

// A job needs slots for pieces in flight and for pieces that wait for the slowest rank.
constexpr uint64_t kSlotsMin = 16;
// Host memory of a slice: large enough that a copy reaches the bus's rate, small enough that copies
// and the network overlap within one bucket of gradients.
constexpr uint64_t kSliceBytes = 4u << 20;

// The box does not need the type of an operation that only moves data.
wire::Dtype wire_dtype(const CollectiveCall& call) {
  return reduces(call.verb) ? call.dtype : wire::Dtype::kU8;
}

uint64_t bytes_of(const CollectiveCall& call) {
  return call.verb == Verb::kBarrier ? 0 : call.count * wire::dtype_bytes(call.dtype);
}

bool has_segments(Verb verb) {
  return verb == Verb::kAllGather || verb == Verb::kReduceScatter;
}

uint32_t digest_of(const CollectiveCall& call, uint64_t piece) {
  const std::array<uint64_t, 7> words = {call.number,
                                         static_cast<uint64_t>(call.verb),
                                         static_cast<uint64_t>(call.combine),
                                         static_cast<uint64_t>(call.dtype),
                                         call.count,
                                         call.root,
                                         piece};
  return wire::crc32c(0, reinterpret_cast<const std::byte*>(words.data()), sizeof(words));
}

}  // namespace

Collectives::Collectives(const Options& options) : options_(options), slots_(options.slots) {
  PBOX_CHECK(options.rank < options.world_size && options.slots > 0);
  PBOX_CHECK(options.chunk_bytes >= limits::kChunkBytesMin && options.chunk_bytes % 64 == 0);
}

std::vector<TensorSpec> Collectives::slots(uint64_t bytes, uint32_t chunk_bytes) {
  PBOX_CHECK(chunk_bytes > 0);
  const uint64_t count =
      std::clamp<uint64_t>(bytes / chunk_bytes, kSlotsMin, limits::kChunksPerJobMax);
  std::vector<TensorSpec> slots;
  for (uint64_t slot = 0; slot < count; ++slot) {
    slots.push_back({.name = "slot " + std::to_string(slot),
                     .elements = chunk_bytes,
                     .dtype = wire::Dtype::kU8});
  }
  return slots;
}

Status Collectives::check(const CollectiveCall& call) const {
  const std::string what = wire::kVerbNames[static_cast<size_t>(call.verb)];
  if (call.verb == Verb::kBarrier) return ok_status();
  if (reduces(call.verb) && call.combine == Combine::kMean &&
      !wire::is_floating_point(call.dtype)) {
    return invalid(what + ": PBOX_OP_MEAN of " + wire::to_string(call.dtype) +
                   " is not supported; use PBOX_OP_SUM and divide by the number of ranks");
  }
  if (call.verb == Verb::kBroadcast && call.root >= options_.world_size) {
    return invalid(what + ": root " + std::to_string(call.root) + " must be below world_size " +
                   std::to_string(options_.world_size));
  }
  constexpr uint64_t kBytesMax = uint64_t{1} << 46;
  if (call.count > kBytesMax / wire::dtype_bytes(call.dtype) / options_.world_size) {
    return invalid(what + ": count " + std::to_string(call.count) + " is too large; give at most " +
                   std::to_string(kBytesMax / wire::dtype_bytes(call.dtype) / options_.world_size));
  }
  return ok_status();
}

Status Collectives::check_buffers(const CollectiveRequest& request) const {
  const CollectiveCall& call = request.call;
  if (call.verb == Verb::kBarrier || call.count == 0) return ok_status();
  const std::string what = wire::kVerbNames[static_cast<size_t>(call.verb)];
  const bool reads = call.verb != Verb::kBroadcast || call.root == options_.rank;
  const bool writes = call.verb != Verb::kBroadcast || call.root != options_.rank;
  if (reads && request.input == nullptr) return invalid(what + ": in must not be NULL");
  if (writes && request.output == nullptr) return invalid(what + ": out must not be NULL");
  return ok_status();
}

// Returns the bytes of the largest piece that fits a slot.
uint64_t Collectives::piece_bytes(const CollectiveCall& call) const {
  const wire::Dtype dtype = wire_dtype(call);
  return options_.chunk_bytes / wire::combined_bytes(dtype) * wire::dtype_bytes(dtype);
}

uint64_t Collectives::pieces_of(const CollectiveCall& call) const {
  const uint64_t bytes = bytes_of(call);
  if (bytes == 0) return 1;
  const uint64_t pieces = (bytes + piece_bytes(call) - 1) / piece_bytes(call);
  return has_segments(call.verb) ? pieces * options_.world_size : pieces;
}

uint64_t Collectives::pieces_per_slice(const CollectiveCall& call) const {
  const uint64_t ranks = has_segments(call.verb) ? options_.world_size : 1;
  return std::max<uint64_t>(kSliceBytes / piece_bytes(call) / ranks, 1) * ranks;
}

SliceShape Collectives::slices(const CollectiveCall& call) const {
  const uint64_t ranks = has_segments(call.verb) ? options_.world_size : 1;
  const uint64_t pieces = pieces_per_slice(call);
  return {.bytes = pieces / ranks * piece_bytes(call),
          .count = (pieces_of(call) + pieces - 1) / pieces};
}

// Returns the place of a piece in the buffers. If each rank has a segment, consecutive pieces
// belong to the ranks in turn, so that all ranks send and receive at the same time.
Collectives::Place Collectives::place_of(const CollectiveCall& call, uint64_t piece) const {
  const uint64_t bytes = bytes_of(call);
  if (bytes == 0) return {};
  const bool is_segmented = has_segments(call.verb);
  const uint64_t ranks = is_segmented ? options_.world_size : 1;
  Place place;
  place.owner = is_segmented ? static_cast<uint32_t>(piece % ranks) : call.root;
  const uint64_t offset = piece / ranks * piece_bytes(call);
  const uint64_t in_segment = is_segmented ? place.owner * bytes + offset : offset;
  place.input = call.verb == Verb::kAllGather ? offset : in_segment;
  place.output = call.verb == Verb::kReduceScatter ? offset : in_segment;
  place.bytes = static_cast<uint32_t>(std::min(piece_bytes(call), bytes - offset));
  return place;
}

Operation Collectives::operation_of(const Pending& pending, uint64_t piece, uint32_t slot) const {
  const CollectiveCall& call = *pending.call;
  const Place place = place_of(call, piece);
  const bool is_owner = place.owner == options_.rank;
  SlotRound round{.call = pending.call, .shape = {}, .bytes = place.bytes, .is_empty = false};
  round.shape.digest = digest_of(call, piece);
  round.shape.dtype = wire_dtype(call);
  round.shape.combine = reduces(call.verb) ? call.combine : Combine::kCopy;
  round.shape.owner = static_cast<uint16_t>(place.owner);
  bool writes = true;
  switch (call.verb) {
    case Verb::kAllReduce: round.shape.audience = Audience::kAll; break;
    case Verb::kReduceScatter:
      round.shape.audience = options_.sends_to_owner_alone ? Audience::kOwner : Audience::kAll;
      writes = is_owner;
      break;
    case Verb::kAllGather:
      round.shape.audience = Audience::kAllButOwner;
      round.is_empty = !is_owner;
      break;
    case Verb::kBroadcast:
      round.shape.audience = Audience::kAllButOwner;
      round.is_empty = !is_owner;
      writes = !is_owner || pending.request.output != nullptr;
      break;
    case Verb::kBarrier: break;
  }
  if (place.bytes == 0) {
    round.shape = {.digest = round.shape.digest};
    round.is_empty = true;
  }
  return {.tensor = slot,
          .input = round.is_empty ? nullptr : pending.request.input + place.input,
          .output = writes && place.bytes > 0 ? pending.request.output + place.output : nullptr,
          .priority = pending.request.priority,
          .slot = std::make_shared<const SlotRound>(std::move(round))};
}

Result<uint64_t> Collectives::start(const CollectiveRequest& request) {
  if (const Status sound = check(request.call); !sound) return sound.error();
  if (const Status sound = check_buffers(request); !sound) return sound.error();
  auto pending = std::make_shared<Pending>();
  pending->request = request;
  CollectiveCall call = request.call;
  call.number = next_number_++;
  // Ranks must not seem to differ because of arguments that the verb does not use.
  if (!reduces(call.verb)) call.combine = Combine::kCopy;
  if (call.verb != Verb::kBroadcast) call.root = 0;
  if (call.verb == Verb::kBarrier) {
    call.count = 0;
    call.dtype = wire::Dtype::kU8;
  }
  pending->pieces = pending->left = pieces_of(call);
  pending->ready = request.input_follows ? 0 : pending->pieces;
  if (request.slice_callback != nullptr) {
    const uint64_t most = pieces_per_slice(call);
    for (uint64_t first = 0; first < pending->pieces; first += most) {
      pending->left_in_slice.push_back(std::min(most, pending->pieces - first));
    }
  }
  pending->call = std::make_shared<const CollectiveCall>(call);
  pending_.emplace(call.number, pending);
  waiting_.push_back(std::move(pending));
  return call.number;
}

void Collectives::take_ready(std::vector<Operation>& ready) {
  while (has_ready()) {
    Pending& pending = *waiting_.front();
    PBOX_CHECK(pending.started < pending.ready && pending.ready <= pending.pieces);
    ready.push_back(operation_of(pending, pending.started, next_slot_));
    slots_[next_slot_] = {waiting_.front(), pending.started};
    next_slot_ = (next_slot_ + 1) % static_cast<uint32_t>(slots_.size());
    if (++pending.started == pending.pieces) waiting_.pop_front();
  }
}

void Collectives::set_ready(uint64_t operation, uint64_t slices) {
  const auto found = pending_.find(operation);
  if (found == pending_.end()) return;  // it has failed
  Pending& pending = *found->second;
  PBOX_CHECK(pending.request.input_follows && slices > 0);
  const uint64_t pieces = std::min(slices * pieces_per_slice(*pending.call), pending.pieces);
  pending.ready = std::max(pending.ready, pieces);
}

std::optional<Collectives::Ended> Collectives::complete(uint32_t slot,
                                                        std::vector<SliceEnded>* slices) {
  PBOX_CHECK(slot < slots_.size());
  const auto [pending, piece] = std::exchange(slots_[slot], {});
  if (pending == nullptr) return {};  // it has failed
  PBOX_CHECK(pending->left > 0);
  const CollectiveRequest& request = pending->request;
  if (!pending->left_in_slice.empty()) {
    const uint64_t slice = piece / pieces_per_slice(*pending->call);
    if (--pending->left_in_slice[slice] == 0 && slices != nullptr) {
      slices->push_back({request.slice_callback, request.user, slice});
    }
  }
  if (--pending->left > 0) return {};
  pending_.erase(pending->call->number);
  return Ended{pending->call->number, ErrorCode::kOk, request.callback, request.user};
}

std::vector<Collectives::Ended> Collectives::fail(ErrorCode status) {
  std::vector<Ended> ended;
  for (const auto& [number, pending] : pending_) {
    ended.push_back({number, status, pending->request.callback, pending->request.user});
    failed_.insert(number);
  }
  pending_.clear();
  waiting_.clear();
  std::fill(slots_.begin(), slots_.end(), Slot{});
  return ended;
}

void Collectives::run_callbacks(const std::vector<SliceEnded>& slices) {
  for (const SliceEnded& one : slices) one.callback(one.user, one.slice);
}

void Collectives::run_callbacks(const std::vector<Ended>& ended) {
  for (const Ended& one : ended) {
    if (one.callback == nullptr) continue;
    one.callback(one.user, one.operation, static_cast<pbox_status>(one.status));
  }
}

std::string Collectives::text(uint64_t operation) const {
  const auto found = pending_.find(operation);
  return found == pending_.end() ? "operation " + std::to_string(operation)
                                 : to_text(*found->second->call);
}

std::optional<uint32_t> Collectives::slot_of(uint64_t operation) const {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (is_busy(slot) && slots_[slot].pending->call->number == operation) return slot;
  }
  return {};
}

}  // namespace pbox::worker
