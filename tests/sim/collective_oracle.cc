#include "tests/sim/collective_oracle.h"

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "nic/wire/half.h"

namespace pbox::sim {
namespace {

using wire::Combine;
using wire::Dtype;
using wire::Verb;

template <typename T>
void put(std::byte* to, double value) {
  const auto converted = static_cast<T>(value);
  std::memcpy(to, &converted, sizeof(T));
}

void put_value(Dtype dtype, std::vector<std::byte>& bytes, size_t index, double value) {
  std::byte* const to = bytes.data() + index * wire::dtype_bytes(dtype);
  switch (dtype) {
    case Dtype::kF32: return put<float>(to, value);
    case Dtype::kF16: return put<uint16_t>(to, wire::narrow_f16(static_cast<float>(value)));
    case Dtype::kBf16: return put<uint16_t>(to, wire::narrow_bf16(static_cast<float>(value)));
    case Dtype::kI32: return put<int32_t>(to, value);
    case Dtype::kI64: return put<int64_t>(to, value);
    case Dtype::kU8: return put<uint8_t>(to, value);
    case Dtype::kI8: return put<int8_t>(to, value);
    case Dtype::kF64: return put<double>(to, value);
  }
}

bool reduces(const CallOptions& call) {
  return call.verb == Verb::kAllReduce || call.verb == Verb::kReduceScatter;
}

// Each rank has a segment of the longer buffer.
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
}

// A slot has room for the values while they are combined: 4 bytes for each half.
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
  const auto first = piece(0, slot, round);
  for (uint32_t rank = 1; rank < options_.workers; ++rank) {
    if (piece(rank, slot, round) != first) return std::nullopt;
  }
  return first;
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

int CollectiveOracle::value(uint32_t rank, uint32_t call, uint64_t index) const {
  const uint64_t draw = Rng(stream_ + ((rank * 1024ull + call) << 32) + index / 16).next();
  return static_cast<int>((draw >> (4 * (index % 16)) & 15) % 13);
}

std::vector<std::byte> CollectiveOracle::input(uint32_t rank, uint32_t number) const {
  const CallOptions& call = options_.calls_of(rank)[number];
  const bool has_none = call.verb == Verb::kBroadcast && call.root != rank;
  const uint64_t elements =
      has_none ? 0
               : uint64_t{call.count} * (call.verb == Verb::kReduceScatter ? options_.workers : 1);
  std::vector<std::byte> bytes(elements * wire::dtype_bytes(call.dtype));
  for (uint64_t index = 0; index < elements; ++index) {
    put_value(call.dtype, bytes, index, value(rank, number, index));
  }
  return bytes;
}

// Returns the combination of the ranks of the mask, which have an element of the piece.
double CollectiveOracle::combine(const Piece& piece, uint32_t ranks, uint32_t element) const {
  const CallOptions& call = piece.options;
  uint64_t index = uint64_t{piece.first} + element;
  if (!reduces(call)) return value(piece.owner, piece.call, index);
  if (call.verb == Verb::kReduceScatter) index += uint64_t{piece.owner} * call.count;
  std::optional<int> result;
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    const int own = value(rank, piece.call, index);
    if (!result) {
      result = own;
    } else if (call.combine == Combine::kMin) {
      result = std::min(*result, own);
    } else if (call.combine == Combine::kMax) {
      result = std::max(*result, own);
    } else {
      *result += own;
    }
  }
  return result.value_or(0);
}

std::vector<std::byte> CollectiveOracle::result(const Piece& piece) const {
  const CallOptions& call = piece.options;
  const bool is_mean = reduces(call) && call.combine == Combine::kMean;
  std::vector<std::byte> bytes(size_t{piece.elements} * wire::dtype_bytes(call.dtype));
  for (uint32_t element = 0; element < piece.elements; ++element) {
    const double value = combine(piece, ~0u, element);
    put_value(call.dtype, bytes, element, is_mean ? value / options_.workers : value);
  }
  return bytes;
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
    const auto part = result(piece);
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
    const auto all = result(piece);
    return {all.begin() + first_byte, all.begin() + first_byte + bytes};
  }
  const uint32_t element_bytes = wire::dtype_bytes(piece.options.dtype);
  const Dtype dtype = element_bytes == 2 ? Dtype::kF32 : piece.options.dtype;
  const uint32_t elements = bytes / element_bytes;
  std::vector<std::byte> memory(size_t{elements} * wire::dtype_bytes(dtype));
  for (uint32_t index = 0; index < elements; ++index) {
    put_value(dtype, memory, index, combine(piece, ranks, first_byte / element_bytes + index));
  }
  return memory;
}

}  // namespace pbox::sim
