/* libpbox: the worker's side of PBox. A plain C ABI, so that it is tied to no framework and to no
 * version of one.
 *
 * A worker (one rank of a job) does, in this order:
 *
 *   pbox_create -> pbox_register_tensor (each tensor, same order on every rank)
 *               -> pbox_set_optimizer (only in PBOX_MODE_OPTIMIZE)
 *               -> pbox_join
 *               -> [PBOX_MODE_OPTIMIZE: pbox_init_weights for each tensor]
 *               -> pbox_push_pull / pbox_wait, again and again
 *               -> pbox_leave -> pbox_destroy
 *
 * Threads: one context may be used from any threads at once; each call locks it briefly. The
 * library runs one I/O thread of its own per joined context. Callbacks run on that thread and must
 * be short.
 *
 * Errors: each call returns a pbox_status; pbox_last_error gives a sentence that names the field,
 * the value and the remedy, or the rank or box that is late. Nothing here waits without a deadline.
 *
 * fork(): a forked child that never calls the library is unharmed; in a child that does, each call
 * returns PBOX_FORKED. */
#ifndef PBOX_PBOX_H
#define PBOX_PBOX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PBOX_API __attribute__((visibility("default")))
#else
#define PBOX_API
#endif

#define PBOX_ABI_VERSION 1

typedef enum pbox_status {
  PBOX_OK = 0,
  PBOX_INVALID_ARGUMENT = 1,
  PBOX_NOT_FOUND = 2,
  PBOX_ALREADY_EXISTS = 3,     /* e.g. a second worker with the same rank */
  PBOX_RESOURCE_EXHAUSTED = 4, /* a quota of the box; the message names it */
  PBOX_UNAVAILABLE = 5,        /* the box cannot be reached or refuses */
  PBOX_TIMEOUT = 6,            /* a deadline passed; the message names who is late */
  PBOX_WORKER_LOST = 7,        /* another rank died or left; the message names it */
  PBOX_BOX_LOST = 8,           /* the box died or stopped answering */
  PBOX_MISMATCH = 9,           /* ranks disagree; the message names the first difference */
  PBOX_VERSION_MISMATCH = 10,
  PBOX_SYSTEM = 11,
  PBOX_FORKED = 12,
  PBOX_CLOSED = 13,
  PBOX_INTERNAL = 14
} pbox_status;

/* What a caller chooses travels as a 32-bit integer, so that every compiler agrees on its size and
 * a value that is not listed here is refused with PBOX_INVALID_ARGUMENT. */
typedef int32_t pbox_dtype;
enum pbox_dtype_value { PBOX_F32 = 0, PBOX_F16 = 1, PBOX_BF16 = 2 };
typedef int32_t pbox_mode;
enum pbox_mode_value { PBOX_MODE_AGGREGATE = 0, PBOX_MODE_OPTIMIZE = 1 };
typedef int32_t pbox_reduction;
enum pbox_reduction_value { PBOX_SUM = 0, PBOX_MEAN = 1 };
typedef int32_t pbox_optimizer;
enum pbox_optimizer_value {
  PBOX_SGD = 1,
  PBOX_MOMENTUM = 2,
  PBOX_NESTEROV = 3,
  PBOX_ADAM = 4,
  PBOX_ADAMW = 5
};

/* What becomes of the job when its box is lost. COPY: workers wait for it, or for its successor,
 * and go on where they were; that takes memory for one more copy of the model. NONE: operations
 * fail with PBOX_BOX_LOST at once. In PBOX_MODE_OPTIMIZE weights go on from the workers' copies,
 * but momentum and moments, which the box alone had, are those of the last snapshot, or begin anew
 * (pbox_statistics.optimizer_restarts, optimizer_snapshot); weights of 16 bits go on from 16 bits.
 * With pbox_options.replicas all of it goes on from the copy that another box has.
 * As they cannot be summed again, two copies are kept. Other models than BSP do not outlive their
 * box. */
typedef int32_t pbox_recovery;
enum pbox_recovery_value { PBOX_RECOVERY_COPY = 0, PBOX_RECOVERY_NONE = 1 };
/* What becomes of the job when a rank is lost. WAIT: for lost_timeout_ms the others wait for it to
 * come back, then the job fails. PARTIAL: then they go on without it (pbox_contributors). ABORT:
 * the job fails at once. */
typedef int32_t pbox_lost;
enum pbox_lost_value { PBOX_LOST_WAIT = 0, PBOX_LOST_PARTIAL = 1, PBOX_LOST_ABORT = 2 };

/* In which order tensors go, both ways. EXPLICIT: by registered priority, or that of the operation.
 * FORWARD_ORDER: learned by rank 0 in the first complete round of gradients: the tensor started
 * last is needed first in the next forward, and goes first; as EXPLICIT until then. FIFO: all are
 * equal. */
typedef int32_t pbox_priority_policy;
enum pbox_priority_policy_value {
  PBOX_PRIORITY_EXPLICIT = 0,
  PBOX_PRIORITY_FORWARD_ORDER = 1,
  PBOX_PRIORITY_FIFO = 2
};
/* How results come. BROADCAST: each chunk as soon as it is finished. PULL: the box tells that a
 * chunk is finished, and a tensor's chunks are asked for once all of them are: what parameter
 * servers of ps-lite's kind do, for comparison. */
typedef int32_t pbox_delivery;
enum pbox_delivery_value { PBOX_DELIVERY_BROADCAST = 0, PBOX_DELIVERY_PULL = 1 };
/* How sums are made. FAST: each rank's values are added as they come, so that sums of three ranks
 * or more may differ in their last bits from run to run. ORDERED: in the order of ranks, so that
 * runs whose ranks push the same get the same, bit for bit, whatever is lost, late or restarted
 * meanwhile; the box keeps the values of all ranks until the last has come, and adds then. Needs
 * PBOX_SYNC_BSP; equal on every rank. */
typedef int32_t pbox_numerics;
enum pbox_numerics_value { PBOX_NUMERICS_FAST = 0, PBOX_NUMERICS_ORDERED = 1 };
/* When a rank may go on without the others: the consistency model of the job. An iteration is one
 * pbox_push_pull of a tensor; each chunk of a tensor keeps its own account, so a tensor is as old
 * as its oldest chunk. In every model initial weights are exchanged as in BSP.
 *
 * BSP    Everybody waits for everybody: push_pull returns the result of this very iteration, the
 *        same on all ranks. The only model in PBOX_MODE_AGGREGATE, and the only one that outlives
 *        the loss of the box or of the connection.
 * ASP    Nobody waits: the box takes a gradient into the weights as it comes, and push_pull returns
 *        the weights as they are then. This rank's own gradients are always in them.
 * SSP    As ASP, but a rank waits when it is `staleness` iterations ahead of the slowest: weights
 *        have everybody's gradients but those of the last `staleness` iterations, some of which
 *        they may have too. Staleness 0 has the bound of BSP.
 * ESSP   The bound of SSP, but the box sends the weights to everybody whenever the slowest has
 *        finished an iteration, unasked. push_pull returns this rank's copy of them plus its own
 *        gradients that are not in there yet, mostly without waiting for the network.
 * PSSP   As SSP, but only the fastest rank waits, with sync_probability for each iteration.
 * DPSSP  As PSSP with the probability sync_probability / (1 + e^(staleness - lead)), lead being how
 *        far the rank is ahead of the slowest.
 * DROP   A round takes the first `quorum` ranks and is over: what others push to it is dropped, and
 *        they get the newest weights, whatever their round. `mean` divides by those who are in. A
 *        rank that fell behind goes on with the oldest round that is open in any tensor.
 *
 * All but BSP need PBOX_MODE_OPTIMIZE and PBOX_RECOVERY_NONE, and no rank may rejoin. They move
 * from box to box all the same, with all that the box has of them, but not from one that is lost.
 * The box refuses what does not go together, in words. Equal on every rank, as are the fields that
 * belong to it. */
typedef int32_t pbox_sync;
enum pbox_sync_value {
  PBOX_SYNC_BSP = 0,
  PBOX_SYNC_ASP = 1,
  PBOX_SYNC_SSP = 2,
  PBOX_SYNC_ESSP = 3,
  PBOX_SYNC_PSSP = 4,
  PBOX_SYNC_DPSSP = 5,
  PBOX_SYNC_DROP = 6
};
/* When a rank that has to wait (SSP, PSSP, DPSSP) is let go on. SOFT: as soon as the slowest has
 * finished one more iteration. LAZY: when everybody has finished the iteration that the waiting
 * rank is in; its weights are fresh then and its lead is gone, so that it waits longer but rarely.
 */
typedef int32_t pbox_release;
enum pbox_release_value { PBOX_RELEASE_SOFT = 0, PBOX_RELEASE_LAZY = 1 };
/* When a rank takes weights from the box. FRESH: with each push_pull. CACHED (SSP; ESSP always): it
 * keeps a copy, adds its own gradients to it, and asks for newer weights when the copy is older
 * than the model allows. That takes memory for one copy of the model, and for staleness - 1 more of
 * its gradients (pbox_statistics.shadow_bytes), and needs PBOX_SGD without momentum and weight
 * decay, which is what a rank can do by itself. A learning rate that another rank has set reaches
 * the gradients that this one adds only with weights from the box. */
typedef int32_t pbox_reads;
enum pbox_reads_value { PBOX_READS_FRESH = 0, PBOX_READS_CACHED = 1 };

typedef struct pbox_context pbox_context;

/* Fill with pbox_options_init, then change what differs. Strings are copied by pbox_create. */
typedef struct pbox_options {
  uint32_t struct_size; /* set by pbox_options_init */
  const char*
      box; /* "host:port" or "[v6]:port" of the control connection; default 127.0.0.1:9541. Of a
              cluster's boxes several, with commas between: any that answers knows the others */
  const char* job; /* name of the job; default "default" */
  uint32_t rank;   /* in [0, world_size) */
  uint32_t world_size;
  pbox_mode mode;
  pbox_reduction reduction; /* mean divides by world_size on the box */
  uint32_t chunk_bytes;  /* what is sent, summed and ordered as one (P3's slice): a multiple of 64,
                            at most 64 fragments (90112 on a path of 1500 bytes, 524288 with jumbo
                            frames); 0: the box's default */
  uint32_t window_bytes; /* bound on bytes in flight per pipeline; 0: what the box grants. Below it
                            as much is in flight as the path is measured to need */
  uint32_t join_timeout_ms; /* default 60000: how long pbox_join waits for the other ranks; the box
                               may allow less */
  uint32_t wait_timeout_ms; /* default 60000: used where a wait is given 0 */
  uint32_t lost_timeout_ms; /* 0: the box's; how long a dead rank is waited for */
  const char* port;         /* what carries packets: "socket" (default: UDP of the kernel), or
                               "KIND:ARGUMENTS" of libpbox_KIND.so.1, which is looked for beside
                               libpbox.so and where the loader looks, as in "dpdk:DEVICE". Several
                               with | between, "rdma:mlx5_0|socket": the next one is taken where one
                               cannot be opened, or fails; packets are as large as all can carry */
  pbox_recovery recovery;   /* equal on every rank, as is on_worker_lost */
  uint32_t recover_timeout_ms; /* default 60000: how long a lost box is looked for */
  pbox_lost on_worker_lost;
  uint32_t rejoin; /* 1: this process takes the place of a rank that a running job has lost */
  pbox_priority_policy priority_policy; /* equal on every rank, as is delivery */
  pbox_delivery delivery;
  pbox_sync sync;
  uint32_t staleness;     /* SSP, ESSP, PSSP, DPSSP: in iterations, at most 64 */
  float sync_probability; /* PSSP, DPSSP: in (0, 1]; default 1 */
  pbox_release release;
  pbox_reads reads;
  uint32_t quorum;     /* DROP: in [1, world_size] */
  const char* restore; /* PBOX_MODE_OPTIMIZE: begin with the weights and optimizer state of a
                          snapshot of this job (`pboxctl snapshot`): its number, or "latest", which
                          begins with rank 0's weights where there is none yet; NULL or "": do not.
                          Equal on every rank. pbox_statistics says which it was */
  pbox_numerics numerics;
  uint32_t replicas; /* PBOX_MODE_OPTIMIZE, PBOX_SYNC_BSP, of several boxes: 1: another box has a
                        copy of the weights and of the optimizer's state, of each round before its
                        result is given out, so that no momentum or moment dies with a box; 0: none
                        has. Equal on every rank */
  uint32_t backup; /* for boxes: 1: the job is such a copy. Of one rank, in PBOX_MODE_AGGREGATE with
                      PBOX_RECOVERY_NONE and PBOX_DELIVERY_PULL. It stays at the box that `box`
                      names, which keeps the last results for a while after the rank is gone; an
                      operation is done when it has them, and writes no output */
} pbox_options;

PBOX_API void pbox_options_init(pbox_options* options);

/* Like pbox_options_init, then overridden from the environment: PBOX_BOX, PBOX_JOB, PBOX_PORT,
 * PBOX_RANK or RANK, PBOX_WORLD_SIZE or WORLD_SIZE, PBOX_WINDOW_BYTES, PBOX_CHUNK_BYTES,
 * PBOX_JOIN_TIMEOUT_MS, PBOX_WAIT_TIMEOUT_MS, PBOX_RECOVERY (copy, none), PBOX_RECOVER_TIMEOUT_MS,
 * PBOX_ON_WORKER_LOST (wait, partial, abort), PBOX_REJOIN (0, 1), PBOX_PRIORITY_POLICY (explicit,
 * forward-order, fifo), PBOX_DELIVERY (broadcast, pull), PBOX_SYNC (bsp, asp, ssp, essp,
 * pssp, dpssp, drop), PBOX_STALENESS, PBOX_SYNC_PROBABILITY, PBOX_RELEASE (soft, lazy), PBOX_READS
 * (fresh, cached), PBOX_QUORUM, PBOX_RESTORE, PBOX_NUMERICS (fast, ordered), PBOX_REPLICAS (0, 1).
 * Strings point into the environment. */
PBOX_API pbox_status pbox_options_from_environment(pbox_options* options);

/* No network yet. *context is NULL on failure; the reason is then pbox_last_error(NULL), per
 * thread. */
PBOX_API pbox_status pbox_create(const pbox_options* options, pbox_context** context);

/* Declares a tensor of `element_count` elements; ids are 0, 1, 2, ... in order of the calls, which
 * must be the same on every rank. The larger `priority`, the earlier it is sent (P3: the layer that
 * the next forward needs first goes first). Only before pbox_join. */
PBOX_API pbox_status pbox_register_tensor(pbox_context* context, const char* name,
                                          uint64_t element_count, pbox_dtype dtype,
                                          int32_t priority, uint32_t* tensor_id);

/* Optimizer that the box runs, PBOX_MODE_OPTIMIZE only, before pbox_join, equal on every rank. As
 * torch.optim defines them; `momentum` is used by MOMENTUM and NESTEROV, betas and epsilon by
 * ADAM(W). */
typedef struct pbox_optimizer_options {
  uint32_t struct_size;
  pbox_optimizer kind;
  float learning_rate;
  float momentum;
  float beta1, beta2, epsilon;
  float weight_decay;
} pbox_optimizer_options;
PBOX_API void pbox_optimizer_options_init(pbox_optimizer_options* options, pbox_optimizer kind);
PBOX_API pbox_status pbox_set_optimizer(pbox_context* context,
                                        const pbox_optimizer_options* options);

/* Per-tensor factors: learning rate is multiplied by lr_scale; weight_decay replaces the job's. */
PBOX_API pbox_status pbox_set_tensor_optimizer(pbox_context* context, uint32_t tensor_id,
                                               float lr_scale, float weight_decay);

/* Connects, joins, and returns when all world_size ranks have joined and a way to each of the box's
 * queues is known. With options.rejoin, in a job that runs, as soon as the box has found the rank's
 * place. */
PBOX_API pbox_status pbox_join(pbox_context* context);

/* Tells of memory that inputs of operations will lie in, so that the device of an rdma port reads
 * them there, in place of a copy; on other ports it changes nothing. From pbox_join on, best once
 * for each long-lived buffer: nothing is exchanged while its pages are being locked. The memory
 * stays allocated and mapped where it is until pbox_unregister_memory, pbox_leave or pbox_destroy
 * has returned. A fragment that lies in two pieces of memory is copied. At most 1024 pieces, none
 * across another.
 * PBOX_SYSTEM: the device refuses, the message says why and what to do. Training goes on with
 * copies (pbox_statistics.packets_staged_refused), the device is asked again when the box was lost
 * and is found again, and the memory is to be unregistered as any other. */
PBOX_API pbox_status pbox_register_memory(pbox_context* context, const void* address,
                                          uint64_t bytes);

/* When this returns no device reads from there any more; usually at once, else after 0.1 s, at the
 * price of a connection that is made anew. `address`: as it was registered. Operations in flight go
 * on, with copies. Also once the job has failed. */
PBOX_API pbox_status pbox_unregister_memory(pbox_context* context, const void* address);

/* The round that the tensor's next operation belongs to: 0 in a job that begins, and one more for
 * each operation that was completed, whatever rounds PBOX_SYNC_DROP has skipped. A process that
 * rejoins learns here how far the job is, and puts its own state to that. */
PBOX_API pbox_status pbox_tensor_round(pbox_context* context, uint32_t tensor_id, uint32_t* round);

/* Called once per operation, on the I/O thread, after the result is in place or the operation
 * failed. May call pbox_push_pull and pbox_last_error, never a function that waits. */
typedef void (*pbox_callback)(void* user, uint32_t tensor_id, pbox_status status);

/* Starts one exchange of a tensor. `input` (this rank's gradient) and `output` (the sum, mean, or
 * new weights) hold element_count elements each, may be the same buffer, and belong to the library
 * until the operation is done. One operation per tensor at a time. `callback` may be NULL; a
 * wait for the operation may return before it has been called.
 * PBOX_MODE_OPTIMIZE: needs pbox_init_weights of that tensor before. */
PBOX_API pbox_status pbox_push_pull(pbox_context* context, uint32_t tensor_id, const void* input,
                                    void* output, pbox_callback callback, void* user);

/* As pbox_push_pull with this operation's own priority instead of the tensor's. */
PBOX_API pbox_status pbox_push_pull_priority(pbox_context* context, uint32_t tensor_id,
                                             const void* input, void* output, int32_t priority,
                                             pbox_callback callback, void* user);

/* PBOX_MODE_OPTIMIZE: gives the box its initial weights. Rank 0's values count; every rank receives
 * them in `weights`, in place. Asynchronous, completed like a push_pull. Once per tensor. A process
 * that rejoins where pbox_tensor_round is over 0 receives the weights as they are now. */
PBOX_API pbox_status pbox_init_weights(pbox_context* context, uint32_t tensor_id, void* weights,
                                       pbox_callback callback, void* user);

/* Waits for the tensor's operation. timeout_ms 0: options.wait_timeout_ms. Returns at once if there
 * is none. On PBOX_TIMEOUT the operation goes on and may be waited for again; the message names the
 * rank (or the box) that is late. */
PBOX_API pbox_status pbox_wait(pbox_context* context, uint32_t tensor_id, uint32_t timeout_ms);

/* Waits for every operation in flight. */
PBOX_API pbox_status pbox_wait_all(pbox_context* context, uint32_t timeout_ms);

/* How many workers are in the tensor's last result, the least of its parts: world_size, unless
 * ranks were lost and on_worker_lost is PARTIAL. 0 before the first result. */
PBOX_API pbox_status pbox_contributors(pbox_context* context, uint32_t tensor_id, uint32_t* count);

/* Changes the job's policy, and with PBOX_PRIORITY_EXPLICIT the priorities: `by_tensor` holds one
 * per registered tensor, or is NULL for those of pbox_register_tensor; it must be NULL with the
 * other policies. FORWARD_ORDER learns anew. One rank's call is enough. Returns at once; each rank,
 * and the box, apply it to what they start when it has reached them, every rank at the latest to
 * what it starts after a pbox_barrier that follows this call. */
PBOX_API pbox_status pbox_set_priorities(pbox_context* context, pbox_priority_policy policy,
                                         const int32_t* by_tensor);

/* Learning rate of the box's optimizer from the next round on. Call with nothing in flight on this
 * rank; one rank's call is enough. Returns when every pipeline uses it. */
PBOX_API pbox_status pbox_set_learning_rate(pbox_context* context, float learning_rate);

/* Returns when every rank that is still in the job has called it. */
PBOX_API pbox_status pbox_barrier(pbox_context* context, uint32_t timeout_ms);

#define PBOX_STALENESS_BUCKETS 16

/* Counters since join. Staleness of a read is the clock of the data (everybody's iterations below
 * it are in) minus the reader's (its iterations that are done, with this one): 0 in BSP, less than
 * 0 where somebody is behind; of a tensor, the least of its chunks. */
typedef struct pbox_statistics {
  uint32_t struct_size;                /* the caller's sizeof; fields beyond it are not written */
  uint64_t bytes_pushed, bytes_pulled; /* payload, without retransmissions */
  uint64_t packets_sent, packets_received;
  uint64_t retransmitted_fragments, probes_sent, stale_packets, rejected_packets;
  uint64_t operations_completed, operations_failed;
  uint32_t smoothed_rtt_us, fragment_bytes, pipeline_count;
  uint32_t recoveries;   /* lost boxes, or connections to one, that were found again */
  uint64_t shadow_bytes; /* memory for the copy of the model that recovery, or cached reads, keep */
  uint64_t reads;        /* operations completed, by their staleness below */
  int64_t staleness_sum; /* <= 0 */
  uint64_t staleness_square_sum;
  uint64_t reads_by_staleness[PBOX_STALENESS_BUCKETS]; /* of 0, -1, -2, ...; the last: all older */
  uint64_t dropped_rounds; /* DROP: operations whose gradient is not in the result they got */
  /* Mode optimize: boxes, or parts of one, that were lost with the state of their optimizer
   * (momentum, moments). Weights went on from what the workers hold, the optimizer from the state
   * of the last snapshot, see below, or from none. */
  uint64_t optimizer_restarts;
  uint64_t ports_given_up;    /* of options.port, for the next one; the box's log says why */
  uint64_t restored_snapshot; /* options.restore: the one that the job began with; 0: none */
  uint64_t restored_steps;    /* that its weights had taken: where training goes on */
  /* optimizer_restarts: the snapshot whose momentum and moments it went on with the last time, of
   * several parts the oldest, and after how many steps these were; 0: with none. */
  uint64_t optimizer_snapshot, optimizer_snapshot_steps;
  /* Packets sent by ports that need registered memory, as rdma, by what became of the payload: read
   * by the device where it lay; copied first, for it lay in no memory that was registered; copied,
   * for the device has refused to register that memory. Small packets are in none of these. */
  uint64_t packets_direct, packets_staged, packets_staged_refused;
} pbox_statistics;
PBOX_API pbox_status pbox_get_statistics(pbox_context* context, pbox_statistics* statistics);

/* Where an iteration's time goes, chunk by chunk; nanoseconds of CLOCK_MONOTONIC. Until pushed_ns a
 * chunk of an operation waited for the window; then it was sent; until answered_ns the box waited
 * for other ranks and summed, or packets were under way; then its result came. */
typedef struct pbox_chunk_times {
  uint32_t tensor, chunk; /* chunks count through the tensors in the order of registration */
  uint32_t round, pipeline;
  uint64_t pushed_ns, sent_ns, answered_ns, completed_ns;
} pbox_chunk_times;

/* Keeps the times of chunks that are completed from now on, of at most `capacity` until they are
 * taken; those beyond are not kept. 0 ends it. */
PBOX_API pbox_status pbox_trace_chunks(pbox_context* context, uint32_t capacity);

/* Takes the oldest of what was kept: *count is how many there is room for in `times`, then how many
 * there are. */
PBOX_API pbox_status pbox_take_chunk_times(pbox_context* context, pbox_chunk_times* times,
                                           uint32_t* count);

/* Leaves the job. Operations in flight are completed with PBOX_CLOSED. From another thread while
 * pbox_join still waits: that returns PBOX_CLOSED soon, and this context cannot join any more. */
PBOX_API pbox_status pbox_leave(pbox_context* context);

/* Leaves if needed, joins the I/O thread, frees. NULL is allowed. Not from a callback. */
PBOX_API void pbox_destroy(pbox_context* context);

/* The last error of this context (or, with NULL, of this thread's last failed pbox_create), in
 * words. Valid until the calling thread's next call into the library. */
PBOX_API const char* pbox_last_error(const pbox_context* context);
PBOX_API const char* pbox_status_string(pbox_status status);

PBOX_API uint32_t pbox_abi_version(void); /* PBOX_ABI_VERSION of the loaded library */

#ifdef __cplusplus
}
#endif

#endif /* PBOX_PBOX_H */
