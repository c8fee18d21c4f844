// The C ABI: checks what C cannot check, converts arguments, and lets no exception cross it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "base/version.h"
#include "nic/wire/push_weight.h"
#include "pbox/pbox.h"
#include "worker/abi/caller_struct.h"
#include "worker/abi/check_options.h"
#include "worker/abi/context.h"

using pbox::Error;
using pbox::ErrorCode;
using pbox::Result;
using pbox::Status;
using pbox::worker::check_options;
using pbox::worker::check_policy;
using pbox::worker::Client;
using pbox::worker::ClientOptions;
using pbox::worker::create_context;
using pbox::worker::fail_call;
using pbox::worker::guarded;
using pbox::worker::has_size;
using pbox::worker::invalid_argument;
using pbox::worker::kOptimizerBytesFirst;
using pbox::worker::kOptionsBytesFirst;
using pbox::worker::load_from_caller;
using pbox::worker::Operation;

namespace {

thread_local std::string error_text;  // returned by pbox_last_error

// Returns the caller's struct; `name` is its type, `init` the function that fills it.
template <typename T>
Result<T> read_struct(const T* caller, size_t bytes_min, const std::string& name,
                      const std::string& init) {
  if (!has_size(caller, bytes_min))
    return invalid_argument(name + " must be filled by " + init + " first");
  if (auto value = load_from_caller(caller)) return *value;
  return invalid_argument(
      "the program sets a field of " + name + " that this libpbox does not have: the struct has " +
      std::to_string(caller->struct_size) + " bytes in the program, and in libpbox " +
      pbox::kVersion + " " + std::to_string(sizeof(T)) +
      "; install the libpbox that the program was built with, or leave the field at 0");
}

pbox::wire::SyncSpec sync_of(const pbox_options& options) {
  return {.model = static_cast<pbox::wire::SyncModel>(options.sync),
          .staleness = options.staleness,
          .probability = options.sync_probability,
          .release = static_cast<pbox::wire::Release>(options.release),
          .reads = static_cast<pbox::wire::Reads>(options.reads),
          .quorum = options.quorum,
          .grace_ms = options.grace_ms,
          .counts_late = options.late_pushes == PBOX_LATE_NEXT};
}

Operation operation_on(uint32_t tensor_id, const void* input, void* output) {
  return {.tensor = tensor_id,
          .input = static_cast<const std::byte*>(input),
          .output = static_cast<std::byte*>(output)};
}

pbox_status start(pbox_context* context, const Operation& operation, pbox_callback callback,
                  void* user) {
  return guarded(context, [&](Client& client) {
    return client.start_many({&operation, 1}, {callback, user});
  });
}

// Returns the code of a push's weight.
Result<uint16_t> weight_code_of(float weight) {
  if (weight == 0) return uint16_t{0};
  const auto code = pbox::wire::nearest_weight_code(weight);
  if (!code) {
    return invalid_argument("weight " + std::to_string(weight) +
                            " is out of range; give a weight from 1 to " +
                            std::to_string(pbox::wire::kPushWeightMax) + ", or 0 for 1");
  }
  const uint64_t nearest = pbox::wire::push_weight(*code);
  if (static_cast<float>(nearest) == weight) return *code;
  return invalid_argument(
      "weight " + std::to_string(weight) +
      " has no exact code in packets; give the weight that pbox_round_weight returns, " +
      std::to_string(nearest) + ", and multiply the input by it too");
}

// Reads a caller's array, whose elements may be smaller or larger than this library's.
Result<std::vector<Operation>> read_operations(const pbox_operation* operations,
                                               size_t operation_bytes, uint32_t count) {
  if (operations == nullptr || count == 0) {
    return invalid_argument("operations is NULL or count is 0: give at least one operation");
  }
  if (operation_bytes < pbox::worker::kOperationBytesFirst ||
      operation_bytes > pbox::worker::kCallerStructBytesMax ||
      operation_bytes % alignof(pbox_operation) != 0) {
    return invalid_argument("operation_size " + std::to_string(operation_bytes) +
                            " is not the size of pbox_operation; call pbox_push_pull_many");
  }
  std::vector<Operation> read;
  for (uint32_t index = 0; index < count; ++index) {
    const auto* element = reinterpret_cast<const std::byte*>(operations) + index * operation_bytes;
    const auto value = pbox::worker::load_element<pbox_operation>(element, operation_bytes);
    if (!value) {
      return invalid_argument(
          "operations[" + std::to_string(index) + "] has a field set that libpbox " +
          pbox::kVersion +
          " does not have; install the libpbox that the program was built with, or "
          "leave the field at 0");
    }
    const std::string where = "operations[" + std::to_string(index) + "]: ";
    if (value->has_priority > 1) {
      return invalid_argument(where + "has_priority is " + std::to_string(value->has_priority) +
                              "; it must be 0 or 1");
    }
    const auto weight_code = weight_code_of(value->weight);
    if (!weight_code) return invalid_argument(where + weight_code.error().message);
    Operation& operation =
        read.emplace_back(operation_on(value->tensor_id, value->input, value->output));
    if (value->has_priority != 0) operation.priority = value->priority;
    operation.weight_code = *weight_code;
  }
  return read;
}

// Stores a number in *place, or returns the error.
Status store_number(const Result<uint32_t>& number, uint32_t* place) {
  if (place == nullptr) return invalid_argument("the pointer for the result must not be NULL");
  if (!number) return number.error();
  *place = *number;
  return pbox::ok_status();
}

}  // namespace

void pbox::worker::set_thread_error(const std::string& message) {
  error_text = message;
}

Result<ClientOptions> pbox::worker::read_options(const pbox_options* caller_options) {
  const auto options =
      read_struct(caller_options, kOptionsBytesFirst, "pbox_options", "pbox_options_init");
  if (!options) return options.error();
  if (const Status sound = check_options(*options); !sound) return sound.error();
  ClientOptions chosen;
  if (options->box != nullptr) chosen.box = options->box;
  if (options->job != nullptr) chosen.job = options->job;
  if (options->port != nullptr) chosen.port = options->port;
  if (options->restore != nullptr) chosen.restore = options->restore;
  if (options->keys != nullptr) chosen.keys = options->keys;
  chosen.rank = options->rank;
  chosen.world_size = options->world_size;
  chosen.optimize = options->mode == PBOX_MODE_OPTIMIZE;
  chosen.mean = options->reduction == PBOX_MEAN;
  chosen.weighted = options->weighted == 1;
  chosen.collective = options->mode == PBOX_MODE_COLLECTIVE;
  if (options->collective_bytes > 0) chosen.collective_bytes = options->collective_bytes;
  chosen.chunk_bytes = options->chunk_bytes;
  chosen.window_bytes = options->window_bytes;
  if (options->join_timeout_ms > 0) chosen.join_timeout_ms = options->join_timeout_ms;
  if (options->wait_timeout_ms > 0) chosen.wait_timeout_ms = options->wait_timeout_ms;
  chosen.lost_timeout_ms = options->lost_timeout_ms;
  chosen.recovery = static_cast<pbox::worker::Recovery>(options->recovery);
  if (options->recover_timeout_ms > 0) chosen.recover_timeout_ms = options->recover_timeout_ms;
  chosen.on_worker_lost = static_cast<pbox::worker::LostPolicy>(options->on_worker_lost);
  const bool is_elastic =
      options->min_world_size > 0 && options->min_world_size < options->world_size;
  if (is_elastic) chosen.min_world_size = options->min_world_size;
  chosen.rejoin = options->rejoin == 1 || is_elastic;
  chosen.priority_policy = static_cast<pbox::wire::PriorityPolicy>(options->priority_policy);
  chosen.delivery = static_cast<pbox::wire::Delivery>(options->delivery);
  chosen.numerics = static_cast<pbox::wire::Numerics>(options->numerics);
  chosen.guard = {static_cast<pbox::wire::Guard>(options->guard), options->guard_max_abs};
  chosen.chooses_compression = options->compression == PBOX_COMPRESSION_AUTO;
  chosen.compression = pbox::worker::compression_of(options->compression);
  chosen.sync = sync_of(*options);
  chosen.replicas = options->replicas;
  chosen.is_backup = options->backup != 0;
  chosen.backup_has_clocks = options->backup == 2;
  return chosen;
}

pbox_status pbox::worker::create_context(const Result<ClientOptions>& options,
                                         pbox_context** context) {
  if (context == nullptr) return fail_call(nullptr, invalid_argument("context is NULL"));
  *context = nullptr;
  if (!options) return fail_call(nullptr, options.error());
  try {
    *context = new pbox_context(*options);
    return PBOX_OK;
  } catch (const std::exception& exception) {
    return fail_call(nullptr, {ErrorCode::kInternal, exception.what()});
  }
}

pbox_status pbox_create(const pbox_options* options, pbox_context** context) {
  return create_context(pbox::worker::read_options(options), context);
}

pbox_status pbox_register_tensor(pbox_context* context, const char* name, uint64_t element_count,
                                 pbox_dtype dtype, int32_t priority, uint32_t* tensor_id) {
  return guarded(context, [&](Client& client) -> Status {
    if (name == nullptr || tensor_id == nullptr)
      return invalid_argument("name and tensor_id must not be NULL");
    if (static_cast<uint32_t>(dtype) >= pbox::wire::kDtypeCount) {
      return invalid_argument("dtype " + std::to_string(dtype) + " is unknown");
    }
    pbox::worker::TensorSpec tensor;
    tensor.name = name;
    tensor.elements = element_count;
    tensor.dtype = static_cast<pbox::wire::Dtype>(dtype);
    tensor.priority = priority;
    const auto id = client.register_tensor(std::move(tensor));
    if (!id) return id.error();
    *tensor_id = *id;
    return pbox::ok_status();
  });
}

pbox_status pbox_set_optimizer(pbox_context* context,
                               const pbox_optimizer_options* caller_options) {
  return guarded(context, [&](Client& client) -> Status {
    const auto options = read_struct(caller_options, kOptimizerBytesFirst, "pbox_optimizer_options",
                                     "pbox_optimizer_options_init");
    if (!options) return options.error();
    if (options->kind < PBOX_SGD || options->kind > PBOX_ADAGRAD) {
      return invalid_argument("optimizer kind " + std::to_string(options->kind) + " is unknown");
    }
    pbox::proto::Optimizer optimizer;
    optimizer.set_kind(static_cast<uint32_t>(options->kind));
    optimizer.set_learning_rate(options->learning_rate);
    optimizer.set_momentum(options->momentum);
    optimizer.set_beta1(options->beta1);
    optimizer.set_beta2(options->beta2);
    optimizer.set_epsilon(options->epsilon);
    optimizer.set_weight_decay(options->weight_decay);
    if (options->skip_nonfinite > 1) {
      return invalid_argument("skip_nonfinite " + std::to_string(options->skip_nonfinite) +
                              " must be 0 or 1");
    }
    optimizer.set_max_grad_norm(options->max_grad_norm);
    optimizer.set_skip_nonfinite(options->skip_nonfinite == 1);
    return client.set_optimizer(optimizer);
  });
}

pbox_status pbox_set_tensor_optimizer(pbox_context* context, uint32_t tensor_id, float lr_scale,
                                      float weight_decay) {
  return guarded(context, [&](Client& client) {
    return client.change_tensor(tensor_id, [&](pbox::worker::TensorSpec& tensor) -> Status {
      if (!std::isfinite(lr_scale) || lr_scale < 0 || !std::isfinite(weight_decay) ||
          weight_decay < 0) {
        return invalid_argument("lr_scale and weight_decay must be finite and >= 0");
      }
      tensor.lr_scale = lr_scale;
      tensor.weight_decay = weight_decay;
      return pbox::ok_status();
    });
  });
}

pbox_status pbox_join(pbox_context* context) {
  return guarded(context, [](Client& client) { return client.join(); });
}

pbox_status pbox_push_pull(pbox_context* context, uint32_t tensor_id, const void* input,
                           void* output, pbox_callback callback, void* user) {
  return start(context, operation_on(tensor_id, input, output), callback, user);
}

pbox_status pbox_push_pull_priority(pbox_context* context, uint32_t tensor_id, const void* input,
                                    void* output, int32_t priority, pbox_callback callback,
                                    void* user) {
  Operation operation = operation_on(tensor_id, input, output);
  operation.priority = priority;
  return start(context, operation, callback, user);
}

pbox_status pbox_push_pull_many_sized(pbox_context* context, const pbox_operation* operations,
                                      size_t operation_size, uint32_t count, pbox_callback callback,
                                      void* user) {
  return guarded(context, [&](Client& client) -> Status {
    const auto read = read_operations(operations, operation_size, count);
    if (!read) return read.error();
    return client.start_many(*read, {callback, user});
  });
}

float pbox_round_weight(double weight) {
  const auto code = pbox::wire::nearest_weight_code(weight);
  return code ? static_cast<float>(pbox::wire::push_weight(*code)) : 0.0f;
}

pbox_status pbox_init_weights(pbox_context* context, uint32_t tensor_id, void* weights,
                              pbox_callback callback, void* user) {
  Operation operation = operation_on(tensor_id, weights, weights);
  operation.initial_weights = true;
  return start(context, operation, callback, user);
}

pbox_status pbox_register_memory(pbox_context* context, const void* address, uint64_t bytes) {
  return guarded(context, [&](Client& client) {
    return client.register_memory(static_cast<const std::byte*>(address), bytes);
  });
}

pbox_status pbox_unregister_memory(pbox_context* context, const void* address) {
  return guarded(context, [&](Client& client) {
    return client.unregister_memory(static_cast<const std::byte*>(address));
  });
}

pbox_status pbox_alloc(pbox_context* context, uint64_t bytes, void** memory) {
  return guarded(context, [&](Client& client) -> Status {
    if (memory == nullptr) return invalid_argument("memory is null");
    auto allocated = client.allocate(bytes);
    if (!allocated) return allocated.error();
    *memory = *allocated;
    return pbox::ok_status();
  });
}

pbox_status pbox_free(void* memory) {
  if (memory == nullptr || pbox::worker::free_shared(static_cast<std::byte*>(memory))) {
    return PBOX_OK;
  }
  return PBOX_INVALID_ARGUMENT;
}

pbox_status pbox_tensor_round(pbox_context* context, uint32_t tensor_id, uint32_t* round) {
  return guarded(context,
                 [&](Client& client) { return store_number(client.round(tensor_id), round); });
}

pbox_status pbox_contributors(pbox_context* context, uint32_t tensor_id, uint32_t* count) {
  return guarded(
      context, [&](Client& client) { return store_number(client.contributors(tensor_id), count); });
}

pbox_status pbox_wait(pbox_context* context, uint32_t tensor_id, uint32_t timeout_ms) {
  return guarded(context, [&](Client& client) { return client.wait(tensor_id, timeout_ms); });
}

pbox_status pbox_wait_all(pbox_context* context, uint32_t timeout_ms) {
  return guarded(context, [&](Client& client) { return client.wait_all(timeout_ms); });
}

pbox_status pbox_set_priorities(pbox_context* context, pbox_priority_policy policy,
                                const int32_t* by_tensor) {
  return guarded(context, [&](Client& client) -> Status {
    if (const Status known = check_policy(policy); !known) return known;
    return client.set_priorities(static_cast<pbox::wire::PriorityPolicy>(policy), by_tensor);
  });
}

pbox_status pbox_set_learning_rate(pbox_context* context, float learning_rate) {
  return guarded(context, [&](Client& client) { return client.set_learning_rate(learning_rate); });
}

pbox_status pbox_set_sync(pbox_context* context, const char* tensors, const char* sync) {
  return guarded(context, [&](Client& client) -> Status {
    if (sync == nullptr) return invalid_argument("sync must be set");
    if (tensors != nullptr && *tensors == '\0') {
      return invalid_argument("tensors is empty; set NULL for all of them");
    }
    const auto spec = pbox::wire::parse_sync_text(sync);
    if (!spec) return spec.error();
    return client.set_sync(tensors != nullptr ? tensors : "", *spec);
  });
}

pbox_status pbox_last_step(pbox_context* context, pbox_step* step) {
  return guarded(context, [&](Client& client) -> Status {
    if (step == nullptr || step->struct_size < sizeof(uint32_t)) {
      return invalid_argument("step.struct_size must be set to sizeof(pbox_step)");
    }
    const auto verdict = client.last_step();
    if (!verdict) return verdict.error();
    pbox_step full{};
    full.struct_size = std::min<uint32_t>(step->struct_size, sizeof(full));
    if (*verdict) {
      const float scale = (*verdict)->loss_scale();
      full.round = (*verdict)->round();
      full.norm = scale > 0 ? (*verdict)->norm() / static_cast<double>(scale) : (*verdict)->norm();
      full.skipped = (*verdict)->skipped() ? 1 : 0;
      full.loss_scale = scale;
      full.scale_age = (*verdict)->scale_age();
    }
    std::memcpy(step, &full, full.struct_size);
    return pbox::ok_status();
  });
}

pbox_status pbox_set_loss_scale(pbox_context* context, float loss_scale, uint64_t scale_age) {
  return guarded(context,
                 [&](Client& client) { return client.set_loss_scale(loss_scale, scale_age); });
}

pbox_status pbox_barrier(pbox_context* context, uint32_t timeout_ms) {
  return guarded(context, [&](Client& client) { return client.barrier(timeout_ms); });
}

pbox_status pbox_get_statistics(pbox_context* context, pbox_statistics* statistics) {
  return guarded(context, [&](Client& client) -> Status {
    if (statistics == nullptr || statistics->struct_size < sizeof(uint32_t)) {
      return invalid_argument("statistics.struct_size must be set to sizeof(pbox_statistics)");
    }
    const auto report = client.report();
    if (!report) return report.error();
    pbox_statistics full{};
    full.struct_size = std::min<uint32_t>(statistics->struct_size, sizeof(full));
    full.bytes_pushed = report->exchange.bytes_pushed;
    full.bytes_pulled = report->exchange.bytes_pulled;
    full.packets_sent = report->exchange.packets_sent;
    full.packets_received = report->exchange.packets_received;
    full.retransmitted_fragments = report->exchange.retransmitted_fragments;
    full.probes_sent = report->exchange.probes_sent;
    full.stale_packets = report->exchange.stale_packets;
    full.rejected_packets = report->exchange.rejected_packets;
    full.operations_completed = report->operations_completed;
    full.operations_failed = report->operations_failed;
    full.smoothed_rtt_us = report->exchange.smoothed_rtt_us;
    full.fragment_bytes = report->fragment_bytes;
    full.pipeline_count = report->pipeline_count;
    full.recoveries = static_cast<uint32_t>(report->recoveries);
    full.shadow_bytes = report->exchange.shadow_bytes;
    full.reads = report->exchange.staleness.reads;
    full.staleness_sum = report->exchange.staleness.sum;
    full.staleness_square_sum = report->exchange.staleness.square_sum;
    const auto& by_staleness = report->exchange.staleness.by_staleness;
    static_assert(pbox::worker::kStalenessBuckets == PBOX_STALENESS_BUCKETS);
    std::copy(by_staleness.begin(), by_staleness.end(), full.reads_by_staleness);
    full.dropped_rounds = report->exchange.dropped_rounds;
    full.optimizer_restarts = report->optimizer_restarts;
    full.ports_given_up = report->ports_given_up;
    full.restored_snapshot = report->restored.snapshot;
    full.restored_steps = report->restored.steps;
    full.optimizer_snapshot = report->optimizer_state.snapshot;
    full.optimizer_snapshot_steps = report->optimizer_state.steps;
    full.packets_direct = report->payloads.direct;
    full.packets_staged = report->payloads.staged;
    full.packets_staged_refused = report->payloads.staged_refused;
    full.zero_fragments = report->exchange.zero_fragments;
    full.chosen_tensors = report->chosen_tensors;
    full.chosen_compressed = report->chosen_compressed;
    full.compression_changes = report->compression_changes;
    std::memcpy(statistics, &full, full.struct_size);
    return pbox::ok_status();
  });
}

pbox_status pbox_trace_chunks(pbox_context* context, uint32_t capacity) {
  return guarded(context, [&](Client& client) { return client.trace_chunks(capacity); });
}

pbox_status pbox_take_chunk_times(pbox_context* context, pbox_chunk_times* times, uint32_t* count) {
  return guarded(context, [&](Client& client) -> Status {
    static_assert(sizeof(pbox_chunk_times) == 48, "programs have arrays of it");
    if (times == nullptr || count == nullptr)
      return invalid_argument("times and count must not be NULL");
    std::vector<pbox::worker::ChunkTimes> taken(*count);
    const auto found = client.take_chunk_times(taken);
    if (!found) return found.error();
    for (size_t index = 0; index < *found; ++index) {
      const auto& one = taken[index];
      times[index] = {one.tensor,    one.chunk,   one.round,       one.pipeline,
                      one.pushed_ns, one.sent_ns, one.answered_ns, one.completed_ns};
    }
    *count = static_cast<uint32_t>(*found);
    return pbox::ok_status();
  });
}

pbox_status pbox_leave(pbox_context* context) {
  return guarded(context, [](Client& client) { return client.leave(); });
}

void pbox_destroy(pbox_context* context) {
  // A forked child has neither the thread nor the connections, so only the parent can leave.
  if (context == nullptr || context->client.forked()) return;
  delete context;
}

const char* pbox_last_error(const pbox_context* context) {
  if (context != nullptr && !context->client.forked()) error_text = context->client.last_error();
  return error_text.c_str();
}

const char* pbox_status_string(pbox_status status) {
  return pbox::to_string(static_cast<ErrorCode>(status));
}

uint32_t pbox_abi_version(void) {
  return PBOX_ABI_VERSION;
}
