/* libpbox: consistency models, and the tensors that have them. Included by pbox.h. */
#ifndef PBOX_SYNC_H
#define PBOX_SYNC_H

#include "pbox/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The job's consistency model: when a rank may continue without the others. Must be equal on every
 * rank, together with the fields of pbox_options that belong to it. docs/consistency.md compares
 * the models.
 *
 * An iteration is one pbox_push_pull of a tensor. Each chunk of a tensor keeps its own clock, so a
 * tensor is as old as its oldest chunk. In every model, initial weights are exchanged as in BSP.
 *
 * BSP    Every rank waits for every other rank. push_pull returns the result of this iteration,
 *        which is the same on all ranks. It is the only model for PBOX_MODE_AGGREGATE, and the only
 *        one that survives the loss of the box without a replica.
 * ASP    No rank waits. The box applies each gradient to the weights as it arrives, and push_pull
 *        returns the weights of that moment. They always include this rank's own gradients.
 * SSP    Like ASP, but a rank waits when it is `staleness` iterations ahead of the slowest rank.
 *        The weights include every rank's gradients except those of the last `staleness`
 *        iterations, some of which they may include too. Staleness 0 has the bound of BSP.
 * ESSP   Has the bound of SSP, but the box sends the weights to every rank, without being asked,
 *        whenever the slowest rank has finished an iteration. push_pull returns this rank's copy
 *        of the weights plus its own gradients that the copy lacks, usually without waiting for
 *        the network.
 * PSSP   Like SSP, but a rank that is `staleness` iterations ahead waits only with probability
 *        sync_probability, drawn for each iteration.
 * DPSSP  Like PSSP, with probability sync_probability / (1 + e^(staleness - lead)). `lead` is the
 *        number of iterations that the rank is ahead of the slowest rank.
 * DROP   A round ends when all ranks have pushed, or when `quorum` of them have pushed and grace_ms
 *        has passed since then. Pushes that come later are late (pbox_late_pushes), and their ranks
 *        get the newest weights, whatever their round. `mean` divides by the number of pushes that
 *        are included. A rank that fell behind continues with the oldest round that is open in any
 *        tensor.
 * ADAPTIVE  Like PSSP, but each box chooses staleness, probability and release by itself, from how
 *        long ranks wait and how far they are ahead. `staleness` is the most and sync_probability
 *        the least that it may choose.
 *
 * All models except BSP need PBOX_MODE_OPTIMIZE and PBOX_RECOVERY_NONE. With DROP a rank may
 * rejoin at any time, with the others only before it is excluded, and with cached reads never. A
 * rank whose connection breaks resumes by itself with every model. Jobs of these models can move
 * from box to box with all their state, but not away from a box that is lost, unless the model is
 * DROP and the job has a replica. The box refuses combinations that are not possible, and says
 * why. */
typedef int32_t pbox_sync;
enum pbox_sync_value {
  PBOX_SYNC_BSP = 0,
  PBOX_SYNC_ASP = 1,
  PBOX_SYNC_SSP = 2,
  PBOX_SYNC_ESSP = 3,
  PBOX_SYNC_PSSP = 4,
  PBOX_SYNC_DPSSP = 5,
  PBOX_SYNC_DROP = 6,
  PBOX_SYNC_ADAPTIVE = 7
};

#define PBOX_GRACE_AUTO UINT32_MAX /* pbox_options.grace_ms */

/* The fate of a push whose round has ended, with model DROP.
 *
 * DROP  It is lost.
 * NEXT  It counts in the round that is open when it arrives, beside the pushes of that round. So a
 *       rank that is always late counts one round later. docs/consistency.md says when a push is
 *       lost all the same. */
typedef int32_t pbox_late_pushes;
enum pbox_late_pushes_value { PBOX_LATE_DROP = 0, PBOX_LATE_NEXT = 1 };

/* When a rank that has to wait (SSP, PSSP, DPSSP) may continue.
 *
 * SOFT  As soon as the slowest rank has finished one more iteration.
 * LAZY  When every rank has finished the iteration that the waiting rank is in. Its weights are
 *       then fresh and its lead is gone, so it waits longer but less often. */
typedef int32_t pbox_release;
enum pbox_release_value { PBOX_RELEASE_SOFT = 0, PBOX_RELEASE_LAZY = 1 };

/* When a rank fetches weights from the box.
 *
 * FRESH   With each push_pull.
 * CACHED  The rank keeps a copy of the weights, adds its own gradients to it, and asks the box for
 *         newer weights only when the copy is older than the model allows. Possible with SSP; ESSP
 *         always does this. It takes memory for one copy of the model and for the rank's gradients
 *         of `staleness` - 1 iterations (pbox_statistics.shadow_bytes). A learning rate that
 *         another rank has set takes effect on the gradients that this rank adds only when new
 *         weights arrive from the box. A copy is kept only for PBOX_SGD without weight decay,
 *         because the rank can repeat that step. With all other optimizers, and for tables, the
 *         box answers each push_pull, once the weights are as new as a copy would have to be. */
typedef int32_t pbox_reads;
enum pbox_reads_value { PBOX_READS_FRESH = 0, PBOX_READS_CACHED = 1 };

/* Sets the consistency model of the tensors whose names match `tensors`, in which * stands for any
 * text and ? for one byte; NULL: of all tensors, and of those that are registered later. `sync` is
 * the model with what differs from its defaults: "bsp", "asp", "ssp:STALENESS", "essp:STALENESS",
 * "pssp:STALENESS:PROBABILITY", "dpssp:STALENESS:PROBABILITY", "drop:QUORUM" or
 * "adaptive:LEAST-MOST:PROBABILITY", then perhaps ":lazy", ":cached" or, with dpssp, ":gradient"
 * (docs/consistency.md). PBOX_INVALID_ARGUMENT if no tensor matches, or if the model is not
 * possible; the message says why.
 *
 * Before pbox_join: replaces the model of pbox_options. Every rank must make the same calls, after
 * it has registered the tensors. "drop" and cached reads must be the model of all tensors.
 *
 * After pbox_join: one rank's call is enough. It returns when every box uses the model, or refuses
 * it. "asp", "ssp", "pssp", "dpssp" and "adaptive" with fresh reads can be changed into one
 * another. With "drop" the quorum can change, and for all tensors together the grace and the rule
 * for late pushes. Reads that wait are decided again by the new model. If one box refuses the model
 * and others accept it, the parts of the job have different models. */
PBOX_API pbox_status pbox_set_sync(pbox_context* context, const char* tensors, const char* sync);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_SYNC_H */
