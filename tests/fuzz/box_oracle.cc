#include "tests/fuzz/box_oracle.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/push_weight.h"
#include "nic/wire/zeros.h"
#include "pipeline/optimizer/optimizer.h"
#include "pipeline/optimizer/reference.h"
#include "pipeline/reduce/reference.h"
#include "pipeline/sync/rules.h"

namespace pbox::fuzz {
namespace {

// Returns, as bits, the fragments of the round that a push to a slot claims: all of them if the
// push has no data.
uint64_t slot_mask(const wire::Header& header) {
  if (!wire::is_empty_push(header)) return uint64_t{1} << header.fragment;
  return wire::full_mask(header.fragment + 1u);
}

}  // namespace

BoxOracle::BoxOracle(const JobShape& shape) : shape_(shape), chunks_(shape.chunks) {
  optimizer_.kind = shape.optimizer;
  for (Chunk& chunk : chunks_) {
    chunk.open_round = shape.first_round;
    chunk.claimed.resize(shape.workers);
    chunk.contributors.resize(shape.fragments());
    chunk.weight_sums.resize(shape.fragments());
    chunk.pushed.resize(shape.workers);
    chunk.late.resize(shape.fragments());
    chunk.sum.resize(shape.elements);
    chunk.weights.resize(shape.elements);
    chunk.state.resize(shape.elements * optimizer::state_floats_per_element(shape.optimizer));
    if (shape.is_collective) chunk.slot.emplace(shape);
  }
  if (shape.copy_rank == pipeline::kNoRank) return;
  Chunk& copied = chunks_[0];
  copied.copy_rank = shape.copy_rank;
  std::fill(copied.claimed.begin(), copied.claimed.end(), wire::full_mask(shape.fragments()));
  copied.claimed[shape.copy_rank] = 0;
}

uint32_t BoxOracle::rank_of(uint32_t spi) const {
  const uint32_t rank = spi & 15u;  // the same for all sessions of a rank
  PBOX_CHECK(rank < shape_.workers && (spi >> 24) == (shape_.spi(rank) >> 24));
  return rank;
}

void BoxOracle::aggregated(const wire::Parsed& push, uint64_t now_ns) {
  const wire::Header& header = push.header;
  PBOX_CHECK(header.epoch == shape_.epoch() && header.generation == shape_.generation());
  PBOX_CHECK(header.chunk < shape_.chunks && header.fragment < shape_.fragments());
  Chunk& chunk = chunks_[header.chunk];
  const uint32_t rank = rank_of(header.spi);
  PBOX_CHECK(header.spi == shape_.spi(rank) && !shape_.absent[rank]);
  PBOX_CHECK(!has_mismatch_);
  if (chunk.sync) {
    PBOX_CHECK(header.type() == wire::PacketType::kPush);
    chunk.sync->aggregated(rank, push, optimizer_);
    advance(chunk);
    return;
  }
  if (shape_.sync.counts_late && wire::round_distance(header.round, chunk.open_round) < 0) {
    return add_late(chunk, rank, push);
  }
  PBOX_CHECK(header.round == chunk.open_round);
  const bool copied = chunk.copy_rank != pipeline::kNoRank;
  const bool names_zeros = header.type() == wire::PacketType::kZeros && !chunk.slot;
  PBOX_CHECK(header.type() == (copied ? wire::PacketType::kState : wire::PacketType::kPush) ||
             (names_zeros && !copied));
  PBOX_CHECK(!copied || rank == chunk.copy_rank);
  const uint64_t claims = chunk.slot    ? chunk.slot->aggregated(push, copied)
                          : names_zeros ? add_zeros(chunk, rank, push)
                                        : sum(chunk, rank, push);
  const uint64_t unused = chunk.slot ? claims & ~slot_mask(header) : 0;
  PBOX_CHECK((chunk.claimed[rank] & claims & ~unused) == 0);
  chunk.claimed[rank] |= claims;
  const bool is_whole = chunk.claimed[rank] == wire::full_mask(shape_.fragments());
  if (is_whole && ends(chunk, now_ns)) finish(chunk);
}

// Adds a fragment of a closed round to the sum of the open one.
void BoxOracle::add_late(Chunk& chunk, uint32_t rank, const wire::Parsed& push) {
  const wire::Header& header = push.header;
  PBOX_CHECK(header.type() == wire::PacketType::kPush && header.round > 0);
  Pushed& pushed = chunk.pushed[rank];
  const int32_t ahead = wire::round_distance(header.round, pushed.round);
  PBOX_CHECK(ahead >= 0);
  if (ahead > 0) pushed = {header.round, 0};
  const uint64_t bit = sum(chunk, rank, push);
  PBOX_CHECK((pushed.mask & bit) == 0);
  pushed.mask |= bit;
  ++chunk.late[header.fragment];
}

// Adds a fragment of a tensor. Returns its bit.
uint64_t BoxOracle::sum(Chunk& chunk, uint32_t rank, const wire::Parsed& push) {
  const wire::Header& header = push.header;
  const bool copied = chunk.copy_rank != pipeline::kNoRank;
  const uint64_t bit = uint64_t{1} << header.fragment;
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, header.fragment));
  const bool first =
      copied || (chunk.late[header.fragment] == 0 &&
                 std::none_of(chunk.claimed.begin(), chunk.claimed.end(),
                              [bit](uint64_t claimed) { return (claimed & bit) != 0; }));
  const size_t begin = header.fragment * kFragmentBytes / wire::dtype_bytes(shape_.dtype);
  const size_t count = header.payload_bytes / wire::dtype_bytes(shape_.dtype);
  for (size_t index = 0; index < count; ++index) {
    const float value = reduce::reference::load_element(shape_.dtype, push.payload, index);
    float& sum = chunk.sum[begin + index];
    sum = first ? value : sum + value;
    if (chunk.open_round == 0 && rank == 0) chunk.weights[begin + index] = value;
  }
  if (copied) {
    chunk.contributors[header.fragment] =
        header.contributors() != 0 ? header.contributors() : shape_.workers;
  } else {
    uint64_t& weights = chunk.weight_sums[header.fragment];
    weights = (first ? 0 : weights) + wire::push_weight(wire::weight_code(header));
  }
  return bit;
}

// Adds the zeros that the rank has not pushed yet. Returns their bits.
uint64_t BoxOracle::add_zeros(Chunk& chunk, uint32_t rank, const wire::Parsed& push) {
  PBOX_CHECK(push.header.payload_bytes == sizeof(wire::ZerosPayload));
  uint64_t named = 0;
  std::memcpy(&named, push.payload, sizeof(named));
  PBOX_CHECK((named & ~wire::full_mask(shape_.fragments())) == 0);
  const uint64_t fragments = named & ~chunk.claimed[rank];
  PBOX_CHECK(fragments != 0);
  const std::vector<std::byte> zeros(kFragmentBytes);
  wire::Parsed fragment = push;
  fragment.payload = zeros.data();
  for (uint64_t left = fragments; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(left));
    fragment.header.fragment = static_cast<uint16_t>(index);
    fragment.header.payload_bytes =
        static_cast<uint16_t>(wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, index));
    sum(chunk, rank, fragment);
  }
  return fragments;
}

void BoxOracle::refused(const wire::Parsed& push, const pipeline::ShapeMismatch& mismatch) {
  const wire::Header& header = push.header;
  PBOX_CHECK(!has_mismatch_ && shape_.is_collective);
  has_mismatch_ = true;
  PBOX_CHECK(header.epoch == shape_.epoch() && header.generation == shape_.generation());
  PBOX_CHECK(mismatch.chunk == header.chunk && header.chunk < shape_.chunks);
  const Chunk& chunk = chunks_[header.chunk];
  PBOX_CHECK(mismatch.round == header.round && header.round == chunk.open_round);
  PBOX_CHECK(mismatch.other_rank == rank_of(header.spi) && mismatch.first_rank < shape_.workers);
  PBOX_CHECK(chunk.slot->disagrees(header));
}

// Returns whether the open round ends now: it has the pushes that it needs, and its grace is over.
bool BoxOracle::ends(Chunk& chunk, uint64_t now_ns) const {
  uint32_t complete = 0;
  for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
    const bool is_full = chunk.claimed[rank] == wire::full_mask(shape_.fragments());
    complete += !shape_.absent[rank] && is_full ? 1 : 0;
  }
  const uint32_t all = shape_.present();
  const bool may_drop = shape_.drops() && chunk.open_round > 0;
  if (all == 0 || complete < (may_drop ? std::min(all, shape_.sync.quorum) : all)) {
    chunk.quorum_ns.reset();
    return false;
  }
  if (complete == all || shape_.sync.grace_ms == 0) return true;
  if (!chunk.quorum_ns) chunk.quorum_ns = now_ns;
  return now_ns >= *chunk.quorum_ns + shape_.sync.grace_ms * kNanosPerMilli;
}

void BoxOracle::advance(Chunk& chunk) {
  rounds_finished_ += chunk.sync->oldest() - chunk.open_round;
  chunk.open_round = static_cast<uint32_t>(chunk.sync->oldest());
}

uint32_t BoxOracle::next_round(uint32_t chunk, uint32_t rank) const {
  const Chunk& at = chunks_[chunk];
  return at.sync ? static_cast<uint32_t>(at.sync->next(rank)) : at.open_round;
}

void BoxOracle::check_parked(const pipeline::JobShard& shard) const {
  if (!shape_.applies_on_arrival() || sync::reads_cached(shape_.sync)) return;
  uint64_t parked = 0;
  uint64_t delayed = 0;
  for (const Chunk& chunk : chunks_) {
    if (!chunk.sync) continue;
    parked += chunk.sync->parked_count();
    delayed += chunk.sync->delayed();
  }
  PBOX_CHECK(shard.parked_count == parked && shard.pulls_delayed.get() == delayed);
}

void BoxOracle::check_all_answered() const {
  for (const Chunk& chunk : chunks_) {
    if (chunk.sync) chunk.sync->check_all_answered();
  }
}

void BoxOracle::somebody_excluded(uint64_t now_ns) {
  for (Chunk& chunk : chunks_) {
    if (chunk.sync) {
      chunk.sync->somebody_excluded();
      advance(chunk);
    } else if (ends(chunk, now_ns)) {
      finish(chunk);
    }
  }
}

void BoxOracle::end_past_grace(uint64_t now_ns) {
  for (Chunk& chunk : chunks_) {
    if (chunk.quorum_ns && ends(chunk, now_ns)) finish(chunk);
  }
}

// Counts the contributors of each fragment and, for a mean, divides the fragment's sum.
void BoxOracle::average(Chunk& chunk) const {
  const bool initial = shape_.mode == pipeline::Mode::kOptimize && chunk.open_round == 0;
  for (uint32_t fragment = 0; fragment < shape_.fragments(); ++fragment) {
    uint32_t contributors = chunk.late[fragment];
    for (const uint64_t claimed : chunk.claimed) contributors += claimed >> fragment & 1;
    chunk.contributors[fragment] = contributors;
    if (shape_.reduction != pipeline::Reduction::kMean || initial) continue;
    const size_t begin = size_t{fragment} * kFragmentBytes / wire::dtype_bytes(shape_.dtype);
    const uint32_t count = wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, fragment) /
                           wire::dtype_bytes(shape_.dtype);
    const bool counts = shape_.partial || shape_.drops();
    const uint64_t divisor = shape_.weighted ? chunk.weight_sums[fragment]
                             : counts        ? contributors
                                             : shape_.workers;
    reduce::reference::scale(chunk.sum.data() + begin, 1.0f / static_cast<float>(divisor), count);
  }
}

void BoxOracle::finish(Chunk& chunk) {
  if (chunk.slot) {
    chunk.slot->finish();
    return open_next(chunk);
  }
  const bool optimizes = shape_.mode == pipeline::Mode::kOptimize;
  // With all ranks present the optimizer multiplies by the share itself, which rounds differently.
  const bool scales_in_step = optimizes && !shape_.weighted && !shape_.drops() &&
                              (!shape_.partial || shape_.present() == shape_.workers);
  if (chunk.copy_rank == pipeline::kNoRank && !scales_in_step) average(chunk);
  if (scales_in_step) {
    std::fill(chunk.contributors.begin(), chunk.contributors.end(), shape_.workers);
  }
  if (optimizes && chunk.open_round > 0) step(chunk, scales_in_step);
  chunk.result.resize(shape_.chunk_bytes());
  reduce::reference::narrow(shape_.dtype, chunk.result.data(),
                            optimizes ? chunk.weights.data() : chunk.sum.data(), shape_.elements);
  open_next(chunk);
  if (!shape_.applies_on_arrival()) return;
  chunk.sync.emplace(shape_, chunk.weights);
  chunk.sync->somebody_excluded();
}

void BoxOracle::open_next(Chunk& chunk) {
  chunk.copy_rank = pipeline::kNoRank;
  for (uint32_t rank = 0; rank < shape_.workers; ++rank) {
    if (chunk.claimed[rank] != 0) chunk.pushed[rank] = {chunk.open_round, chunk.claimed[rank]};
  }
  chunk.quorum_ns.reset();
  std::fill(chunk.late.begin(), chunk.late.end(), 0);
  std::fill(chunk.claimed.begin(), chunk.claimed.end(), 0);
  ++chunk.open_round;
  ++rounds_finished_;
}

void BoxOracle::step(Chunk& chunk, bool scales) {
  const float scale = shape_.reduction == pipeline::Reduction::kMean && scales
                          ? 1.0f / static_cast<float>(shape_.workers)
                          : 1.0f;
  const optimizer::StepParameters parameters{.learning_rate = optimizer_.learning_rate,
                                             .weight_decay = 0,
                                             .gradient_scale = scale,
                                             .step = chunk.open_round};
  optimizer::reference::step(optimizer_.kind, optimizer::step_coefficients(optimizer_, parameters),
                             chunk.weights.data(), chunk.state.data(), chunk.sum.data(),
                             shape_.elements);
}

void BoxOracle::check_result(const wire::Header& header, const std::byte* payload) {
  PBOX_CHECK(header.chunk < shape_.chunks && header.fragment < shape_.fragments());
  // A result made in an earlier generation carries that generation.
  PBOX_CHECK(header.epoch == shape_.epoch() && header.generation <= shape_.generation());
  Chunk& chunk = chunks_[header.chunk];
  if (chunk.slot) {
    PBOX_CHECK(header.round + 1 == chunk.open_round && header.round >= shape_.first_round);
    return chunk.slot->check_result(rank_of(header.spi), header, payload);
  }
  PBOX_CHECK(((header.flags & wire::flag::kLast) != 0) ==
             (header.fragment + 1u == shape_.fragments()));
  if (chunk.sync) {
    chunk.sync->check_result(rank_of(header.spi), header, payload);
    return;
  }
  PBOX_CHECK(header.round + 1 == chunk.open_round && header.round >= shape_.first_round);
  const uint32_t contributors = chunk.contributors[header.fragment];
  const bool counts = shape_.partial || shape_.drops();
  PBOX_CHECK(header.contributors() ==
             (counts && contributors != shape_.workers ? contributors : 0));
  const std::byte* expected = chunk.result.data() + size_t{header.fragment} * kFragmentBytes;
  PBOX_CHECK(header.payload_bytes ==
             wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, header.fragment));
  PBOX_CHECK(same_elements(shape_.dtype, payload, expected, header.payload_bytes));
}

void BoxOracle::check_zeros(const wire::Header& header, const std::byte* payload) {
  PBOX_CHECK(shape_.takes_zeros && header.payload_bytes == sizeof(wire::ZerosPayload));
  PBOX_CHECK(!chunks_[header.chunk].sync && !chunks_[header.chunk].slot);
  uint64_t named = 0;
  std::memcpy(&named, payload, sizeof(named));
  PBOX_CHECK(named != 0 && std::countr_zero(named) == header.fragment);
  const std::vector<std::byte> zeros(kFragmentBytes);
  for (uint64_t left = named; left != 0; left &= left - 1) {
    wire::Header fragment = header;
    const auto index = static_cast<uint32_t>(std::countr_zero(left));
    PBOX_CHECK(index < shape_.fragments());
    fragment.fragment = static_cast<uint16_t>(index);
    fragment.payload_bytes =
        static_cast<uint16_t>(wire::fragment_length(shape_.chunk_bytes(), kFragmentBytes, index));
    fragment.flags &= static_cast<uint8_t>(~wire::flag::kLast);
    if (index + 1 == shape_.fragments()) fragment.flags |= wire::flag::kLast;
    check_result(fragment, zeros.data());
  }
}

void BoxOracle::check_status(const wire::Header& header, const wire::StatusPayload& status) const {
  const uint32_t rank = rank_of(header.spi);
  PBOX_CHECK(header.chunk < shape_.chunks);
  const Chunk& chunk = chunks_[header.chunk];
  if (chunk.sync) {
    chunk.sync->check_status(rank, header, status);
    return;
  }
  PBOX_CHECK(status.finished_round <= chunk.open_round);
  if (status.finished_round != chunk.open_round) return;  // the report was true when it was made
  PBOX_CHECK(status.missing_workers <= shape_.workers);
  PBOX_CHECK(status.missing_workers == 0 || status.first_missing_rank < shape_.workers);
  const uint64_t all = wire::full_mask(shape_.fragments());
  const uint64_t received = status.received_mask;
  if (header.round == chunk.open_round) {
    PBOX_CHECK((received & ~chunk.claimed[rank]) == 0);
  } else if (!shape_.drops()) {
    PBOX_CHECK(received == all);
  } else {
    // A late push may have arrived in part. This oracle is not told of fragments that are dropped.
    const Pushed& pushed = chunk.pushed[rank];
    const bool is_known = shape_.sync.counts_late && pushed.round == header.round;
    PBOX_CHECK((received & ~(is_known ? pushed.mask : all)) == 0 || received == all);
  }
}

}  // namespace pbox::fuzz
