#include "tests/sim/collective_oracle.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/rng.h"
#include "nic/wire/half.h"
#include "tests/sim/gradients.h"

namespace pbox::sim {
namespace {

using wire::Combine;
using wire::Dtype;
using wire::Verb;

template <typename Convert>
void put_each(std::span<const double> values, std::vector<std::byte>& bytes, Convert convert) {
  using T = decltype(convert(0.0));
  bytes.resize(values.size() * sizeof(T));
  for (size_t index = 0; index < values.size(); ++index) {
    const T converted = convert(values[index]);
    std::memcpy(bytes.data() + index * sizeof(T), &converted, sizeof(T));
  }
}

std::vector<std::byte> as_bytes(Dtype dtype, std::span<const double> values) {
  std::vector<std::byte> bytes;
  const auto as = [&](auto type) {
    put_each(values, bytes, [](double value) { return static_cast<decltype(type)>(value); });
  };
  switch (dtype) {
    case Dtype::kF32: as(float{}); break;
    case Dtype::kF16:
      put_each(values, bytes,
               [](double value) { return wire::narrow_f16(static_cast<float>(value)); });
      break;
    case Dtype::kBf16:
      put_each(values, bytes,
               [](double value) { return wire::narrow_bf16(static_cast<float>(value)); });
      break;
    case Dtype::kI32: as(int32_t{}); break;
    case Dtype::kI64: as(int64_t{}); break;
    case Dtype::kU8: as(uint8_t{}); break;
    case Dtype::kI8: as(int8_t{}); break;
    case Dtype::kF64: as(double{}); break;
    case Dtype::kQ8:
    case Dtype::kQ4: break;  // slots have no blocks
  }
  return bytes;
}

constexpr uint8_t kUnsound = 255;

bool reduces(const CallOptions& call) {
  return call.verb == Verb::kAllReduce || call.verb == Verb::kReduceScatter;
}

// Returns whether each rank has a segment of the longer buffer.
bool has_segments(const CallOptions& call) {
  return call.verb == Verb::kReduceScatter || call.verb == Verb::kAllGather;
}

}  // namespace

CollectiveOracle::CollectiveOracle(uint64_t seed, uint32_t job, const JobOptions& options)
    : stream_((seed * 64 + job) * 0xd1342543de82ef95ull), options_(options) {
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    std::vector<Piece>& pieces = pieces_.emplace_back();
    const std::vector<CallOptions>& calls = options.calls_of(rank);
    for (uint32_t number = 0; number < calls.size(); ++number) {
      const CallOptions& call = calls[number];
      const uint32_t most = elements_per_piece(call);
      const uint32_t segments = has_segments(call) ? options.workers : 1;
      for (uint32_t index = 0; index < pieces_of(call); ++index) {
        Piece piece{.call = number, .index = index, .options = call};
        piece.first = index / segments * most;
        piece.elements = std::min(most, call.count - piece.first);
        if (call.count > 0) piece.owner = has_segments(call) ? index % segments : call.root;
        pieces.push_back(piece);
      }
    }
  }
  for (size_t place = 0; place < pieces_.front().size(); ++place) {
    is_agreed_.push_back(std::all_of(pieces_.begin(), pieces_.end(), [&](const auto& pieces) {
      return place < pieces.size() && pieces[place] == pieces_.front()[place];
    }));
  }
  if (options.pushes_unsound && options.guard.policy == wire::Guard::kReject) draw_rejected();
}

// Draws the one unsound value. At least one call must be guarded.
void CollectiveOracle::draw_rejected() {
  Rng rng(stream_ ^ 0x2545f4914f6cdd1dull);
  std::vector<uint32_t> guarded;
  for (uint32_t number = 0; number < options_.calls.size(); ++number) {
    if (is_guarded(options_.calls[number])) guarded.push_back(number);
  }
  rejected_call_ = guarded.at(rng.below(guarded.size()));
  const CallOptions& call = options_.calls[rejected_call_];
  const bool is_scattered = call.verb == Verb::kReduceScatter;
  rejected_element_ = rng.below(uint64_t{call.count} * (is_scattered ? options_.workers : 1));
  Rejected rejected{.rank = static_cast<uint32_t>(rng.below(options_.workers))};
  const std::vector<Piece>& pieces = pieces_[rejected.rank];
  const auto has_it = [&](const Piece& piece) {
    const uint64_t first = piece.first + (is_scattered ? uint64_t{piece.owner} * call.count : 0);
    return piece.call == rejected_call_ && rejected_element_ - first < piece.elements;
  };
  const auto place =
      static_cast<uint32_t>(std::find_if(pieces.begin(), pieces.end(), has_it) - pieces.begin());
  const auto slots = static_cast<uint32_t>(options_.tensors.size());
  rejected.slot = place % slots;
  rejected.round = place / slots;
  rejected_ = rejected;
}

// A slot has room for the values while they are combined: 4 bytes for each f16 or bf16 value.
uint32_t CollectiveOracle::elements_per_piece(const CallOptions& call) const {
  const uint32_t bytes = wire::dtype_bytes(call.dtype);
  return options_.chunk_bytes / (reduces(call) ? std::max(bytes, bytes == 2 ? 4u : 0u) : bytes);
}

uint32_t CollectiveOracle::pieces_of(const CallOptions& call) const {
  if (call.count == 0) return 1;
  const uint32_t most = elements_per_piece(call);
  return (call.count + most - 1) / most * (has_segments(call) ? options_.workers : 1);
}

std::optional<CollectiveOracle::Piece> CollectiveOracle::piece(uint32_t rank, uint32_t slot,
                                                               uint64_t round) const {
  const uint64_t place = round * options_.tensors.size() + slot;
  if (place >= pieces_[rank].size()) return std::nullopt;
  return pieces_[rank][place];
}

std::optional<CollectiveOracle::Piece> CollectiveOracle::agreed_piece(uint32_t slot,
                                                                      uint64_t round) const {
  const uint64_t place = round * options_.tensors.size() + slot;
  if (place >= is_agreed_.size() || !is_agreed_[place]) return std::nullopt;
  return pieces_.front()[place];
}

bool CollectiveOracle::is_agreed(uint32_t rank, uint32_t call) const {
  const std::vector<Piece>& own = pieces_[rank];
  for (size_t place = 0; place < own.size(); ++place) {
    if (own[place].call != call) continue;
    for (const auto& other : pieces_) {
      if (place >= other.size() || other[place] != own[place]) return false;
    }
  }
  return true;
}

uint64_t CollectiveOracle::rounds(uint32_t slot) const {
  const uint64_t slots = options_.tensors.size();
  uint64_t rounds = 0;
  for (const auto& pieces : pieces_) {
    rounds = std::max<uint64_t>(rounds, (pieces.size() + slots - 1 - slot) / slots);
  }
  return rounds;
}

const uint8_t* CollectiveOracle::values(uint32_t rank, uint32_t call, uint64_t elements) const {
  std::vector<uint8_t>& drawn = values_[{rank, call}];
  const std::vector<CallOptions>& calls = options_.calls_of(rank);
  const bool has_unsound = options_.pushes_unsound && options_.guard.policy == wire::Guard::kZero &&
                           call < calls.size() && is_guarded(calls[call]);
  while (drawn.size() < elements) {
    constexpr uint32_t kOfDraw = 16;
    uint64_t bits = Rng(stream_ + ((rank * 1024ull + call) << 32) + drawn.size() / kOfDraw).next();
    for (uint32_t index = 0; index < kOfDraw; ++index, bits >>= 4) {
      const bool is_unsound = has_unsound && (bits & 15) == 15;
      drawn.push_back(is_unsound ? kUnsound : static_cast<uint8_t>((bits & 15) % 13));
    }
  }
  return drawn.data();
}

std::vector<std::byte> CollectiveOracle::input(uint32_t rank, uint32_t number) const {
  const CallOptions& call = options_.calls_of(rank)[number];
  const bool has_none = call.verb == Verb::kBroadcast && call.root != rank;
  const uint64_t elements =
      has_none ? 0
               : uint64_t{call.count} * (call.verb == Verb::kReduceScatter ? options_.workers : 1);
  const uint8_t* own = values(rank, number, elements);
  std::vector<double> pushed(own, own + elements);
  for (uint64_t index = 0; index < elements; ++index) {
    if (own[index] == kUnsound) pushed[index] = double{unsound_value(options_.guard, index)};
  }
  if (rejected_ && rejected_->rank == rank && rejected_call_ == number) {
    pushed[rejected_element_] = double{unsound_value(options_.guard, rejected_element_)};
  }
  return as_bytes(call.dtype, pushed);
}

// Returns `elements` elements of the piece from `first` on, combined over the ranks of the mask.
std::vector<double> CollectiveOracle::combine(const Piece& piece, uint32_t ranks, uint32_t first,
                                              uint32_t elements) const {
  const CallOptions& call = piece.options;
  uint64_t begin = uint64_t{piece.first} + first;
  if (call.verb == Verb::kReduceScatter) begin += uint64_t{piece.owner} * call.count;
  if (!reduces(call)) ranks = 1u << piece.owner;
  std::vector<double> result(elements);
  bool is_first = true;
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    const uint8_t* own = values(rank, piece.call, begin + elements) + begin;
    const bool begins = std::exchange(is_first, false);
    for (uint32_t index = 0; index < elements; ++index) {
      const double value = own[index] == kUnsound ? 0 : own[index];
      double& at = result[index];
      at = begins                          ? value
           : call.combine == Combine::kMin ? std::min(at, value)
           : call.combine == Combine::kMax ? std::max(at, value)
                                           : at + value;
    }
  }
  return result;
}

const std::vector<std::byte>& CollectiveOracle::result(const Piece& piece) const {
  Result& known = results_[{piece.call, piece.index}];
  if (known.piece == piece) return known.bytes;
  const CallOptions& call = piece.options;
  std::vector<double> values = combine(piece, ~0u, 0, piece.elements);
  if (reduces(call) && call.combine == Combine::kMean) {
    for (double& value : values) value /= options_.workers;
  }
  known = {piece, as_bytes(call.dtype, values)};
  return known.bytes;
}

std::vector<std::byte> CollectiveOracle::output(uint32_t rank, uint32_t number) const {
  std::vector<std::byte> bytes;
  std::vector<std::vector<std::byte>> segments(options_.workers);
  for (const Piece& piece : pieces_[rank]) {
    if (piece.call != number) continue;
    const CallOptions& call = piece.options;
    const bool is_wanted = call.verb == Verb::kReduceScatter ? piece.owner == rank
                           : call.verb == Verb::kBroadcast   ? piece.owner != rank
                                                             : true;
    if (!is_wanted) continue;
    const auto& part = result(piece);
    auto& segment = segments[call.verb == Verb::kAllGather ? piece.owner : 0];
    segment.insert(segment.end(), part.begin(), part.end());
  }
  for (const auto& segment : segments) bytes.insert(bytes.end(), segment.begin(), segment.end());
  return bytes;
}

bool CollectiveOracle::is_sent_to(const Piece& piece, uint32_t rank) const {
  if (piece.elements == 0) return false;
  switch (piece.options.verb) {
    case Verb::kAllReduce: return true;
    case Verb::kReduceScatter:  // with recovery by copy, any rank may have to give it back
      return options_.recovery == control::Recovery::kCopy || rank == piece.owner;
    case Verb::kAllGather:
    case Verb::kBroadcast: return rank != piece.owner;
    case Verb::kBarrier: return false;
  }
  return false;
}

std::vector<std::byte> CollectiveOracle::combined(const Piece& piece, uint32_t ranks,
                                                  uint32_t first_byte, uint32_t bytes) const {
  if (!reduces(piece.options)) {
    const auto& all = result(piece);
    return {all.begin() + first_byte, all.begin() + first_byte + bytes};
  }
  const uint32_t element_bytes = wire::dtype_bytes(piece.options.dtype);
  const Dtype dtype = element_bytes == 2 ? Dtype::kF32 : piece.options.dtype;
  return as_bytes(dtype, combine(piece, ranks, first_byte / element_bytes, bytes / element_bytes));
}

}  // namespace pbox::sim
