#include "nic/wire/rows.h"

namespace pbox::wire {

bool parse_rows(const RowLayout& layout, const Parsed& parsed, RowsView& rows) {
  const Header& header = parsed.header;
  RowsHead head;
  if (header.payload_bytes < sizeof(head)) return false;
  std::memcpy(&head, parsed.payload, sizeof(head));
  const uint32_t fragments = layout.fragment_count();
  if (head.fragments == 0 || head.reserved != 0) return false;
  if (header.fragment >= fragments || head.fragments > fragments - header.fragment) return false;
  rows.range = RowRange(layout, header.fragment, head.fragments);
  PBOX_DCHECK(rows.range.end <= layout.chunk_bytes && rows.range.row_count > 0);
  rows.fragments = full_mask(head.fragments) << header.fragment;
  const uint32_t words = row_words(rows.range.row_count);
  const uint64_t before_values = sizeof(head) + uint64_t{words} * sizeof(uint32_t);
  if (header.payload_bytes < before_values) return false;
  rows.bitmap = parsed.payload + sizeof(head);
  rows.values = parsed.payload + before_values;
  const uint32_t used = rows.range.row_count % kRowWordBits;
  if (used != 0 && rows.word(words - 1) >> used != 0) return false;
  uint64_t bytes = before_values;
  for_each_run(layout, rows,
               [&](const RowRun& run, const std::byte*) { bytes += run.end - run.begin; });
  return bytes == header.payload_bytes;
}

bool read_push(const RowLayout& layout, const Parsed& parsed, RowsView& rows) {
  const Header& header = parsed.header;
  const auto lacks = static_cast<uint16_t>(header.dtype_scale >> 4);
  if ((header.flags & flag::kRows) != 0) return lacks == 0 && parse_rows(layout, parsed, rows);
  if (header.fragment >= layout.fragment_count() || lacks > (kLacksFirstRow | kLacksLastRow) ||
      header.payload_bytes !=
          fragment_length(layout.chunk_bytes, layout.fragment_bytes, header.fragment)) {
    return false;
  }
  RowRange range(layout, header.fragment, 1);
  rows.fragments = uint64_t{1} << header.fragment;
  rows.bitmap = nullptr;
  const uint32_t begin = range.begin;
  const uint32_t lacking = (lacks & kLacksFirstRow) + (lacks / kLacksLastRow);
  if (lacking > range.row_count) return false;
  if ((lacks & kLacksLastRow) != 0) {
    range.end = std::max(begin, layout.begin_of(range.first_row + range.row_count - 1));
  }
  if ((lacks & kLacksFirstRow) != 0) {
    range.begin = std::min(range.end, layout.end_of(range.first_row++));
  }
  range.row_count -= lacking;
  PBOX_DCHECK(begin <= range.begin && range.begin <= range.end);
  rows.values = parsed.payload + (range.begin - begin);
  rows.range = range;
  return true;
}

uint16_t lacking_rows(const RowLayout& layout, RowBits bits, uint32_t fragment) {
  const RowRange range(layout, fragment, 1);
  PBOX_DCHECK(bits.size() == row_words(layout.row_count()));
  const bool has_first = has_row(bits, range.first_row);
  const bool has_last = has_row(bits, range.first_row + range.row_count - 1);
  return static_cast<uint16_t>((has_first ? 0 : kLacksFirstRow) | (has_last ? 0 : kLacksLastRow));
}

uint32_t fragments_by_rows(const RowLayout& layout, RowBits bits, uint32_t fragment) {
  const uint32_t fragments = layout.fragment_count();
  PBOX_DCHECK(fragment < fragments && bits.size() == row_words(layout.row_count()));
  const uint32_t first_row = layout.row_at(fragment * layout.fragment_bytes);
  uint64_t value_bytes = 0;
  uint32_t count = 0;
  while (fragment + count < fragments) {
    const RowRange next(layout, fragment + count, 1);
    for (uint32_t row = next.first_row; row < next.first_row + next.row_count; ++row) {
      if (!has_row(bits, row)) continue;
      value_bytes +=
          std::min(layout.end_of(row), next.end) - std::max(layout.begin_of(row), next.begin);
    }
    if (count == 0 && value_bytes == next.end - next.begin) return 0;
    const uint64_t words = row_words(next.first_row + next.row_count - first_row);
    if (sizeof(RowsHead) + words * sizeof(uint32_t) + value_bytes > layout.fragment_bytes) break;
    ++count;
  }
  return count;
}

}  // namespace pbox::wire
