// The rows of a chunk of a table (nic/wire/rows.h): which of them ranks have pushed. It lies in the
// shard's arena, and only the pipeline's core touches it.
//
// Rounds that all ranks share: before a rank has pushed a row, the row's part of the accumulator is
// zero. So a row can be added to fragment by fragment, and rows that nobody has pushed need no
// memory of their own.
//
// Pushes that are applied on arrival: a reply has the rows that have changed since what its rank
// has read before. Updates of the chunk are counted, and each row knows the newest one that has
// changed it. A rank that pushes a round has read the reply to the round before. All packets of
// that reply were made after the first one, so the rows that have not changed since then are known
// to the rank. Which packets were lost, or sent again, makes no difference.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/limits.h"
#include "nic/wire/rows.h"

namespace pbox::pipeline {

struct TableRows {
  static constexpr uint32_t kNone = UINT32_MAX;

  wire::RowLayout layout;
  // By round & 1, a bit per row: in the open round the rows that some rank has pushed, in the round
  // before the rows that its result has changed.
  uint32_t* touched[limits::kSlotRing] = {};

  // The rest is for pushes that are applied on arrival. `changed` is null in other models.
  struct Reader {
    uint32_t known = kNone;  // the rank has all updates up to this one; kNone: it may have no rows
    uint32_t made = kNone;   // the newest update when its reply was begun; kNone: none was yet
  };
  uint32_t* changed = nullptr;  // by row: the newest update that has changed it; 0: none
  Reader* readers = nullptr;    // by rank
  uint32_t reader_count = 0;
  uint32_t updates = 0;

  size_t words() const { return wire::row_words(layout.row_count()); }
  wire::RowBits rows(uint32_t round) const { return {touched[round & 1], words()}; }
  void touch(uint32_t round, uint32_t row) {
    PBOX_DCHECK(row < layout.row_count());
    touched[round & 1][row / wire::kRowWordBits] |= 1u << (row % wire::kRowWordBits);
  }
  void touch_all(uint32_t round) {
    for (uint32_t row = 0; row < layout.row_count(); ++row) touch(round, row);
  }
  void clear(uint32_t round);

  // A push is about to change rows; note_change() follows for each.
  void begin_update();
  void note_change(uint32_t row) {
    PBOX_DCHECK(changed != nullptr && row < layout.row_count() && updates > 0);
    changed[row] = updates;
  }
  // The rank has pushed a round in full, so it has read the reply to the round before.
  void note_read(uint32_t rank) {
    PBOX_DCHECK(rank < reader_count && readers != nullptr);
    readers[rank] = {.known = readers[rank].made};
  }
  // Another process may have taken the rank's place: it has no rows.
  void forget_reader(uint32_t rank) {
    PBOX_DCHECK(rank < reader_count && readers != nullptr);
    readers[rank] = {};
  }
  // A packet of the rank's reply is about to be made. Returns false if it has to be whole.
  bool begin_reply(uint32_t rank) {
    PBOX_DCHECK(rank < reader_count);
    Reader& reader = readers[rank];
    if (reader.made == kNone) reader.made = updates;
    return reader.known != kNone;
  }
  // Returns the rows that the rank lacks, valid until the next call.
  wire::RowBits rows_for(uint32_t rank);
};

}  // namespace pbox::pipeline
