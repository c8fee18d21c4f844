// Tables: tensors that consist of rows, of which a push or a result carries only some. How rows lie
// in a chunk; packets by rows (flag::kRows). Pure; any thread. See docs/protocol.md, Tables.
//
// The rows that have bytes in a chunk are numbered from 0. The first and the last row may have
// bytes in other chunks too, and a row may lie in two fragments. A packet by rows covers one or
// more successive fragments. For each row that it carries, it has the row's bytes in these
// fragments. The sender covers as many fragments as fit, so that a chunk of which few rows are sent
// takes one packet.
//
// A fragment is sent whole if all of its rows are sent, or if there is no room for the bitmap. In
// the second case the rows that are not sent have few bytes in the fragment. If rows have at least
// kRowBytesLazyMin bytes, only the first and the last row of the fragment can be such rows. In a
// push, the high 12 bits of Header::dtype_scale (`scale`) say which of the two are not pushed
// (kLacksFirstRow, kLacksLastRow).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/header.h"

namespace pbox::wire {

// Beginning of a payload by rows. A bitmap of the covered fragments' rows follows, in words of 32
// bits, the first row in the lowest bit, unused bits 0. Then come the carried rows, ascending.
struct RowsHead {
  uint16_t fragments = 0;  // number of covered fragments, from header.fragment on; at least 1
  uint16_t reserved = 0;   // 0
};
static_assert(sizeof(RowsHead) == 4);

inline constexpr uint32_t kRowWordBits = 32;

// Rows of at least this size, in bytes, are no smaller than head and bitmap of their fragment.
inline constexpr uint32_t kRowBytesLazyMin = 128;
static_assert(limits::kFragmentBytesMax / kRowBytesLazyMin / 8 + 3 * sizeof(uint32_t) <=
              kRowBytesLazyMin);

// Bits in `scale` of a push of a whole fragment of a table: its first, or last, row is not pushed.
inline constexpr uint16_t kLacksFirstRow = 1;
inline constexpr uint16_t kLacksLastRow = 2;

constexpr uint32_t row_words(uint32_t rows) {
  return (rows + kRowWordBits - 1) / kRowWordBits;
}

// A set of rows of a chunk, one bit for each row.
using RowBits = std::span<const uint32_t>;

inline bool has_row(RowBits bits, uint32_t row) {
  PBOX_DCHECK(row / kRowWordBits < bits.size());
  return (bits[row / kRowWordBits] >> (row % kRowWordBits) & 1) != 0;
}

// How a table's rows lie in one of its chunks.
struct RowLayout {
  uint32_t row_bytes = 0;
  uint32_t skipped_bytes = 0;  // bytes of row 0 before the chunk; less than row_bytes
  uint32_t chunk_bytes = 0;
  uint32_t fragment_bytes = 0;

  uint32_t fragment_count() const { return wire::fragment_count(chunk_bytes, fragment_bytes); }
  // Returns the row that has this byte of the chunk.
  uint32_t row_at(uint32_t byte) const {
    PBOX_DCHECK(byte < chunk_bytes && row_bytes > 0);
    return (skipped_bytes + byte) / row_bytes;
  }
  uint32_t row_count() const { return row_at(chunk_bytes - 1) + 1; }
  // The row's bytes in the chunk are [begin_of(row), end_of(row)).
  uint32_t begin_of(uint32_t row) const {
    PBOX_DCHECK(skipped_bytes < row_bytes);
    return row == 0 ? 0 : row * row_bytes - skipped_bytes;
  }
  uint32_t end_of(uint32_t row) const {
    PBOX_DCHECK(row < row_count());
    return std::min((row + 1) * row_bytes - skipped_bytes, chunk_bytes);
  }
};

// Successive fragments of a chunk, with their bytes and their rows.
struct RowRange {
  uint32_t begin = 0, end = 0;  // bytes of the chunk
  uint32_t first_row = 0, row_count = 0;

  RowRange(const RowLayout& layout, uint32_t fragment, uint32_t count)
      : begin(fragment * layout.fragment_bytes),
        end(std::min((fragment + count) * layout.fragment_bytes, layout.chunk_bytes)),
        first_row(layout.row_at(begin)),
        row_count(layout.row_at(end - 1) + 1 - first_row) {
    PBOX_DCHECK(count > 0 && begin < end);
  }
  RowRange() = default;
};

// A payload that parse_rows() or read_push() has accepted.
struct RowsView {
  RowRange range;
  uint64_t fragments = 0;  // the covered fragments, one bit each
  const std::byte* bitmap =
      nullptr;  // may be at any address; null: all rows of `range` are carried
  const std::byte* values = nullptr;

  uint32_t word(uint32_t index) const {
    PBOX_DCHECK(index < row_words(range.row_count));
    uint32_t word;
    std::memcpy(&word, bitmap + size_t{index} * sizeof(word), sizeof(word));
    return word;
  }
  bool has(uint32_t index) const {
    return (word(index / kRowWordBits) >> (index % kRowWordBits) & 1) != 0;
  }
  // Returns the first row from `index` on that is carried; if `carried` is false, the first that is
  // not. Rows are indices into the range. Returns row_count if there is none.
  uint32_t next(uint32_t index, bool carried) const {
    while (index < range.row_count) {
      const uint32_t word =
          carried ? this->word(index / kRowWordBits) : ~this->word(index / kRowWordBits);
      const uint32_t rest = word >> (index % kRowWordBits);
      if (rest != 0) {
        return std::min(index + static_cast<uint32_t>(std::countr_zero(rest)), range.row_count);
      }
      index = (index / kRowWordBits + 1) * kRowWordBits;
    }
    return range.row_count;
  }
};

// Successive rows that are all carried.
struct RowRun {
  uint32_t first_row = 0, end_row = 0;  // rows of the chunk, half open
  uint32_t begin = 0, end = 0;          // bytes of the chunk
};

// Calls take(run, source) for each run of a payload. `source` points to the run's bytes; it is null
// if `rows` has no values.
template <typename Take>
void for_each_run(const RowLayout& layout, const RowsView& rows, Take&& take) {
  const std::byte* source = rows.values;
  const RowRange& range = rows.range;
  if (rows.bitmap == nullptr) {
    if (range.row_count == 0) return;
    take(RowRun{range.first_row, range.first_row + range.row_count, range.begin, range.end},
         source);
    return;
  }
  for (uint32_t index = rows.next(0, true); index < range.row_count;) {
    const uint32_t end = rows.next(index, false);
    RowRun run{range.first_row + index, range.first_row + end, 0, 0};
    run.begin = std::max(layout.begin_of(run.first_row), range.begin);
    run.end = std::min(layout.end_of(run.end_row - 1), range.end);
    PBOX_DCHECK(run.begin < run.end && run.end <= range.end);
    take(run, source);
    if (source != nullptr) source += run.end - run.begin;
    index = rows.next(end, true);
  }
}

// Calls take(run) for each run of the chunk's rows whose bits are set.
template <typename Take>
void for_each_run(const RowLayout& layout, RowBits bits, Take&& take) {
  const RowRange whole(layout, 0, layout.fragment_count());
  PBOX_DCHECK(bits.size() == row_words(whole.row_count));
  const RowsView view{whole, 0, reinterpret_cast<const std::byte*>(bits.data()), nullptr};
  for_each_run(layout, view, [&](const RowRun& run, const std::byte*) { take(run); });
}

// Reads a payload by rows of a chunk of this layout. Returns false if it is malformed. No run cuts
// an element if row_bytes, skipped_bytes and fragment_bytes are multiples of an element's size.
bool parse_rows(const RowLayout& layout, const Parsed& parsed, RowsView& rows);

// Reads a push of such a chunk, by rows or of a whole fragment. Returns false if it is malformed.
bool read_push(const RowLayout& layout, const Parsed& parsed, RowsView& rows);

// Returns `scale` for the push of a whole fragment, given the rows that are pushed.
uint16_t lacking_rows(const RowLayout& layout, RowBits bits, uint32_t fragment);

// Returns how many fragments, from `fragment` on, one packet by rows can cover, given the rows to
// send. Returns 0 if the fragment has to be sent whole: all of its rows are to be sent, or the
// bitmap leaves no room for them.
uint32_t fragments_by_rows(const RowLayout& layout, RowBits bits, uint32_t fragment);

// Writes the payload that covers these fragments, and returns its bytes. `source(row, begin, end)`
// returns a pointer to the chunk's bytes [begin, end), which belong to that row.
template <typename Source>
uint32_t write_rows(const RowLayout& layout, RowBits bits, uint32_t fragment, uint32_t count,
                    std::byte* payload, Source&& source) {
  const RowRange range(layout, fragment, count);
  PBOX_DCHECK(payload != nullptr && count <= limits::kFragmentCountMax);
  const RowsHead head{.fragments = static_cast<uint16_t>(count)};
  std::memcpy(payload, &head, sizeof(head));
  std::byte* const bitmap = payload + sizeof(head);
  const size_t bitmap_bytes = size_t{row_words(range.row_count)} * sizeof(uint32_t);
  std::memset(bitmap, 0, bitmap_bytes);
  std::byte* values = bitmap + bitmap_bytes;
  for (uint32_t index = 0; index < range.row_count; ++index) {
    const uint32_t row = range.first_row + index;
    if (!has_row(bits, row)) continue;
    bitmap[index / 8] |= std::byte{1} << (index % 8);
    const uint32_t begin = std::max(layout.begin_of(row), range.begin);
    const uint32_t end = std::min(layout.end_of(row), range.end);
    PBOX_DCHECK(begin < end);
    std::memcpy(values, source(row, begin, end), end - begin);
    values += end - begin;
  }
  PBOX_DCHECK(values - payload <= static_cast<ptrdiff_t>(layout.fragment_bytes));
  return static_cast<uint32_t>(values - payload);
}

}  // namespace pbox::wire
