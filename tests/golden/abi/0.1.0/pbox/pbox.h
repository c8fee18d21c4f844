/* pbox.h of release 0.1.0 without its comments. Never changed: programs that were built with it
 * must work with every library of ABI version 1. */
#pragma once

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
  PBOX_ALREADY_EXISTS = 3,
  PBOX_RESOURCE_EXHAUSTED = 4,
  PBOX_UNAVAILABLE = 5,
  PBOX_TIMEOUT = 6,
  PBOX_WORKER_LOST = 7,
  PBOX_BOX_LOST = 8,
  PBOX_MISMATCH = 9,
  PBOX_VERSION_MISMATCH = 10,
  PBOX_SYSTEM = 11,
  PBOX_FORKED = 12,
  PBOX_CLOSED = 13,
  PBOX_INTERNAL = 14
} pbox_status;

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

typedef int32_t pbox_recovery;
enum pbox_recovery_value { PBOX_RECOVERY_COPY = 0, PBOX_RECOVERY_NONE = 1 };

typedef int32_t pbox_lost;
enum pbox_lost_value { PBOX_LOST_WAIT = 0, PBOX_LOST_PARTIAL = 1, PBOX_LOST_ABORT = 2 };

typedef int32_t pbox_priority_policy;
enum pbox_priority_policy_value {
  PBOX_PRIORITY_EXPLICIT = 0,
  PBOX_PRIORITY_FORWARD_ORDER = 1,
  PBOX_PRIORITY_FIFO = 2
};

typedef int32_t pbox_delivery;
enum pbox_delivery_value { PBOX_DELIVERY_BROADCAST = 0, PBOX_DELIVERY_PULL = 1 };

typedef int32_t pbox_numerics;
enum pbox_numerics_value { PBOX_NUMERICS_FAST = 0, PBOX_NUMERICS_ORDERED = 1 };

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

typedef int32_t pbox_release;
enum pbox_release_value { PBOX_RELEASE_SOFT = 0, PBOX_RELEASE_LAZY = 1 };

typedef int32_t pbox_reads;
enum pbox_reads_value { PBOX_READS_FRESH = 0, PBOX_READS_CACHED = 1 };

typedef struct pbox_context pbox_context;

typedef struct pbox_options {
  uint32_t struct_size;

  const char* box;
  const char* job;
  uint32_t rank;
  uint32_t world_size;
  pbox_mode mode;
  pbox_reduction reduction;

  uint32_t chunk_bytes;

  uint32_t window_bytes;

  uint32_t join_timeout_ms;
  uint32_t wait_timeout_ms;
  uint32_t lost_timeout_ms;

  const char* port;
  pbox_recovery recovery;
  uint32_t recover_timeout_ms;
  pbox_lost on_worker_lost;
  uint32_t rejoin;
  pbox_priority_policy priority_policy;
  pbox_delivery delivery;
  pbox_sync sync;
  uint32_t staleness;
  float sync_probability;
  pbox_release release;
  pbox_reads reads;
  uint32_t quorum;

  const char* restore;
  pbox_numerics numerics;

  uint32_t replicas;

  uint32_t backup;
} pbox_options;

PBOX_API void pbox_options_init(pbox_options* options);

PBOX_API pbox_status pbox_options_from_environment(pbox_options* options);

PBOX_API pbox_status pbox_create(const pbox_options* options, pbox_context** context);

PBOX_API pbox_status pbox_register_tensor(pbox_context* context, const char* name,
                                          uint64_t element_count, pbox_dtype dtype,
                                          int32_t priority, uint32_t* tensor_id);

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

PBOX_API pbox_status pbox_set_tensor_optimizer(pbox_context* context, uint32_t tensor_id,
                                               float lr_scale, float weight_decay);

PBOX_API pbox_status pbox_join(pbox_context* context);

PBOX_API pbox_status pbox_register_memory(pbox_context* context, const void* address,
                                          uint64_t bytes);

PBOX_API pbox_status pbox_unregister_memory(pbox_context* context, const void* address);

PBOX_API pbox_status pbox_tensor_round(pbox_context* context, uint32_t tensor_id, uint32_t* round);

typedef void (*pbox_callback)(void* user, uint32_t tensor_id, pbox_status status);

PBOX_API pbox_status pbox_push_pull(pbox_context* context, uint32_t tensor_id, const void* input,
                                    void* output, pbox_callback callback, void* user);

PBOX_API pbox_status pbox_push_pull_priority(pbox_context* context, uint32_t tensor_id,
                                             const void* input, void* output, int32_t priority,
                                             pbox_callback callback, void* user);

PBOX_API pbox_status pbox_init_weights(pbox_context* context, uint32_t tensor_id, void* weights,
                                       pbox_callback callback, void* user);

PBOX_API pbox_status pbox_wait(pbox_context* context, uint32_t tensor_id, uint32_t timeout_ms);

PBOX_API pbox_status pbox_wait_all(pbox_context* context, uint32_t timeout_ms);

PBOX_API pbox_status pbox_contributors(pbox_context* context, uint32_t tensor_id, uint32_t* count);

PBOX_API pbox_status pbox_set_priorities(pbox_context* context, pbox_priority_policy policy,
                                         const int32_t* by_tensor);

PBOX_API pbox_status pbox_set_learning_rate(pbox_context* context, float learning_rate);

PBOX_API pbox_status pbox_barrier(pbox_context* context, uint32_t timeout_ms);

#define PBOX_STALENESS_BUCKETS 16

typedef struct pbox_statistics {
  uint32_t struct_size;
  uint64_t bytes_pushed, bytes_pulled;
  uint64_t packets_sent, packets_received;

  uint64_t retransmitted_fragments, probes_sent, stale_packets, rejected_packets;
  uint64_t operations_completed, operations_failed;
  uint32_t smoothed_rtt_us, fragment_bytes, pipeline_count;
  uint32_t recoveries;
  uint64_t shadow_bytes;
  uint64_t reads;
  int64_t staleness_sum;
  uint64_t staleness_square_sum;

  uint64_t reads_by_staleness[PBOX_STALENESS_BUCKETS];
  uint64_t dropped_rounds;

  uint64_t optimizer_restarts;
  uint64_t ports_given_up;
  uint64_t restored_snapshot;
  uint64_t restored_steps;

  uint64_t optimizer_snapshot, optimizer_snapshot_steps;

  uint64_t packets_direct, packets_staged, packets_staged_refused;
} pbox_statistics;

PBOX_API pbox_status pbox_get_statistics(pbox_context* context, pbox_statistics* statistics);

typedef struct pbox_chunk_times {
  uint32_t tensor, chunk;
  uint32_t round, pipeline;
  uint64_t pushed_ns, sent_ns, answered_ns, completed_ns;
} pbox_chunk_times;

PBOX_API pbox_status pbox_trace_chunks(pbox_context* context, uint32_t capacity);

PBOX_API pbox_status pbox_take_chunk_times(pbox_context* context, pbox_chunk_times* times,
                                           uint32_t* count);

PBOX_API pbox_status pbox_leave(pbox_context* context);

PBOX_API void pbox_destroy(pbox_context* context);

PBOX_API const char* pbox_last_error(const pbox_context* context);

PBOX_API const char* pbox_status_string(pbox_status status);

PBOX_API uint32_t pbox_abi_version(void);

#ifdef __cplusplus
}
#endif
