#include "worker/protocol/row_push.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pbox::worker {

RowChunk::RowChunk(const wire::RowLayout& layout, uint64_t first_row, const RowPush& push)
    : layout_(layout), push_(push) {
  const uint32_t rows = layout.row_count();
  bits_.resize(wire::row_words(rows));
  before_.resize(bits_.size());
  const auto first = std::lower_bound(push.ids.begin(), push.ids.end(), first_row);
  first_ = static_cast<size_t>(first - push.ids.begin());
  for (auto id = first; id != push.ids.end() && *id - first_row < rows; ++id) {
    const auto row = static_cast<uint32_t>(*id - first_row);
    bits_[row / wire::kRowWordBits] |= 1u << (row % wire::kRowWordBits);
  }
  uint32_t before = 0;
  for (size_t word = 0; word < bits_.size(); ++word) {
    before_[word] = before;
    before += static_cast<uint32_t>(std::popcount(bits_[word]));
  }
}

// Returns where the row's bytes are, from byte `begin` of the chunk on.
const std::byte* RowChunk::source(uint32_t row, uint32_t begin) const {
  PBOX_DCHECK(wire::has_row(bits_, row));
  const uint32_t word = row / wire::kRowWordBits;
  const uint32_t lower = bits_[word] & ((1u << (row % wire::kRowWordBits)) - 1);
  const size_t index = first_ + before_[word] + static_cast<size_t>(std::popcount(lower));
  PBOX_DCHECK(index < push_.ids.size());
  const uint32_t of_row = row == 0 ? layout_.skipped_bytes + begin : begin - layout_.begin_of(row);
  return push_.values + index * push_.row_bytes + of_row;
}

uint64_t RowChunk::packet_starts() const {
  uint64_t starts = 0;
  const uint32_t fragments = layout_.fragment_count();
  for (uint32_t fragment = 0; fragment < fragments;) {
    starts |= uint64_t{1} << fragment;
    fragment += std::max(wire::fragments_by_rows(layout_, bits_, fragment), 1u);
  }
  return starts;
}

void RowChunk::make_packet(uint32_t fragment, std::byte* payload, wire::Header& header) const {
  PBOX_DCHECK(payload != nullptr && fragment < layout_.fragment_count());
  const uint32_t count = wire::fragments_by_rows(layout_, bits_, fragment);
  if (count > 0) {
    header.flags |= wire::flag::kRows;
    header.payload_bytes = static_cast<uint16_t>(wire::write_rows(
        layout_, bits_, fragment, count, payload,
        [this](uint32_t row, uint32_t begin, uint32_t) { return source(row, begin); }));
    return;
  }
  const wire::RowRange range(layout_, fragment, 1);
  std::memset(payload, 0, range.end - range.begin);
  for (uint32_t row = range.first_row; row < range.first_row + range.row_count; ++row) {
    if (!wire::has_row(bits_, row)) continue;
    const uint32_t begin = std::max(layout_.begin_of(row), range.begin);
    const uint32_t end = std::min(layout_.end_of(row), range.end);
    std::memcpy(payload + (begin - range.begin), source(row, begin), end - begin);
  }
  header.payload_bytes = static_cast<uint16_t>(range.end - range.begin);
  header.dtype_scale =
      static_cast<uint16_t>(header.dtype_scale | wire::lacking_rows(layout_, bits_, fragment) << 4);
}

}  // namespace pbox::worker
