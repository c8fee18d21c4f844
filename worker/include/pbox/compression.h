/* libpbox: tensors whose gradients and results travel in fewer bits. Included by pbox.h. */
#ifndef PBOX_COMPRESSION_H
#define PBOX_COMPRESSION_H

#include "pbox/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the values of a tensor of f32 travel, both ways.
 *
 * NONE  As they are.
 * Q8    8.25 bits each: integers from -127 to 127, and a scale for each 64 of them.
 * Q4    4.25 bits each: integers from -7 to 7, and a power of two for each 32 of them.
 * AUTO  Like Q8 while that makes exchanges faster by 5 %, else like NONE. All ranks change in the
 *       same round. Box and ranks need the memory of both.
 *
 * Ranks and box keep what rounding has taken from a gradient or sum, and add it to the next one
 * (error feedback). Each rank keeps 5.03 bytes per element for this (Q4: 4.53). All ranks get the
 * same results. A block with an infinity, a NaN or a magnitude above 2^120 arrives as NaNs.
 *
 * In PBOX_MODE_OPTIMIZE gradients go to the box compressed, and changes of the weights come back
 * compressed; the initial weights are exact. Each rank keeps 5.03 bytes per element more (Q4:
 * 4.53), and recovery keeps no other copy. The model must be PBOX_SYNC_BSP or PBOX_SYNC_DROP.
 *
 * AUTO needs PBOX_MODE_AGGREGATE. docs/compression.md says when compression helps. */
typedef int32_t pbox_compression;
enum pbox_compression_value {
  PBOX_COMPRESSION_NONE = 0,
  PBOX_COMPRESSION_Q8 = 1,
  PBOX_COMPRESSION_Q4 = 2,
  PBOX_COMPRESSION_AUTO = 3
};

/* Sets one tensor's compression, instead of that of pbox_options, which applies only to tensors of
 * f32 with at least 4096 elements (AUTO: 65536). Only before pbox_join, the same on every rank. */
PBOX_API pbox_status pbox_set_tensor_compression(pbox_context* context, uint32_t tensor_id,
                                                 pbox_compression compression);

/* Stores in *now how the tensor's last exchange travelled. Before the first exchange, *now is
 * PBOX_COMPRESSION_NONE if the tensor has AUTO. The other numbers are those by which AUTO decides:
 * the seconds of an exchange, from its start to its result, uncompressed and compressed, by the
 * ranks' latest measurements; 0 if not known. A pointer may be NULL. Allowed once the worker has
 * joined. */
PBOX_API pbox_status pbox_tensor_compression(pbox_context* context, uint32_t tensor_id,
                                             pbox_compression* now, double* seconds_plain,
                                             double* seconds_compressed);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_COMPRESSION_H */
