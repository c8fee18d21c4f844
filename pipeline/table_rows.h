// For a chunk of a table (nic/wire/rows.h): which rows the ranks have pushed. It lies in the
// shard's arena, and only the pipeline's core touches it.
//
// In rounds that all ranks share, a row's part of the accumulator is zero until a rank has pushed
// the row. So pushes are always added, never stored, and a row may arrive fragment by fragment.
//
// Where pushes are applied on arrival, a reply has the rows that have changed since the rank's last
// read. The updates of the chunk are numbered, and each row has the number of the newest update
// that has changed it. A rank that pushes a round has read the reply to the round before. All
// packets of that reply were made after it was begun, so the rank knows all rows that have not
// changed since then, whichever packets were lost or sent again.
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

  // The rest is used where pushes are applied on arrival; elsewhere both pointers are null.
  struct Reader {
    uint32_t known = kNone;  // the rank has all updates up to this one; kNone: it may have no rows
    uint32_t made = kNone;   // the newest update when its reply was begun; kNone: no reply is begun
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

  // Called before a push changes rows; note_change() follows for each row.
  void begin_update();
  void note_change(uint32_t row) {
    PBOX_DCHECK(changed != nullptr && row < layout.row_count() && updates > 0);
    changed[row] = updates;
  }
  // Called when the rank has pushed a round in full, so it has read the reply to the round before.
  void note_read(uint32_t rank) {
    PBOX_DCHECK(rank < reader_count && readers != nullptr);
    readers[rank] = {.known = readers[rank].made};
  }
  // Called when a new process may have taken the rank's place. It has no rows.
  void forget_reader(uint32_t rank) {
    PBOX_DCHECK(rank < reader_count && readers != nullptr);
    readers[rank] = {};
  }
  // Called before a packet of the rank's reply is made. Returns false if it must have all rows.
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
