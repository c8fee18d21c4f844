/* libpbox: tables, which are tensors of rows. A rank pushes only some of them. Included by
 * pbox.h. */
#ifndef PBOX_ROWS_H
#define PBOX_ROWS_H

#include "pbox/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a registered tensor a table: a matrix of rows of `row_elements` elements, row after row, of
 * which an operation pushes the rows that have a gradient. Only before pbox_join, the same on every
 * rank. PBOX_MODE_OPTIMIZE only, and PBOX_NUMERICS_FAST.
 *
 * The box steps the rows that some rank has pushed, and leaves weights and optimizer state of all
 * others as they are: PBOX_ADAM is then what torch calls SparseAdam. Rows of less than 128 bytes
 * need PBOX_SGD or PBOX_ADAGRAD without weight decay.
 *
 * `row_elements` must divide the tensor's elements. */
PBOX_API pbox_status pbox_set_tensor_rows(pbox_context* context, uint32_t tensor_id,
                                          uint32_t row_elements);

/* Starts one exchange of a table and returns at once. Pushes the gradients of `row_count` rows, 0
 * or more: `row_ids` are their numbers, ascending and without repeats, and `rows` their elements,
 * [row_count][row_elements]. `table`, [rows of the tensor][row_elements], holds the weights as the
 * last operation has left them, and receives every row that has changed. All of them belong to the
 * library until the operation is done. The changed rows are those that some rank has pushed since
 * this rank's last operation. With PBOX_SYNC_DROP the whole table is sent.
 *
 * A rank that has no rows to push starts the operation all the same. pbox_push_pull of a table
 * pushes all of its rows. Otherwise this call is like pbox_push_pull. */
PBOX_API pbox_status pbox_push_pull_rows(pbox_context* context, uint32_t tensor_id,
                                         const uint64_t* row_ids, uint64_t row_count,
                                         const void* rows, void* table, pbox_callback callback,
                                         void* user);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_ROWS_H */
