#include "pipeline/table_rows.h"

#include <algorithm>

namespace pbox::pipeline {

void TableRows::clear(uint32_t round) {
  PBOX_DCHECK(touched[round & 1] != nullptr);
  std::fill_n(touched[round & 1], words(), 0u);
}

// When the update numbers are used up, they begin again at 1, and every rank's next reply is whole.
void TableRows::begin_update() {
  PBOX_DCHECK(changed != nullptr && readers != nullptr);
  if (++updates != kNone) return;
  updates = 1;
  std::fill_n(changed, layout.row_count(), 0u);
  std::fill_n(readers, reader_count, Reader{});
}

wire::RowBits TableRows::rows_for(uint32_t rank) {
  PBOX_DCHECK(rank < reader_count && readers[rank].known != kNone);
  // touched[0] is free: only rounds that all ranks share use it.
  clear(0);
  for (uint32_t row = 0; row < layout.row_count(); ++row) {
    if (changed[row] > readers[rank].known) touch(0, row);
  }
  return rows(0);
}

}  // namespace pbox::pipeline
