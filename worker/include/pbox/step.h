/* libpbox: verdicts on rounds, for clipped gradients and rounds that are skipped. Included by
 * pbox.h. */
#ifndef PBOX_STEP_H
#define PBOX_STEP_H

#include "pbox/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The box's verdict on a round of a job with max_grad_norm, skip_nonfinite or PBOX_GUARD_REJECT. */
typedef struct pbox_step {
  uint32_t struct_size; /* the caller's sizeof; fields beyond it are not written */
  uint32_t round;       /* as pbox_tensor_round counts; 0: there was no verdict yet */
  double norm;          /* the gradient's, before clipping and without the loss scale */
  uint32_t skipped;     /* 1: the round has changed nothing */
  float loss_scale;     /* the round's; 0: not known to a process that has rejoined */
  uint64_t scale_age;   /* as given to pbox_set_loss_scale */
} pbox_step;

/* Stores the newest verdict in *step. Set step->struct_size to sizeof(pbox_step) first. Every rank
 * gets the same verdicts. A round's verdict arrives before its first operation completes. */
PBOX_API pbox_status pbox_last_step(pbox_context* context, pbox_step* step);

/* Sets the loss scale: this rank's gradients are multiplied by it, and the box divides by it before
 * it clips and steps. 1 until it is set. Applies to the rounds whose verdict comes after the call:
 * set it between pbox_last_step of one round and the first push of the next. It must be the same on
 * all ranks; otherwise the job fails. `scale_age` is any number that the caller chooses. A process
 * that takes a lost rank's place finds it in pbox_step, with the loss scale. */
PBOX_API pbox_status pbox_set_loss_scale(pbox_context* context, float loss_scale,
                                         uint64_t scale_age);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_STEP_H */
