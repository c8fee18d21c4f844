/* libpbox: the worker's side of PBox, as a plain C ABI that depends on no framework.
 *
 * A worker is one rank of a job. docs/c-api.md has the order of its calls, and complete examples.
 * docs/glossary.md explains box, rank, chunk, round and the other terms used here.
 *
 * Threads: any number of threads may use one context at the same time. Each call holds the
 * context's lock only briefly. Callbacks run on the context's I/O thread and must be short.
 *
 * Errors: each call returns a pbox_status. After a failure, pbox_last_error returns a sentence that
 * names the field, the wrong value and the remedy, or what is late. Every wait has a deadline.
 *
 * fork(): a forked child that never calls the library is not affected. In a child that uses its
 * parent's context, every call returns PBOX_FORKED.
 *
 * All structs except pbox_chunk_times may gain fields without a new PBOX_ABI_VERSION. A program
 * states the size that it was built with, in the struct or in the call. An older library refuses a
 * nonzero value in a field that it does not know. */
#ifndef PBOX_PBOX_H
#define PBOX_PBOX_H

#include "pbox/base.h"
#include "pbox/compression.h"
#include "pbox/sync.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The box's use of the sum of the gradients.
 *
 * AGGREGATE  The box returns the sum or the mean: an all-reduce.
 * OPTIMIZE   The box keeps weights and optimizer state, applies the sum or mean as a gradient, and
 *            returns the new weights.
 * COLLECTIVE There are no tensors, but operations of any shape: collective.h. */
typedef int32_t pbox_mode;
enum pbox_mode_value { PBOX_MODE_AGGREGATE = 0, PBOX_MODE_OPTIMIZE = 1, PBOX_MODE_COLLECTIVE = 2 };

typedef int32_t pbox_reduction;
enum pbox_reduction_value { PBOX_SUM = 0, PBOX_MEAN = 1 };

typedef int32_t pbox_optimizer;
enum pbox_optimizer_value {
  PBOX_SGD = 1,
  PBOX_MOMENTUM = 2,
  PBOX_NESTEROV = 3,
  PBOX_ADAM = 4,
  PBOX_ADAMW = 5,
  PBOX_ADAGRAD = 6
};

/* The workers' reaction to the loss of the box.
 *
 * COPY  They wait for the box or its successor, for recover_timeout_ms, and continue where they
 *       were. Each worker keeps one more copy of the model in memory, two in PBOX_MODE_OPTIMIZE,
 *       because weights cannot be computed again from gradients.
 * NONE  Operations fail with PBOX_BOX_LOST at once.
 *
 * In PBOX_MODE_OPTIMIZE the weights are restored from the workers' copies. 16-bit weights are
 * restored with 16 bits of precision. The optimizer's state (momentum, moments) exists on the box
 * only. It is restored from the last snapshot, or starts from zero if there is none
 * (pbox_statistics.optimizer_restarts, optimizer_snapshot). With pbox_options.replicas = 1 all of
 * it is restored from another box's replica.
 * Only PBOX_SYNC_BSP survives the loss of a box, and PBOX_SYNC_DROP with replicas = 1. */
typedef int32_t pbox_recovery;
enum pbox_recovery_value { PBOX_RECOVERY_COPY = 0, PBOX_RECOVERY_NONE = 1 };

/* The job's reaction to the loss of a rank.
 *
 * WAIT     The other ranks wait lost_timeout_ms for it to rejoin. Then the job fails.
 * PARTIAL  The other ranks wait lost_timeout_ms, then continue without it (pbox_contributors).
 * ABORT    The job fails at once. */
typedef int32_t pbox_lost;
enum pbox_lost_value { PBOX_LOST_WAIT = 0, PBOX_LOST_PARTIAL = 1, PBOX_LOST_ABORT = 2 };

/* The order in which tensors are sent, in both directions.
 *
 * EXPLICIT       By the priority of pbox_register_tensor, or that of the operation.
 * FORWARD_ORDER  Learned by rank 0 in the first complete round of gradients. The tensor that was
 *                started last is needed first in the next forward pass, so it goes first. Until the
 *                order is learned, the policy works as EXPLICIT.
 * FIFO           All tensors have the same priority. */
typedef int32_t pbox_priority_policy;
enum pbox_priority_policy_value {
  PBOX_PRIORITY_EXPLICIT = 0,
  PBOX_PRIORITY_FORWARD_ORDER = 1,
  PBOX_PRIORITY_FIFO = 2
};

/* How results reach the workers.
 *
 * BROADCAST  The box sends each chunk as soon as it is finished.
 * PULL       The box announces each finished chunk. A worker asks for a tensor's chunks once all of
 *            them are announced. This is how ps-lite works; it exists for comparison. */
typedef int32_t pbox_delivery;
enum pbox_delivery_value { PBOX_DELIVERY_BROADCAST = 0, PBOX_DELIVERY_PULL = 1 };

/* The order in which the box adds the ranks' values. Must be equal on every rank.
 *
 * FAST     In the order of arrival. With three ranks or more, sums may differ in their last bits
 *          from run to run.
 * ORDERED  In the order of ranks. Runs whose ranks push the same values get the same results, bit
 *          for bit, whatever was late or lost. The exception is the loss of a box without a replica
 *          in PBOX_MODE_OPTIMIZE. The box keeps the values of all ranks until the last one's have
 *          arrived. Needs BSP. */
typedef int32_t pbox_numerics;
enum pbox_numerics_value { PBOX_NUMERICS_FAST = 0, PBOX_NUMERICS_ORDERED = 1 };

/* The box's reaction to unsound values in a rank's push: infinities, NaNs and magnitudes beyond
 * guard_max_abs. Its log names rank, tensor and round in any case. Must be equal on every rank.
 *
 * FLAG    They reach the result.
 * REJECT  No result contains them. PBOX_MODE_AGGREGATE: the job ends for all ranks, with an error
 *         that names all three. PBOX_MODE_OPTIMIZE: the round changes nothing, like one that
 *         skip_nonfinite skips. Needs BSP.
 * ZERO    Each of them counts as 0. Sound elements of the same push count unchanged. */
typedef int32_t pbox_guard;
enum pbox_guard_value { PBOX_GUARD_FLAG = 0, PBOX_GUARD_REJECT = 1, PBOX_GUARD_ZERO = 2 };

/* Options of a worker. Fill them with pbox_options_init, then change what differs. pbox_create
 * copies the strings. */
typedef struct pbox_options {
  uint32_t struct_size; /* set by pbox_options_init */
  /* Control connection of the box, "HOST:PORT" or "[IPV6]:PORT"; default "127.0.0.1:9541". Several
   * boxes of a cluster may be given, separated by commas: any one that answers knows the others. */
  const char* box;
  const char* job; /* name of the job; default "default" */
  uint32_t rank;   /* in [0, world_size) */
  uint32_t world_size;
  pbox_mode mode;
  /* PBOX_MEAN: the box divides by world_size, or, in a round that ends without some ranks, by the
   * number of ranks that are in it. */
  pbox_reduction reduction;
  /* Size of a chunk, the unit that is sent, summed and ordered (P3 calls it a slice), in bytes. A
   * multiple of 64 that fits into 64 fragments: at most 90112 with an MTU of 1500 bytes, at most
   * 524288 with jumbo frames. 0: the box's default. */
  uint32_t chunk_bytes;
  /* Upper bound on bytes in flight per pipeline of the box; 0: what the box grants. Below this
   * bound the library keeps as much in flight as it measures the network path to need. */
  uint32_t window_bytes;
  /* How long pbox_join waits for the other ranks; default 60000. The box may allow less. */
  uint32_t join_timeout_ms;
  uint32_t wait_timeout_ms; /* used by a wait that is given 0; default 60000 */
  uint32_t lost_timeout_ms; /* how long the job waits for a lost rank; 0: the box's default */
  /* The port that carries packets. "auto" (default): "shm" if the box is on this host and offers
   * it, else "socket". "socket": UDP sockets of the kernel. "shm": memory shared with the box.
   * "KIND:ARGUMENTS", for example "dpdk:DEVICE": the library libpbox_KIND.so.1, which is searched
   * beside libpbox.so and then where the loader searches. Several ports may be given, separated by
   * |, as in "rdma:mlx5_0|socket". If one cannot be opened or fails, the next one is used. Packets
   * are only as large as all of them can carry. */
  const char* port;
  pbox_recovery recovery;      /* equal on every rank */
  uint32_t recover_timeout_ms; /* how long the worker searches for a lost box; default 60000 */
  pbox_lost on_worker_lost;    /* equal on every rank */
  uint32_t rejoin; /* 1: this process takes the place of a rank that a running job has lost */
  pbox_priority_policy priority_policy; /* equal on every rank */
  pbox_delivery delivery;               /* equal on every rank */
  pbox_sync sync;
  uint32_t staleness;     /* SSP, ESSP, PSSP, DPSSP, ADAPTIVE: in iterations, in [0, 64] */
  float sync_probability; /* PSSP, DPSSP, ADAPTIVE: in (0, 1]; default 1 */
  pbox_release release;
  pbox_reads reads;
  uint32_t quorum; /* DROP: number of ranks, in [1, world_size] */
  /* PBOX_MODE_OPTIMIZE: start with the weights and optimizer state of a snapshot of this job
   * (`pboxctl snapshot`). A snapshot's number, or "latest", which starts with rank 0's weights if
   * there is none yet. NULL or "": start without one. Equal on every rank. The snapshot that was
   * used is in pbox_statistics. */
  const char* restore;
  pbox_numerics numerics;
  /* 1: another box keeps a replica of the weights and the optimizer's state. The replica has each
   * round before its result is published, so no optimizer state is lost with a box. Needs
   * PBOX_MODE_OPTIMIZE, PBOX_SYNC_BSP or PBOX_SYNC_DROP, and two boxes. 0: no replica. Equal on
   * every rank. */
  uint32_t replicas;
  /* For boxes only. 1: this job is the replica of a part of another job. It has one rank,
   * PBOX_MODE_AGGREGATE, PBOX_RECOVERY_NONE and PBOX_DELIVERY_PULL. It stays on the box that `box`
   * names, which keeps the last results for a while after the rank has left. An operation ends when
   * that box has the data, and writes no output. 2: the same, for the replica of a job whose model
   * is not PBOX_SYNC_BSP. */
  uint32_t backup;
  /* Folder of keys (`pboxctl keys job`) or token (`pboxctl keys token`), for boxes with keys:
   * control connections are then TLS, both sides prove who they are, and packets are authenticated.
   * Needs the library libpbox_tls.so.1, which is searched like those of ports. NULL or "": none. */
  const char* keys;
  pbox_guard guard;
  float guard_max_abs; /* finite and >= 0; 0 (default): every finite value is sound */
  /* PBOX_MODE_COLLECTIVE: bytes of all operations that can be in flight; 0: 32 MiB. The box keeps
   * twice as many for the job. Larger operations take turns. Equal on every rank. */
  uint32_t collective_bytes;
  /* Elastic jobs: the job begins once this many ranks have joined and no other has joined for 3 s
   * (PBOX_MODE_OPTIMIZE: rank 0 among them). Others join while it runs. Implies `rejoin`; needs
   * PBOX_LOST_PARTIAL and PBOX_SYNC_BSP. 0: it begins with all ranks. Equal on every rank. */
  uint32_t min_world_size;
  pbox_compression compression; /* compression.h says for which tensors; equal on every rank */
  /* DROP: how long a round that has its quorum waits for the other ranks, at most 3600000.
   * PBOX_GRACE_AUTO: as long as most of them have needed so far. Equal on every rank. */
  uint32_t grace_ms;
  pbox_late_pushes late_pushes; /* DROP; equal on every rank */
  /* 1: pushes have weights (pbox_operation), for example the number of samples of a gradient. Means
   * are divided by the sum of the weights instead of the number of ranks. Needs PBOX_MEAN, and
   * PBOX_SYNC_BSP or PBOX_SYNC_DROP; no tables. 0: every push counts once. Equal on every rank. */
  uint32_t weighted;
} pbox_options;

/* Sets every field to its default. */
PBOX_API void pbox_options_init_sized(pbox_options* options, size_t struct_size);
#define pbox_options_init(options) pbox_options_init_sized((options), sizeof(pbox_options))

/* Calls pbox_options_init, then sets the fields whose environment variables are set: PBOX_BOX,
 * PBOX_JOB, PBOX_PORT, PBOX_RANK or RANK, PBOX_WORLD_SIZE or WORLD_SIZE, PBOX_WINDOW_BYTES,
 * PBOX_CHUNK_BYTES, PBOX_JOIN_TIMEOUT_MS, PBOX_WAIT_TIMEOUT_MS, PBOX_RECOVERY (copy, none),
 * PBOX_RECOVER_TIMEOUT_MS, PBOX_ON_WORKER_LOST (wait, partial, abort), PBOX_REJOIN (0, 1),
 * PBOX_PRIORITY_POLICY (explicit, forward-order, fifo), PBOX_DELIVERY (broadcast, pull), PBOX_SYNC
 * (bsp, asp, ssp, essp, pssp, dpssp, drop, adaptive), PBOX_STALENESS, PBOX_SYNC_PROBABILITY,
 * PBOX_RELEASE (soft, lazy), PBOX_READS (fresh, cached), PBOX_QUORUM, PBOX_GRACE_MS (a number or
 * auto), PBOX_LATE_PUSHES (drop, next), PBOX_RESTORE, PBOX_NUMERICS (fast, ordered), PBOX_REPLICAS
 * (0, 1), PBOX_KEYS, PBOX_GUARD (flag, reject, zero), PBOX_GUARD_MAX_ABS, PBOX_COLLECTIVE_BYTES,
 * PBOX_MIN_WORLD_SIZE, PBOX_COMPRESSION (none, q8, q4, auto). PBOX_RANK wins over RANK,
 * PBOX_WORLD_SIZE over WORLD_SIZE. Strings point into the environment. A value that is not listed,
 * or is not a number, gives PBOX_INVALID_ARGUMENT; pbox_last_error(NULL) says more. */
PBOX_API pbox_status pbox_options_from_environment_sized(pbox_options* options, size_t struct_size);
#define pbox_options_from_environment(options) \
  pbox_options_from_environment_sized((options), sizeof(pbox_options))

/* Creates a context. Does not use the network yet. On failure *context is NULL and
 * pbox_last_error(NULL), called on the same thread, returns the reason. */
PBOX_API pbox_status pbox_create(const pbox_options* options, pbox_context** context);

/* Declares a tensor of `element_count` elements. *tensor_id becomes 0, 1, 2, ... in the order of
 * the calls, which must be the same on every rank. A tensor with a larger `priority` is sent
 * earlier: give the layer that the next forward pass needs first the largest (P3). Only before
 * pbox_join. */
PBOX_API pbox_status pbox_register_tensor(pbox_context* context, const char* name,
                                          uint64_t element_count, pbox_dtype dtype,
                                          int32_t priority, uint32_t* tensor_id);

/* The optimizer that the box runs, with the formulas of torch.optim. PBOX_MOMENTUM and
 * PBOX_NESTEROV use `momentum`; PBOX_ADAM and PBOX_ADAMW use the betas and epsilon; PBOX_ADAGRAD
 * uses epsilon, and its sums of squares begin at 0. */
typedef struct pbox_optimizer_options {
  uint32_t struct_size; /* set by pbox_optimizer_options_init */
  pbox_optimizer kind;
  float learning_rate;
  float momentum;
  float beta1, beta2, epsilon;
  float weight_decay;
  /* The gradient of all tensors together is clipped to this norm, as torch's clip_grad_norm_ does;
   * 0: it is not clipped. */
  float max_grad_norm;
  uint32_t skip_nonfinite; /* 1: a round whose gradient has an infinity or NaN changes nothing */
} pbox_optimizer_options;

/* Sets the defaults for `kind`: torch.optim's for PBOX_ADAM, PBOX_ADAMW and PBOX_ADAGRAD. */
PBOX_API void pbox_optimizer_options_init_sized(pbox_optimizer_options* options, size_t struct_size,
                                                pbox_optimizer kind);
#define pbox_optimizer_options_init(options, kind) \
  pbox_optimizer_options_init_sized((options), sizeof(pbox_optimizer_options), (kind))

/* Chooses the box's optimizer. PBOX_MODE_OPTIMIZE only, before pbox_join, equal on every rank.
 *
 * With max_grad_norm, skip_nonfinite or PBOX_GUARD_REJECT the box looks at the whole gradient
 * before it steps. Each round must then push every tensor: the box sends no result of a round
 * before it has the gradients of all tensors. PBOX_SYNC_BSP only. */
PBOX_API pbox_status pbox_set_optimizer(pbox_context* context,
                                        const pbox_optimizer_options* options);

/* Sets one tensor's own values: the learning rate is multiplied by lr_scale, and weight_decay
 * replaces the job's. Both must be finite and >= 0. Only before pbox_join. */
PBOX_API pbox_status pbox_set_tensor_optimizer(pbox_context* context, uint32_t tensor_id,
                                               float lr_scale, float weight_decay);

/* Joins the job. Returns when all world_size ranks have joined and packets can reach each of the
 * box's queues. With options.rejoin, returns as soon as the running job has admitted this rank. */
PBOX_API pbox_status pbox_join(pbox_context* context);

/* Registers memory that will hold inputs of operations, so that the device of an rdma port reads
 * them in place instead of a copy. With other ports it has no effect. Allowed after pbox_join. Call
 * it once for each long-lived buffer: it locks the pages, on this thread, which takes time.
 *
 * The memory must stay allocated and mapped until pbox_unregister_memory, pbox_leave or
 * pbox_destroy has returned. At most 1024 regions may be registered, and none may overlap another.
 * A fragment that spans two regions is copied.
 *
 * PBOX_SYSTEM: the device refuses the memory; the message says why and what to do. Training
 * continues with copies (pbox_statistics.packets_staged_refused). The device is asked again after
 * the box was lost and found. The memory still has to be unregistered.
 * PBOX_TIMEOUT, after options.wait_timeout_ms: a callback of the application does not return. The
 * memory is not registered. */
PBOX_API pbox_status pbox_register_memory(pbox_context* context, const void* address,
                                          uint64_t bytes);

/* Unregisters memory, by the address that was registered. When this returns, no device reads from
 * it any more. It usually returns at once. Otherwise it closes the connections that still read,
 * after 0.1 s; they are opened again. Operations in flight continue with copies. Also allowed after
 * the job has failed. After PBOX_TIMEOUT keep the memory, and call again. */
PBOX_API pbox_status pbox_unregister_memory(pbox_context* context, const void* address);

/* Stores the address of `bytes` bytes of memory, filled with zeros, in *memory. It begins on a
 * cache line. If a box on this host serves this worker by port shm, it reads inputs in this memory
 * in place. Other inputs are copied (pbox_statistics.packets_direct, packets_staged). There is room
 * for about twice the bytes of the registered tensors. Beyond that, and with other ports, or models
 * other than PBOX_SYNC_BSP, it is ordinary memory. Allowed after pbox_join. Free it with pbox_free,
 * also after pbox_destroy. A child that this process forks must not write to it. */
PBOX_API pbox_status pbox_alloc(pbox_context* context, uint64_t bytes, void** memory);

/* Frees memory of pbox_alloc; NULL is allowed. No operation may use it any more.
 * PBOX_INVALID_ARGUMENT: it is not memory of pbox_alloc, or free already. */
PBOX_API pbox_status pbox_free(void* memory);

/* Stores the round of the tensor's next operation in *round. It is 0 in a new job and grows by one
 * with each completed operation, even if PBOX_SYNC_DROP skips rounds. A process that rejoins uses
 * it to set its own state to the job's progress. */
PBOX_API pbox_status pbox_tensor_round(pbox_context* context, uint32_t tensor_id, uint32_t* round);

/* Starts one exchange of a tensor and returns at once. `input` is this rank's gradient. `output`
 * receives the sum, the mean or the new weights. Each holds element_count elements; they may be the
 * same buffer. Both belong to the library until the operation is done. A tensor can have one
 * operation in flight. `callback` may be NULL. A wait for the operation may return before the
 * callback has been called.
 * PBOX_MODE_OPTIMIZE: call pbox_init_weights for the tensor first. */
PBOX_API pbox_status pbox_push_pull(pbox_context* context, uint32_t tensor_id, const void* input,
                                    void* output, pbox_callback callback, void* user);

/* Like pbox_push_pull, with a priority for this operation instead of the tensor's. */
PBOX_API pbox_status pbox_push_pull_priority(pbox_context* context, uint32_t tensor_id,
                                             const void* input, void* output, int32_t priority,
                                             pbox_callback callback, void* user);

/* One exchange in a list. Set the whole struct to 0 first: later releases may add fields. */
typedef struct pbox_operation {
  const void* input;
  void* output;
  uint32_t tensor_id;    /* no tensor may be in a list twice */
  int32_t priority;      /* instead of the tensor's, if has_priority is 1 */
  uint32_t has_priority; /* 0 or 1 */
  /* options.weighted: the weight of this push, as pbox_round_weight has returned it. The caller has
   * multiplied the input by it. 0 means 1. In jobs that are not weighted it must be 0. */
  float weight;
} pbox_operation;

/* Returns the weight nearest to `weight` that packets can carry: whole numbers up to 256 as they
 * are, larger ones within 1/256, at most 2.7e11. Returns 0 if `weight` is more, or below 1. The
 * input of a push must be multiplied by the returned value. Any thread may call it at any time. */
PBOX_API float pbox_round_weight(double weight);

/* Starts `count` exchanges, in the order of the list, or none of them after an error. `callback` is
 * called once, when all have ended: with PBOX_OK and the first tensor of the list, or with the
 * first tensor that has failed and its status. The list may be freed after the call. */
PBOX_API pbox_status pbox_push_pull_many_sized(pbox_context* context, const pbox_operation* list,
                                               size_t operation_size, uint32_t count,
                                               pbox_callback callback, void* user);
#define pbox_push_pull_many(context, list, count, callback, user) \
  pbox_push_pull_many_sized((context), (list), sizeof(pbox_operation), (count), (callback), (user))

/* PBOX_MODE_OPTIMIZE: gives the box its initial weights, once per tensor. Rank 0's values count;
 * every rank receives them in `weights`, in place. Asynchronous, and completed like a push_pull. A
 * process that rejoins a job whose pbox_tensor_round is not 0 receives the current weights. */
PBOX_API pbox_status pbox_init_weights(pbox_context* context, uint32_t tensor_id, void* weights,
                                       pbox_callback callback, void* user);

/* Waits for the tensor's operation; returns at once if there is none. timeout_ms 0 means
 * options.wait_timeout_ms. After PBOX_TIMEOUT the operation continues and can be waited for again.
 * The message names the rank or the box that is late. */
PBOX_API pbox_status pbox_wait(pbox_context* context, uint32_t tensor_id, uint32_t timeout_ms);

/* Waits for every operation in flight. Deadline and errors are those of pbox_wait. */
PBOX_API pbox_status pbox_wait_all(pbox_context* context, uint32_t timeout_ms);

/* Stores in *count how many ranks are in the tensor's last result: the minimum over its chunks.
 * Below world_size only with PBOX_LOST_PARTIAL; 0 before the first result. */
PBOX_API pbox_status pbox_contributors(pbox_context* context, uint32_t tensor_id, uint32_t* count);

/* Changes the job's priority policy for all ranks; one rank's call is enough. With
 * PBOX_PRIORITY_EXPLICIT, `by_tensor` holds one priority per registered tensor, or is NULL for
 * those of pbox_register_tensor. With the other policies it must be NULL. FORWARD_ORDER learns the
 * order again. Returns at once. The box and each rank apply the change to operations that start
 * after it has reached them. To be sure that every rank uses it, call pbox_barrier afterwards. */
PBOX_API pbox_status pbox_set_priorities(pbox_context* context, pbox_priority_policy policy,
                                         const int32_t* by_tensor);

/* Sets the learning rate of the box's optimizer from the next round on. This rank must have no
 * operation in flight. One rank's call is enough; if several ranks have set it, the lowest rank
 * still in the job counts. Returns when every pipeline uses it. */
PBOX_API pbox_status pbox_set_learning_rate(pbox_context* context, float learning_rate);

/* Returns when every rank that is still in the job has called it. */
PBOX_API pbox_status pbox_barrier(pbox_context* context, uint32_t timeout_ms);

#define PBOX_STALENESS_BUCKETS 16

/* Counters since pbox_join. docs/consistency.md explains reads and their staleness. */
typedef struct pbox_statistics {
  uint32_t struct_size;                /* the caller's sizeof; fields beyond it are not written */
  uint64_t bytes_pushed, bytes_pulled; /* payload, without retransmissions */
  uint64_t packets_sent, packets_received;
  /* Fragments sent again; PULL packets sent; packets received for a round or chunk that is no
   * longer in flight; packets received that failed a check. */
  uint64_t retransmitted_fragments, probes_sent, stale_packets, rejected_packets;
  uint64_t operations_completed, operations_failed;
  uint32_t smoothed_rtt_us, fragment_bytes, pipeline_count;
  /* Times that this rank joined a part of the job again: its box or the connection to it was lost,
   * or the part or some of its chunks moved. */
  uint32_t recoveries;
  uint64_t shadow_bytes; /* memory of the model copy that recovery or cached reads need */
  uint64_t reads;        /* operations completed, counted by staleness below */
  int64_t staleness_sum; /* <= 0 */
  uint64_t staleness_square_sum;
  /* Reads with staleness 0, -1, -2, ...; the last bucket also counts all older ones. */
  uint64_t reads_by_staleness[PBOX_STALENESS_BUCKETS];
  uint64_t dropped_rounds; /* DROP: operations whose result lacks this rank's gradient */
  /* PBOX_MODE_OPTIMIZE: how often a box was lost with the optimizer state of its chunks, which was
   * restored from the snapshot below or began from zero. */
  uint64_t optimizer_restarts;
  uint64_t ports_given_up;    /* ports of options.port that were replaced; the box's log says why */
  uint64_t restored_snapshot; /* options.restore: the snapshot that the job started with; 0: none */
  uint64_t restored_steps;    /* optimizer steps that its weights had taken */
  /* The snapshot that the optimizer state came from in the last optimizer restart, and its
   * optimizer steps. If several boxes restarted, the oldest snapshot. 0: from zero. */
  uint64_t optimizer_snapshot, optimizer_snapshot_steps;
  /* Packets sent by ports that can read payloads in place, which are rdma and shm, except small
   * ones. Direct: the payload was read in place. Staged: it was copied, because its memory was not
   * registered (rdma), or not from pbox_alloc (shm). Staged refused: it was copied, because the
   * device had refused to register its memory. */
  uint64_t packets_direct, packets_staged, packets_staged_refused;
  uint64_t zero_fragments; /* fragments of gradients that were not sent because they are zero */
  /* Tensors with PBOX_COMPRESSION_AUTO; those of them whose last exchange was compressed; and how
   * often one of them began or ceased to be compressed. pbox_tensor_compression says why. */
  uint32_t chosen_tensors, chosen_compressed;
  uint64_t compression_changes;
} pbox_statistics;

/* Fills *statistics. Set statistics->struct_size to sizeof(pbox_statistics) first. Allowed once the
 * job has been joined, also after it was left. Waits at most options.wait_timeout_ms. */
PBOX_API pbox_status pbox_get_statistics(pbox_context* context, pbox_statistics* statistics);

/* Where the time of an iteration goes, for one chunk. Times are nanoseconds of CLOCK_MONOTONIC.
 * Before pushed_ns the chunk waited for the send window. From pushed_ns to sent_ns its packets were
 * sent. From sent_ns to answered_ns they were in flight, or the box summed and waited for other
 * ranks. From answered_ns to completed_ns the result arrived. */
typedef struct pbox_chunk_times {
  uint32_t tensor, chunk; /* chunks are numbered through all tensors, in registration order */
  uint32_t round, pipeline;
  uint64_t pushed_ns, sent_ns, answered_ns, completed_ns;
} pbox_chunk_times;

/* Starts to record the times of completed chunks. Keeps at most `capacity` chunks per box of the
 * job; further ones are not recorded until the kept ones are taken. 0 stops recording. */
PBOX_API pbox_status pbox_trace_chunks(pbox_context* context, uint32_t capacity);

/* Takes the oldest recorded chunk times. On entry *count is the capacity of `times`; on return it
 * is the number of entries written. */
PBOX_API pbox_status pbox_take_chunk_times(pbox_context* context, pbox_chunk_times* times,
                                           uint32_t* count);

/* Leaves the job. Operations in flight are completed with PBOX_CLOSED. May be called from another
 * thread while pbox_join still waits: pbox_join then returns PBOX_CLOSED soon, and this context
 * cannot join any more. Refused in a callback, with PBOX_INVALID_ARGUMENT. */
PBOX_API pbox_status pbox_leave(pbox_context* context);

/* Leaves the job if that has not happened yet, and frees the context. NULL is allowed. Must not be
 * called from a callback. */
PBOX_API void pbox_destroy(pbox_context* context);

/* Returns the last error of this context in words, whichever thread's call it was. With NULL, that
 * of this thread's last failed call, with or without a context. Valid until the calling thread's
 * next call into the library. */
PBOX_API const char* pbox_last_error(const pbox_context* context);

/* Returns a status in words; the string is never freed. */
PBOX_API const char* pbox_status_string(pbox_status status);

/* Returns PBOX_ABI_VERSION of the loaded library. */
PBOX_API uint32_t pbox_abi_version(void);

#ifdef __cplusplus
}
#endif

#include "pbox/collective.h"
#include "pbox/rows.h"
#include "pbox/step.h"

#endif /* PBOX_PBOX_H */
