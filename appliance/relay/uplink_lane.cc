#include "appliance/relay/uplink_lane.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::relay {
namespace {

constexpr uint32_t kWaitMs = 200;
// Index of the tensor that a backup copy has beside those of its chunks.
constexpr uint32_t kFirstTensor = 0;
static_assert(control::kTensorsBesideChunks == 1);

uint32_t left_ms(uint64_t deadline_ns) {
  const uint64_t now_ns = monotonic_ns();
  const uint64_t left = now_ns >= deadline_ns ? 0 : (deadline_ns - now_ns) / kNanosPerMilli;
  return static_cast<uint32_t>(std::clamp<uint64_t>(left, 1, UINT32_MAX));
}

}  // namespace

UplinkLane::UplinkLane(const LanePlan& plan, uint32_t part, uint32_t parts,
                       std::vector<uint32_t> chunks, OnFailure on_failure)
    : plan_(plan),
      part_(part),
      parts_(parts),
      chunks_(std::move(chunks)),
      on_failure_(std::move(on_failure)),
      tensors_before_(plan.spec.is_backup ? control::kTensorsBesideChunks : 0),
      ring_of_(chunks_.size() + tensors_before_),
      tensor_of_(plan.spec.chunks.size(), UINT32_MAX) {
  PBOX_CHECK(part < parts && on_failure_ != nullptr);
  for (size_t index = 0; index < chunks_.size(); ++index) {
    PBOX_CHECK(chunks_[index] < tensor_of_.size());
    tensor_of_[chunks_[index]] = static_cast<uint32_t>(index) + tensors_before_;
  }
}

UplinkLane::~UplinkLane() {
  pbox_destroy(context_);
}

Status UplinkLane::create(uint32_t join_timeout_ms) {
  pbox_options options;
  pbox_options_init(&options);
  const config::Upstream& settings = plan_.settings;
  const control::RelaySpec& spec = plan_.spec;
  options.box = settings.box.c_str();
  options.job = spec.job.c_str();
  options.rank = settings.rank;
  options.world_size = settings.world_size;
  options.port = settings.port.c_str();
  options.keys = plan_.keys.c_str();
  options.mode = spec.mode == pipeline::Mode::kOptimize ? PBOX_MODE_OPTIMIZE : PBOX_MODE_AGGREGATE;
  options.reduction = static_cast<pbox_reduction>(spec.reduction);
  options.numerics = static_cast<pbox_numerics>(spec.numerics);
  options.guard = static_cast<pbox_guard>(spec.guard);
  options.backup = !spec.is_backup ? 0 : spec.has_clocks ? 2 : 1;
  if (spec.is_backup) {
    options.recovery = PBOX_RECOVERY_NONE;
    // No result is needed, only the announcement that the copy has arrived.
    options.delivery = PBOX_DELIVERY_PULL;
  }
  options.join_timeout_ms = join_timeout_ms;
  options.lost_timeout_ms = spec.lost_timeout_ms;
  const std::lock_guard lock(mutex_);
  pbox_destroy(std::exchange(context_, nullptr));
  if (left_) return Error{ErrorCode::kClosed, "the job has ended"};
  const pbox_uplink uplink{.part = part_, .parts = parts_, .workers = plan_.spec.workers};
  const pbox_status made = spec.is_backup ? pbox_create(&options, &context_)
                                          : pbox_create_uplink(&options, &uplink, &context_);
  if (made != PBOX_OK) return last_error(made);
  return ok_status();
}

Result<uint32_t> UplinkLane::ask_lanes(uint64_t deadline_ns) {
  if (const Status created = create(left_ms(deadline_ns)); !created) return created.error();
  uint32_t pipelines = 0;
  const pbox_status asked = pbox_box_pipelines(context_, &pipelines);
  if (asked != PBOX_OK) return last_error(asked);
  return pipelines;
}

Status UplinkLane::register_tensors() {
  const auto add = [this](const std::string& name, uint32_t elements, int32_t priority) {
    uint32_t id = 0;
    return pbox_register_tensor(context_, name.c_str(), elements, PBOX_F32, priority, &id);
  };
  pbox_status status = PBOX_OK;
  if (plan_.spec.is_backup) status = add("pbox.workers", 1, 0);
  for (const uint32_t id : chunks_) {
    if (status != PBOX_OK) break;
    const control::RelayedChunk& chunk = plan_.spec.chunks[id];
    status = add(chunk.name, chunk.elements, chunk.priority);
  }
  if (status != PBOX_OK) return last_error(status);
  return ok_status();
}

// Sets the optimizer that the upper box runs in mode optimize.
Status UplinkLane::set_optimizer() {
  const optimizer::OptimizerSpec& spec = plan_.spec.optimizer;
  pbox_optimizer_options options;
  pbox_optimizer_options_init(&options, static_cast<pbox_optimizer>(spec.kind));
  options.learning_rate = spec.learning_rate;
  options.momentum = spec.momentum;
  options.beta1 = spec.beta1;
  options.beta2 = spec.beta2;
  options.epsilon = spec.epsilon;
  options.weight_decay = spec.weight_decay;
  pbox_status status = pbox_set_optimizer(context_, &options);
  for (const uint32_t id : chunks_) {
    if (status != PBOX_OK) break;
    const control::RelayedChunk& chunk = plan_.spec.chunks[id];
    status =
        pbox_set_tensor_optimizer(context_, tensor_of_[id], chunk.lr_scale, chunk.weight_decay);
  }
  if (status != PBOX_OK) return last_error(status);
  return ok_status();
}

Status UplinkLane::join(uint64_t deadline_ns) {
  if (const Status created = create(left_ms(deadline_ns)); !created) return created;
  if (const Status registered = register_tensors(); !registered) return registered;
  if (plan_.spec.mode == pipeline::Mode::kOptimize) {
    if (const Status set = set_optimizer(); !set) return set;
  }
  pbox_status status = pbox_join(context_);
  if (status == PBOX_OK && !plan_.spec.is_backup) status = pbox_all_workers(context_, &workers_);
  if (status != PBOX_OK) return last_error(status);
  return plan_.spec.is_backup ? exchange_first(deadline_ns) : ok_status();
}

void UplinkLane::leave(const std::string& reason) {
  left_ = true;
  const std::lock_guard lock(mutex_);
  if (context_ != nullptr) pbox_leave_because(context_, reason.c_str());
}

Status UplinkLane::exchange_first(uint64_t deadline_ns) {
  workers_ = plan_.spec.workers;
  const pbox_status status =
      pbox_push_pull(context_, kFirstTensor, &first_, &first_, nullptr, nullptr);
  if (status != PBOX_OK) return last_error(status);
  return await(kFirstTensor, deadline_ns);
}

Status UplinkLane::await(uint32_t tensor, uint64_t deadline_ns) {
  pbox_status status = PBOX_TIMEOUT;
  while (status == PBOX_TIMEOUT && !left_ && monotonic_ns() < deadline_ns) {
    status = pbox_wait(context_, tensor, std::min(kWaitMs, left_ms(deadline_ns)));
  }
  if (status != PBOX_OK) return last_error(status);
  return ok_status();
}

Status UplinkLane::send_seeds(std::vector<std::vector<float>>& values) {
  for (uint32_t chunk = 0; chunk < values.size(); ++chunk) {
    if (values[chunk].empty()) continue;
    float* const from = values[chunk].data();
    const pbox_status status =
        pbox_push_pull(context_, tensor_of_[chunk], from, from, nullptr, nullptr);
    if (status != PBOX_OK) return last_error(status);
  }
  for (uint32_t chunk = 0; chunk < values.size(); ++chunk) {
    if (values[chunk].empty()) continue;
    if (const Status there = await(tensor_of_[chunk], UINT64_MAX); !there) return there;
  }
  return ok_status();
}

Status UplinkLane::run(std::vector<control::RelayLane> rings, int wake_fd) {
  PBOX_CHECK(rings_.empty() && rings.size() <= UINT16_MAX);
  rings_ = std::move(rings);
  for (const control::RelayLane& ring : rings_) {
    PBOX_CHECK(ring.uplink != nullptr);
    ring.uplink->open(wake_fd);
    // Kernel sockets do not need this. A device that refuses the memory sends copies.
    if (!ring.memory.empty()) {
      static_cast<void>(pbox_register_memory(context_, ring.memory.data(), ring.memory.size()));
    }
  }
  const pbox_source source{
      .user = this,
      .fd = wake_fd,
      .next =
          [](void* self, uint32_t* tensor, const void** input, void** output) {
            return static_cast<UplinkLane*>(self)->next(*tensor, *input, *output) ? 1 : 0;
          },
      .may_sleep = [](void* self) { return static_cast<UplinkLane*>(self)->may_sleep() ? 1 : 0; },
      .done = [](void* self, uint32_t tensor) { static_cast<UplinkLane*>(self)->done(tensor); },
      .failed =
          [](void* self, pbox_status status) {
            const auto& lane = *static_cast<UplinkLane*>(self);
            lane.on_failure_(lane.last_error(status));
          }};
  const pbox_status runs = pbox_run_source(context_, &source);
  if (runs != PBOX_OK) return last_error(runs);
  return ok_status();
}

bool UplinkLane::next(uint32_t& tensor, const void*& input, void*& output) {
  pipeline::Uplink::Sum sum;
  for (size_t ring = 0; ring < rings_.size(); ++ring) {
    if (!rings_[ring].uplink->next(sum)) continue;
    PBOX_CHECK(sum.chunk < tensor_of_.size() && tensor_of_[sum.chunk] < ring_of_.size());
    tensor = tensor_of_[sum.chunk];
    ring_of_[tensor] = static_cast<uint16_t>(ring);
    input = sum.values;
    output = sum.result;
    started_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

bool UplinkLane::may_sleep() {
  return std::all_of(rings_.begin(), rings_.end(),
                     [](const control::RelayLane& ring) { return ring.uplink->may_sleep(); });
}

void UplinkLane::done(uint32_t tensor) {
  PBOX_CHECK(tensor >= tensors_before_ && tensor < ring_of_.size());
  const control::RelayLane& ring = rings_[ring_of_[tensor]];
  relayed_.fetch_add(1, std::memory_order_relaxed);
  ring.uplink->give_back(chunks_[tensor - tensors_before_]);
  ring.wake();
}

Status UplinkLane::set_priorities(const std::vector<int32_t>& by_chunk) {
  std::vector<int32_t> by_tensor(tensors_before_, 0);
  for (const uint32_t chunk : chunks_) by_tensor.push_back(by_chunk[chunk]);
  const pbox_status status =
      pbox_set_priorities(context_, PBOX_PRIORITY_EXPLICIT, by_tensor.data());
  if (status != PBOX_OK) return last_error(status);
  return ok_status();
}

Status UplinkLane::set_learning_rate(float learning_rate) {
  // While the box is lost the call times out. It is repeated until the box is found again.
  pbox_status status = PBOX_TIMEOUT;
  while (status == PBOX_TIMEOUT && !left_) {
    status = pbox_set_learning_rate(context_, learning_rate);
  }
  if (status != PBOX_OK) return last_error(status);
  return ok_status();
}

Error UplinkLane::last_error(pbox_status status) const {
  return {static_cast<ErrorCode>(status), pbox_last_error(context_)};
}

}  // namespace pbox::relay
