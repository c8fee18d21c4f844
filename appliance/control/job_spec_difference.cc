// Finds the first field in which two descriptions of one job differ.
#include <algorithm>

#include "appliance/control/field_text.h"
#include "appliance/control/job_spec.h"
#include "appliance/control/sync_spec.h"

namespace pbox::control {
namespace {

template <typename T>
std::optional<std::string> differs(const std::string& what, const T& job, const T& worker) {
  if (job == worker) return std::nullopt;
  return what + ": " + number(worker) + ", but the job has " + number(job);
}

constexpr const char* kModeNames[] = {"aggregate", "optimize"};
constexpr const char* kReductionNames[] = {"sum", "mean"};
constexpr const char* kLostPolicyNames[] = {"wait", "partial", "abort"};
constexpr const char* kRecoveryNames[] = {"copy", "none"};

// Like differs() above, with the values' names in place of their numbers.
template <typename Enum, size_t kCount>
std::optional<std::string> differs(const std::string& what, Enum job, Enum worker,
                                   const char* const (&names)[kCount]) {
  if (job == worker) return std::nullopt;
  PBOX_CHECK(static_cast<size_t>(job) < kCount && static_cast<size_t>(worker) < kCount);
  return what + ": " + names[static_cast<size_t>(worker)] + ", but the job has " +
         names[static_cast<size_t>(job)];
}

std::optional<std::string> tensor_difference(const TensorSpec& job, const TensorSpec& worker,
                                             size_t index) {
  const std::string where = "tensor " + std::to_string(index) + " (" + in_quotes(worker.name) + ")";
  if (job.name != worker.name) {
    return "tensor " + std::to_string(index) + ": named " + in_quotes(worker.name) +
           ", but the job has " + in_quotes(job.name);
  }
  if (auto difference = differs(where + " elements", job.elements, worker.elements)) {
    return difference;
  }
  if (job.dtype != worker.dtype) {
    return where + " dtype: " + wire::to_string(worker.dtype) + ", but the job has " +
           wire::to_string(job.dtype);
  }
  if (auto difference =
          differs(where + " first_element", job.first_element, worker.first_element)) {
    return difference;
  }
  if (auto difference = differs(where + " row_elements", job.row_elements, worker.row_elements)) {
    return difference;
  }
  if (job.compression != worker.compression) {
    return where + " compression: " + to_string(worker.compression) + ", but the job has " +
           to_string(job.compression);
  }
  if (auto difference = differs(where + " priority", job.priority, worker.priority)) {
    return difference;
  }
  if (auto difference = sync_difference(job.sync, worker.sync)) return where + " " + *difference;
  if (auto difference = differs(where + " lr_scale", job.lr_scale, worker.lr_scale)) {
    return difference;
  }
  return differs(where + " weight_decay", job.weight_decay, worker.weight_decay);
}

std::optional<std::string> optimizer_difference(const optimizer::OptimizerSpec& job,
                                                const optimizer::OptimizerSpec& worker) {
  if (auto found =
          differs("optimizer.kind", job.kind, worker.kind, optimizer::kOptimizerKindNames)) {
    return found;
  }
  if (auto found = differs("optimizer.learning_rate", job.learning_rate, worker.learning_rate)) {
    return found;
  }
  if (auto found = differs("optimizer.momentum", job.momentum, worker.momentum)) return found;
  if (auto found = differs("optimizer.beta1", job.beta1, worker.beta1)) return found;
  if (auto found = differs("optimizer.beta2", job.beta2, worker.beta2)) return found;
  return differs("optimizer.epsilon", job.epsilon, worker.epsilon);
}

}  // namespace

std::optional<std::string> first_difference(const JobSpec& job, const JobSpec& worker) {
  if (auto found = differs("parts", job.parts, worker.parts)) return found;
  if (auto found = differs("world_size", job.world_size, worker.world_size)) return found;
  if (auto found = differs("min_world_size", job.min_world_size, worker.min_world_size)) {
    return found;
  }
  if (auto found = differs("mode", job.mode, worker.mode, kModeNames)) return found;
  if (auto found = differs("collective", int(job.collective), int(worker.collective))) {
    return found;
  }
  if (auto found = differs("reduction", job.reduction, worker.reduction, kReductionNames)) {
    return found;
  }
  if (auto found = differs("weighted", int(job.weighted), int(worker.weighted))) return found;
  if (auto found =
          differs("on_worker_lost", job.on_worker_lost, worker.on_worker_lost, kLostPolicyNames)) {
    return found;
  }
  if (auto found = differs("recovery", job.recovery, worker.recovery, kRecoveryNames)) return found;
  if (auto found = sync_difference(job.sync, worker.sync)) return found;
  if (auto found = differs("relaxed_model", job.relaxed_model, worker.relaxed_model,
                           wire::kSyncModelNames)) {
    return found;
  }
  if (auto found = differs("priority_policy", job.priority_policy, worker.priority_policy,
                           wire::kPriorityPolicyNames)) {
    return found;
  }
  if (auto found = differs("delivery", job.delivery, worker.delivery, wire::kDeliveryNames)) {
    return found;
  }
  if (auto found = differs("replicas", job.replicas, worker.replicas)) return found;
  if (auto found = differs("is_backup", int(job.is_backup), int(worker.is_backup))) return found;
  if (auto found = differs("numerics", job.numerics, worker.numerics, wire::kNumericsNames)) {
    return found;
  }
  if (auto found = differs("chunk_bytes", job.chunk_bytes, worker.chunk_bytes)) return found;
  if (job.restore != worker.restore) {
    return "restore: " + in_quotes(worker.restore) + ", but the job has " + in_quotes(job.restore);
  }
  if (auto found = optimizer_difference(job.optimizer, worker.optimizer)) return found;
  if (auto found = differs("optimizer.max_grad_norm", job.max_grad_norm, worker.max_grad_norm)) {
    return found;
  }
  if (auto found = differs("optimizer.skip_nonfinite", int(job.skip_nonfinite),
                           int(worker.skip_nonfinite))) {
    return found;
  }
  if (auto found = differs("guard", job.guard.policy, worker.guard.policy, wire::kGuardNames)) {
    return found;
  }
  if (auto found = differs("guard_max_abs", job.guard.max_abs, worker.guard.max_abs)) return found;
  if (job.filled_parts != worker.filled_parts) return "filled_parts: another list of parts";
  const size_t common = std::min(job.tensors.size(), worker.tensors.size());
  for (size_t index = 0; index < common; ++index) {
    if (auto found = tensor_difference(job.tensors[index], worker.tensors[index], index)) {
      return found;
    }
  }
  if (job.tensors.size() == worker.tensors.size()) return std::nullopt;
  const bool worker_has_more = worker.tensors.size() > common;
  const auto& longer = worker_has_more ? worker.tensors : job.tensors;
  return "tensor " + std::to_string(common) + " (" + in_quotes(longer[common].name) + ") is " +
         (worker_has_more ? "in this worker's list only" : "missing from this worker's list");
}

}  // namespace pbox::control
