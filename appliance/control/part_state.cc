#include "appliance/control/part_state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pbox::control {
namespace {

using pipeline::ChunkState;

constexpr int kClocksMax =
    pipeline::kClocksPerRank * limits::kWorkersPerJobMax + limits::kFragmentCountMax;

// Returns a bound on the size of a piece without its values; protobuf encodes a number in at most
// ten bytes.
size_t overhead_bytes(const ChunkState& chunk) {
  return 64 + 3 * chunk.contributors.size() + 10 * chunk.clocks.size();
}

uint32_t value_bytes(const ChunkState& chunk) {
  return static_cast<uint32_t>(chunk.values.size() * sizeof(float));
}

Error mismatch(uint32_t chunk, const std::string& what) {
  return {ErrorCode::kMismatch, "chunk " + std::to_string(chunk) + ": " + what};
}

}  // namespace

uint64_t PartState::bytes() const {
  uint64_t bytes = 0;
  for (const ChunkState& chunk : chunks) bytes += value_bytes(chunk);
  return bytes;
}

proto::PartState answer_of(const PartState& state, const proto::AskState& question) {
  proto::PartState answer;
  answer.set_epoch(state.epoch);
  if (state.learning_rate) answer.set_learning_rate(*state.learning_rate);
  auto chunk = std::lower_bound(
      state.chunks.begin(), state.chunks.end(), question.chunk(),
      [](const ChunkState& candidate, uint32_t id) { return candidate.chunk < id; });
  uint32_t offset = question.offset();
  size_t room = kStateAnswerBytesMax;
  if (state.models && question.chunk() == 0 && question.offset() == 0) {
    write_models(*state.models, answer);
    room -= std::min(room, answer.ByteSizeLong());
  }
  PBOX_DCHECK(std::is_sorted(
      state.chunks.begin(), state.chunks.end(),
      [](const ChunkState& one, const ChunkState& other) { return one.chunk < other.chunk; }));
  for (; chunk != state.chunks.end() && room > overhead_bytes(*chunk); ++chunk, offset = 0) {
    room -= overhead_bytes(*chunk);
    offset = std::min(offset, value_bytes(*chunk));
    const size_t bytes = std::min<size_t>(room, value_bytes(*chunk) - offset);
    proto::ChunkPiece& piece = *answer.add_pieces();
    piece.set_chunk(chunk->chunk);
    piece.set_rounds(chunk->rounds_finished);
    piece.set_steps(chunk->steps);
    piece.mutable_contributors()->Add(chunk->contributors.begin(), chunk->contributors.end());
    piece.set_fragment_bytes(chunk->fragment_bytes);
    piece.mutable_clocks()->Add(chunk->clocks.begin(), chunk->clocks.end());
    piece.set_offset(offset);
    piece.set_values(reinterpret_cast<const char*>(chunk->values.data()) + offset, bytes);
    piece.set_checksum(pipeline::checksum(*chunk));
    room -= bytes;
    if (offset + bytes < value_bytes(*chunk)) break;
  }
  answer.set_last(chunk == state.chunks.end());
  return answer;
}

IncomingState::IncomingState(uint32_t epoch, std::vector<size_t> value_counts)
    : value_counts_(std::move(value_counts)) {
  state_.epoch = epoch;
}

void IncomingState::describe(proto::AskState& question) const {
  question.set_epoch(state_.epoch);
  question.set_chunk(next_chunk_);
  question.set_offset(offset_);
}

Status IncomingState::take(const proto::PartState& answer) {
  if (answer.epoch() != state_.epoch) {
    return Error{ErrorCode::kMismatch, "the state is of epoch " + std::to_string(answer.epoch()) +
                                           " instead of " + std::to_string(state_.epoch)};
  }
  if (answer.pieces().empty() && !answer.last()) {
    return Error{ErrorCode::kMismatch, "the answer is empty"};
  }
  if (answer.has_learning_rate()) state_.learning_rate = answer.learning_rate();
  if (answer.syncs_size() > 0) {
    auto models = read_models(answer);
    if (!models) return models.error();
    state_.models = std::move(*models);
  }
  for (const proto::ChunkPiece& piece : answer.pieces()) {
    if (const Status taken = take(piece); !taken) return taken;
  }
  if (answer.last() && offset_ > 0) return mismatch(next_chunk_, "its last bytes are missing");
  is_whole_ = answer.last();
  return ok_status();
}

Status IncomingState::take(const proto::ChunkPiece& piece) {
  const uint32_t id = piece.chunk();
  const bool begins = offset_ == 0;
  if (id >= value_counts_.size() || id < next_chunk_ || (!begins && id != next_chunk_)) {
    return mismatch(id, "it was not asked for");
  }
  if (piece.rounds() == 0 || piece.contributors_size() > 64 || piece.clocks_size() > kClocksMax ||
      (piece.contributors_size() > 0 && piece.fragment_bytes() == 0)) {
    return mismatch(id, "its counts are invalid");
  }
  if (begins) {
    ChunkState& chunk = state_.chunks.emplace_back();
    chunk.values.resize(value_counts_[id]);
    chunk.contributors.assign(piece.contributors().begin(), piece.contributors().end());
    chunk.clocks.assign(piece.clocks().begin(), piece.clocks().end());
  }
  PBOX_CHECK(!state_.chunks.empty());
  ChunkState& chunk = state_.chunks.back();
  chunk.chunk = id;
  chunk.rounds_finished = piece.rounds();
  chunk.steps = piece.steps();
  chunk.fragment_bytes = piece.fragment_bytes();
  const std::string& values = piece.values();
  if (piece.offset() != offset_ || values.empty() || values.size() > value_bytes(chunk) - offset_) {
    return mismatch(id, "the answer has other bytes than were asked for");
  }
  std::memcpy(reinterpret_cast<std::byte*>(chunk.values.data()) + offset_, values.data(),
              values.size());
  offset_ += static_cast<uint32_t>(values.size());
  PBOX_CHECK(offset_ <= value_bytes(chunk));
  next_chunk_ = id;
  if (offset_ < value_bytes(chunk)) return ok_status();
  if (pipeline::checksum(chunk) != piece.checksum()) return mismatch(id, "its checksum is wrong");
  offset_ = 0;
  next_chunk_ = id + 1;
  return ok_status();
}

}  // namespace pbox::control
