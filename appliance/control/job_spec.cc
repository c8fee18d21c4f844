#include "appliance/control/job_spec.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_set>

#include "appliance/control/collective_spec.h"
#include "appliance/control/compression_spec.h"
#include "appliance/control/field_text.h"
#include "appliance/control/sync_spec.h"
#include "appliance/control/table_spec.h"
#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/sync.h"

namespace pbox::control {
namespace {

bool finite_at_least(float value, float minimum) {
  return std::isfinite(value) && value >= minimum;
}

Result<optimizer::OptimizerSpec> parse_optimizer(const proto::Optimizer& message) {
  using optimizer::OptimizerKind;
  if (message.kind() < 1 || message.kind() > static_cast<uint32_t>(OptimizerKind::kAdagrad)) {
    return invalid("optimizer.kind " + std::to_string(message.kind()) +
                   " is unknown; 1 SGD, 2 momentum, 3 Nesterov, 4 Adam, 5 AdamW, 6 Adagrad");
  }
  optimizer::OptimizerSpec spec;
  spec.kind = static_cast<OptimizerKind>(message.kind());
  spec.learning_rate = message.learning_rate();
  spec.momentum = message.momentum();
  spec.beta1 = message.beta1();
  spec.beta2 = message.beta2();
  spec.epsilon = message.epsilon();
  spec.weight_decay = message.weight_decay();
  const struct {
    const char* name;
    float value;
    float below;
  } fields[] = {{"learning_rate", spec.learning_rate, INFINITY},
                {"momentum", spec.momentum, INFINITY},
                {"beta1", spec.beta1, 1},
                {"beta2", spec.beta2, 1},
                {"epsilon", spec.epsilon, INFINITY},
                {"weight_decay", spec.weight_decay, INFINITY}};
  for (const auto& field : fields) {
    if (!finite_at_least(field.value, 0) || field.value >= field.below) {
      return invalid(std::string("optimizer.") + field.name + " = " + number(field.value) +
                     " is out of range; it must be finite, >= 0" +
                     (field.below == 1 ? " and < 1" : ""));
    }
  }
  return spec;
}

Result<TensorSpec> parse_tensor(const proto::Tensor& message, uint32_t index, bool is_slot,
                                float weight_decay_default) {
  const std::string where =
      "tensor " + std::to_string(index) + " (" + in_quotes(message.name()) + ")";
  if (message.name().empty() || message.name().size() > limits::kTensorNameBytesMax) {
    return invalid("tensor " + std::to_string(index) + ": the name has " +
                   std::to_string(message.name().size()) + " bytes; 1 to " +
                   std::to_string(limits::kTensorNameBytesMax) + " are allowed");
  }
  if (message.elements() == 0) return invalid(where + " has no elements; leave it out");
  if (message.elements() > (uint64_t{1} << 40)) {
    return invalid(where + ": " + std::to_string(message.elements()) + " elements are over 2^40");
  }
  if (message.dtype() >= (is_slot ? wire::kCollectiveDtypeCount : wire::kDtypeCount)) {
    return invalid(where + ": dtype " + std::to_string(message.dtype()) +
                   " is unknown; 0 f32, 1 f16, 2 bf16" +
                   (is_slot ? ", 3 i32, 4 i64, 5 u8, 6 i8, 7 f64" : ""));
  }
  if (message.compression() >= wire::kCompressionCount) {
    return invalid(where + ": compression " + std::to_string(message.compression()) +
                   " is unknown; 0 none, 1 q8, 2 q4");
  }
  TensorSpec spec;
  spec.name = message.name();
  spec.elements = message.elements();
  spec.first_element = message.first_element();
  spec.dtype = static_cast<wire::Dtype>(message.dtype());
  spec.row_elements = message.row_elements();
  spec.compression = static_cast<wire::Compression>(message.compression());
  spec.priority = message.priority();
  spec.lr_scale = message.lr_scale();
  spec.weight_decay = message.has_weight_decay() ? message.weight_decay() : weight_decay_default;
  if (!finite_at_least(spec.lr_scale, 0) || !finite_at_least(spec.weight_decay, 0)) {
    return invalid(where + ": lr_scale and weight_decay must be finite and >= 0");
  }
  return spec;
}

Status check_schedule(const proto::Join& join) {
  if (join.priority_policy() >= wire::kPriorityPolicyCount) {
    return invalid("priority_policy " + std::to_string(join.priority_policy()) +
                   " is unknown; 0 explicit, 1 forward-order, 2 fifo");
  }
  if (join.delivery() >= wire::kDeliveryCount) {
    return invalid("delivery " + std::to_string(join.delivery()) +
                   " is unknown; 0 broadcast, 1 pull");
  }
  const bool pulls = join.delivery() == static_cast<uint32_t>(wire::Delivery::kPull);
  if (pulls && is_relaxed(join)) {
    return invalid(
        "delivery pull needs sync model bsp, because the other models decide themselves when to "
        "send a result; set delivery broadcast");
  }
  if (join.numerics() >= wire::kNumericsCount) {
    return invalid("numerics " + std::to_string(join.numerics()) +
                   " is unknown; 0 fast, 1 ordered");
  }
  const bool is_ordered = join.numerics() == static_cast<uint32_t>(wire::Numerics::kOrdered);
  if (is_ordered && is_relaxed(join)) {
    return invalid(
        "numerics ordered needs sync model bsp, because in the other models the sum depends on "
        "which rank pushes first; set numerics fast");
  }
  return ok_status();
}

Status check_restore(const proto::Join& join) {
  const std::string& restore = join.restore();
  if (restore.empty()) return ok_status();
  const bool is_number = restore.size() <= 18 && restore[0] != '0' &&
                         std::all_of(restore.begin(), restore.end(),
                                     [](char digit) { return digit >= '0' && digit <= '9'; });
  if (restore != "latest" && !is_number) {
    return invalid("restore = " + in_quotes(restore) +
                   "; it must be \"latest\" or the number of a snapshot (`pboxctl snapshots`)");
  }
  if (join.mode() != static_cast<uint32_t>(pipeline::Mode::kOptimize)) {
    return invalid(
        "restore needs mode optimize: in mode aggregate the ranks have the weights, and save "
        "checkpoints of their own");
  }
  return ok_status();
}

Status check_copies(const proto::Join& join) {
  if (join.replicas() > 1) {
    return invalid("replicas " + std::to_string(join.replicas()) +
                   " is out of range; it is 0 (no backup) or 1 (one backup box)");
  }
  const bool is_copy = join.world_size() == 1 && std::max(1u, join.parts()) == 1 &&
                       join.mode() == static_cast<uint32_t>(pipeline::Mode::kAggregate) &&
                       join.recovery() == static_cast<uint32_t>(Recovery::kNone) &&
                       join.delivery() == static_cast<uint32_t>(wire::Delivery::kPull);
  if (join.is_backup() && !is_copy) {
    return invalid(
        "backup = 1 is only for a box that keeps a copy of its part on another box; it needs "
        "world_size 1, one part, mode aggregate, recovery none and delivery pull");
  }
  return ok_status();
}

// Parses the guard. `spec` must already have the mode and the models.
Status parse_guard(const proto::Join& join, JobSpec& spec) {
  if (join.guard() >= wire::kGuardCount) {
    return invalid("guard " + std::to_string(join.guard()) +
                   " is unknown; 0 flag, 1 reject, 2 zero");
  }
  if (!finite_at_least(join.guard_max_abs(), 0)) {
    return invalid("guard_max_abs = " + number(join.guard_max_abs()) +
                   " is out of range; it must be finite and >= 0 (0: no bound)");
  }
  spec.guard = {static_cast<wire::Guard>(join.guard()), join.guard_max_abs()};
  if (spec.rejects() && spec.is_relaxed()) {
    return invalid(std::string("guard reject needs sync model bsp: with ") +
                   to_string(spec.relaxed_model) +
                   " the ranks share no round that could be rejected; set guard zero");
  }
  if (join.is_backup() && spec.guard != wire::GuardSpec{}) {
    return invalid(
        "backup = 1 sends weights, not gradients; set guard flag and leave guard_max_abs out");
  }
  return ok_status();
}

// Parses `weighted`. `spec` must already have the tensors, the reduction, the models and the guard.
Status parse_weighted(const proto::Join& join, JobSpec& spec) {
  spec.weighted = join.weighted();
  if (!spec.weighted) return ok_status();
  if (spec.collective) {
    return invalid(
        "mode collective cannot have weighted: the weights would have to be known before the "
        "values of each operation; leave weighted out");
  }
  if (spec.reduction != pipeline::Reduction::kMean) {
    return invalid(
        "weighted needs reduction mean, which is divided by the sum of the weights; set mean, or "
        "leave weighted out");
  }
  if (spec.applies_on_arrival()) {
    return invalid(std::string("weighted needs sync model bsp or drop: with ") +
                   to_string(spec.relaxed_model) +
                   " each push changes the weights by itself, and there is no mean; leave weighted "
                   "out");
  }
  if (const TensorSpec* table = first_table(spec)) {
    return invalid("weighted cannot be used with tensor " + in_quotes(table->name) +
                   ", which has row_elements " + std::to_string(table->row_elements) +
                   ": a rank that pushes a row must not change the mean of others; leave one of "
                   "them out");
  }
  if (spec.guard.max_abs > 0) {
    return invalid("guard_max_abs = " + number(spec.guard.max_abs) +
                   " cannot be used with weighted, because pushed values are multiplied by their "
                   "weights; set it to 0");
  }
  if (join.workers() > 0) {
    return invalid("rank " + std::to_string(join.rank()) + " states " +
                   std::to_string(join.workers()) +
                   " workers, but pushes of a weighted job state weights; leave one of them out");
  }
  return ok_status();
}

// Parses the settings that need verdicts. `spec` must already have the parts, the mode, the models
// and the guard.
Status parse_verdicts(const proto::Join& join, JobSpec& spec) {
  const proto::Optimizer& optimizer = join.optimizer();
  if (!finite_at_least(optimizer.max_grad_norm(), 0)) {
    return invalid("optimizer.max_grad_norm = " + number(optimizer.max_grad_norm()) +
                   " is out of range; it must be finite and >= 0 (0: gradients are not clipped)");
  }
  spec.max_grad_norm = optimizer.max_grad_norm();
  spec.skip_nonfinite = optimizer.skip_nonfinite();
  if (!spec.needs_verdicts()) return ok_status();
  const std::string what = spec.max_grad_norm > 0 ? "max_grad_norm " + number(spec.max_grad_norm)
                           : spec.skip_nonfinite  ? "skip_nonfinite"
                                                  : "guard reject";
  if (spec.mode != pipeline::Mode::kOptimize) {
    return invalid(what +
                   " needs mode optimize: in mode aggregate the ranks run the optimizer, "
                   "and clip or skip themselves");
  }
  if (spec.is_relaxed()) {
    return invalid(what + " needs sync model bsp: with " + to_string(spec.relaxed_model) +
                   " the weights are stepped before the whole gradient is there");
  }
  spec.filled_parts.assign(join.filled_parts().begin(), join.filled_parts().end());
  if (spec.filled_parts.empty() && spec.parts == 1) spec.filled_parts = {0};
  const auto& filled = spec.filled_parts;
  const bool ascends =
      std::adjacent_find(filled.begin(), filled.end(), std::greater_equal<>()) == filled.end();
  const bool has_own = std::find(filled.begin(), filled.end(), spec.part) != filled.end();
  if (ascends && has_own && filled.back() < spec.parts) return ok_status();
  return invalid("filled_parts has " + std::to_string(filled.size()) + " entries; with " + what +
                 " it must list the parts that have chunks, ascending and below parts " +
                 std::to_string(spec.parts) + ", among them part " + std::to_string(spec.part));
}

// The most workers that a rank may sum, so that the number of all workers is exact as a float.
constexpr uint32_t kWorkersMax = (1u << 24) / limits::kWorkersPerJobMax;

Status check_identity(const proto::Join& join, const JobLimits& limits) {
  if (const Status status = check_job_name(join.job()); !status) return status;
  if (join.world_size() == 0 || join.world_size() > limits.workers_max) {
    return invalid("world_size " + std::to_string(join.world_size()) +
                   " is out of range; this box takes 1 to " + std::to_string(limits.workers_max) +
                   " ([jobs] workers_max)");
  }
  if (!std::isfinite(join.learning_rate()) || join.learning_rate() < 0) {
    return invalid("learning_rate " + std::to_string(join.learning_rate()) + " of rank " +
                   std::to_string(join.rank()) + " must be finite and >= 0");
  }
  if (join.rank() >= join.world_size()) {
    return invalid("rank " + std::to_string(join.rank()) + " must be below world_size " +
                   std::to_string(join.world_size()));
  }
  if (join.workers() > kWorkersMax) {
    return invalid("rank " + std::to_string(join.rank()) + " states " +
                   std::to_string(join.workers()) + " workers; at most " +
                   std::to_string(kWorkersMax) + " can be summed");
  }
  if (join.parts() > limits::kPartsPerJobMax || join.part() >= std::max(1u, join.parts())) {
    return invalid("part " + std::to_string(join.part()) + " of " + std::to_string(join.parts()) +
                   " is out of range; a job has at most " +
                   std::to_string(limits::kPartsPerJobMax) + " parts");
  }
  if (join.mode() > 1)
    return invalid("mode " + std::to_string(join.mode()) + " is unknown; 0 aggregate, 1 optimize");
  if (join.reduction() > 1) {
    return invalid("reduction " + std::to_string(join.reduction()) + " is unknown; 0 sum, 1 mean");
  }
  if (join.on_worker_lost() > static_cast<uint32_t>(LostPolicy::kAbort)) {
    return invalid("on_worker_lost " + std::to_string(join.on_worker_lost()) +
                   " is unknown; 0 wait, 1 partial, 2 abort");
  }
  if (join.recovery() > static_cast<uint32_t>(Recovery::kNone)) {
    return invalid("recovery " + std::to_string(join.recovery()) + " is unknown; 0 copy, 1 none");
  }
  return check_schedule(join);
}

// Parses the number of ranks with which the job begins. `spec` already has the other settings that
// this one depends on, world_size and on_worker_lost.
Status parse_min_world_size(const proto::Join& join, JobSpec& spec) {
  const std::string what = "min_world_size " + std::to_string(join.min_world_size());
  if (join.min_world_size() > spec.world_size) {
    return invalid(what + " is above world_size " + std::to_string(spec.world_size) +
                   "; it must be 1 to world_size (0: world_size)");
  }
  spec.min_world_size = join.min_world_size() == spec.world_size ? 0 : join.min_world_size();
  if (!spec.is_elastic()) return ok_status();
  if (spec.on_worker_lost != LostPolicy::kPartial) {
    return invalid(what + " needs on_worker_lost partial: the job goes on while ranks are " +
                   "missing; set partial, or leave min_world_size out");
  }
  if (!is_relaxed(join)) return ok_status();
  return invalid(what +
                 " needs sync model bsp: the ranks of other models share no round at which " +
                 "a rank could come; leave min_world_size out");
}

Status check_sizes(const JobSpec& spec, const JobLimits& limits) {
  if (spec.chunk_bytes < limits::kChunkBytesMin || spec.chunk_bytes > limits::kChunkBytesMax ||
      spec.chunk_bytes % 64 != 0) {
    return invalid("chunk_bytes " + std::to_string(spec.chunk_bytes) +
                   " must be a multiple of 64 in [" + std::to_string(limits::kChunkBytesMin) +
                   ", " + std::to_string(limits::kChunkBytesMax) + "]");
  }
  uint64_t chunks = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    chunks += wire::chunk_count(tensor.bytes(), spec.chunk_bytes);
  }
  if (chunks > limits.chunks_max) {
    return Error{ErrorCode::kResourceExhausted,
                 "the job has " + std::to_string(chunks) + " chunks of " +
                     std::to_string(spec.chunk_bytes) + " bytes; this box takes " +
                     std::to_string(limits.chunks_max) +
                     " ([jobs] chunks_max). Raise chunk_bytes or the limit"};
  }
  return ok_status();
}

}  // namespace

Status check_job_name(const std::string& name) {
  if (name.empty() || name.size() > limits::kJobNameBytesMax) {
    // The name is not quoted: cut short, it might end inside a UTF-8 character.
    return invalid("the job name has " + std::to_string(name.size()) + " bytes; 1 to " +
                   std::to_string(limits::kJobNameBytesMax) + " are allowed");
  }
  const bool is_printable = std::all_of(name.begin(), name.end(), [](char character) {
    return character > ' ' && character < 0x7f && character != '"' && character != '\\';
  });
  if (is_printable) return ok_status();
  return invalid("the job name may contain only visible ASCII, without quotes and backslashes");
}

std::string JobSpec::title() const {
  const std::string job = "job " + in_quotes(name);
  return parts == 1 ? job : "part " + std::to_string(part) + " of " + job;
}

const char* mode_name(const JobSpec& spec) {
  if (spec.collective) return "collective";
  return spec.mode == pipeline::Mode::kOptimize ? "optimize" : "aggregate";
}

std::string JobSpec::unsound_value() const {
  if (guard.max_abs == 0) return "an infinity or a NaN";
  return "an infinity, a NaN or a value beyond guard_max_abs " + number(guard.max_abs);
}

bool JobSpec::applies_on_arrival() const {
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorSpec& tensor) {
    return wire::applies_on_arrival(tensor.sync.model);
  });
}

uint64_t JobSpec::element_count() const {
  uint64_t count = 0;
  for (const TensorSpec& tensor : tensors) count += tensor.elements;
  return count;
}

Result<JobSpec> parse_join(const proto::Join& join, const JobLimits& limits) {
  if (const Status status = check_identity(join, limits); !status) return status.error();
  JobSpec spec;
  spec.name = join.job();
  spec.part = join.part();
  spec.parts = std::max(1u, join.parts());
  spec.world_size = join.world_size();
  if (const Status status = check_collective(join); !status) return status.error();
  spec.mode = static_cast<pipeline::Mode>(join.mode());
  spec.collective = join.collective();
  spec.reduction = static_cast<pipeline::Reduction>(join.reduction());
  spec.on_worker_lost = static_cast<LostPolicy>(join.on_worker_lost());
  spec.recovery = static_cast<Recovery>(join.recovery());
  spec.priority_policy = static_cast<wire::PriorityPolicy>(join.priority_policy());
  spec.delivery = static_cast<wire::Delivery>(join.delivery());
  spec.numerics = static_cast<wire::Numerics>(join.numerics());
  spec.chunk_bytes = join.chunk_bytes() == 0 ? limits.chunk_bytes_default : join.chunk_bytes();
  if (spec.mode == pipeline::Mode::kOptimize) {
    const auto optimizer = parse_optimizer(join.optimizer());
    if (!optimizer) return optimizer.error();
    spec.optimizer = *optimizer;
  }
  if (join.tensors_size() == 0) return invalid("the tensor list is empty; register a tensor");
  if (static_cast<uint32_t>(join.tensors_size()) > limits::kTensorsPerJobMax) {
    return invalid("the tensor list has " + std::to_string(join.tensors_size()) +
                   " entries; at most " + std::to_string(limits::kTensorsPerJobMax) +
                   " are allowed");
  }
  std::unordered_set<std::string> names;
  for (const proto::Tensor& message : join.tensors()) {
    auto tensor = parse_tensor(message, static_cast<uint32_t>(spec.tensors.size()), spec.collective,
                               spec.optimizer.weight_decay);
    if (!tensor) return tensor.error();
    if (!names.insert(tensor->name).second) {
      return invalid("tensor name " + in_quotes(tensor->name) + " occurs twice in the list");
    }
    spec.tensors.push_back(std::move(*tensor));
  }
  if (const Status status = check_sizes(spec, limits); !status) return status.error();
  if (const Status status = parse_min_world_size(join, spec); !status) return status.error();
  if (const Status status = check_tables(spec); !status) return status.error();
  if (const Status status = parse_sync(join, spec); !status) return status.error();
  if (const Status status = parse_guard(join, spec); !status) return status.error();
  if (const Status status = parse_weighted(join, spec); !status) return status.error();
  if (const Status status = parse_verdicts(join, spec); !status) return status.error();
  if (const Status status = check_restore(join); !status) return status.error();
  spec.restore = join.restore();
  if (const Status status = check_copies(join); !status) return status.error();
  spec.replicas = join.replicas();
  spec.is_backup = join.is_backup();
  if (const Status status = check_compression(spec); !status) return status.error();
  PBOX_CHECK(spec.part < spec.parts && spec.world_size > 0 && !spec.tensors.empty());
  return spec;
}

std::vector<pipeline::ChunkSpec> cut_into_chunks(const JobSpec& spec) {
  PBOX_CHECK(spec.chunk_bytes > 0);
  std::vector<pipeline::ChunkSpec> chunks;
  for (const TensorSpec& tensor : spec.tensors) {
    const uint32_t element_bytes = wire::dtype_bytes(tensor.dtype);
    const uint32_t row_bytes = tensor.row_elements * element_bytes;
    const uint64_t first_byte = tensor.first_element * element_bytes;
    for (uint64_t offset = 0; offset < tensor.bytes(); offset += spec.chunk_bytes) {
      const uint64_t skipped = row_bytes > 0 ? (first_byte + offset) % row_bytes : 0;
      const auto bytes = std::min<uint64_t>(spec.chunk_bytes, tensor.bytes() - offset);
      PBOX_CHECK(bytes % element_bytes == 0);
      chunks.push_back({.chunk = static_cast<uint32_t>(chunks.size()),
                        .elements = static_cast<uint32_t>(bytes / element_bytes),
                        .dtype = tensor.wire_dtype(),
                        .priority = tensor.priority,
                        .lr_scale = tensor.lr_scale,
                        .weight_decay = tensor.weight_decay,
                        .row_bytes = row_bytes,
                        .row_skipped_bytes = static_cast<uint32_t>(skipped),
                        .sync = tensor.sync});
    }
  }
  return chunks;
}

}  // namespace pbox::control
