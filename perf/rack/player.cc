#include "perf/rack/player.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>

#include "base/clock.h"
#include "perf/peers/work.h"

namespace pbox::perf {
namespace {

constexpr uint32_t kSeed = 7;
// Elements in 8 KiB, a full packet's payload. The first kStampElements of each period change in
// every iteration and are checked in every iteration. The others keep their values of iteration 0.
constexpr size_t kStampPeriod = 2048;
constexpr size_t kStampElements = 16;
constexpr double kForwardShare = 1.0 / 3;  // backward computes two gradients per product
constexpr double kNanosecondsPerMillisecond = 1e6;
constexpr uint32_t kChunkTimesMax = 1 << 18;  // recorded chunk times of a traced run
constexpr size_t kChunkTimesTaken = 4096;     // taken in one call

void sleep_until(uint64_t until_ns) {
  const timespec until = timespec_of(until_ns);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

pbox_priority_policy policy_of(const std::string& name) {
  if (name == "explicit") return PBOX_PRIORITY_EXPLICIT;
  if (name == "forward-order") return PBOX_PRIORITY_FORWARD_ORDER;
  if (name == "fifo") return PBOX_PRIORITY_FIFO;
  throw std::runtime_error("policy '" + name + "': use explicit, forward-order or fifo");
}

pbox_delivery delivery_of(const std::string& name) {
  if (name == "broadcast") return PBOX_DELIVERY_BROADCAST;
  if (name == "pull") return PBOX_DELIVERY_PULL;
  throw std::runtime_error("delivery '" + name + "': use broadcast or pull");
}

// Calls visit(elements, first index, whether they change with each iteration) for each part.
template <typename Element, typename Visit>
void for_each_part(std::span<Element> elements, uint32_t first_index, const Visit& visit) {
  for (size_t begin = 0; begin < elements.size(); begin += kStampPeriod) {
    const auto period = elements.subspan(begin, std::min(kStampPeriod, elements.size() - begin));
    const size_t stamped = std::min(kStampElements, period.size());
    const auto index = first_index + static_cast<uint32_t>(begin);
    visit(period.first(stamped), index, true);
    visit(period.subspan(stamped), index + static_cast<uint32_t>(stamped), false);
  }
}

}  // namespace

Player::Player(const PlayerOptions& options)
    : options_(options), spec_(played_optimizer(options.optimizer)) {
  const auto layers = layers_by_name(options.model);
  if (!layers) throw std::runtime_error(layers.error().message);
  std::vector<uint64_t> elements;
  layers_ = played_layers(*layers, options.scale, elements);
  uint64_t total = 0;
  for (const uint64_t count : elements) total += count;
  gradients_.resize(total);
  sums_.resize(total);
  tensor_count_ = static_cast<uint32_t>(elements.size());
  tensors_ = std::make_unique<Tensor[]>(tensor_count_);
  uint64_t next = 0;
  for (uint32_t id = 0; id < tensor_count_; ++id) {
    Tensor& tensor = tensors_[id];
    tensor.gradient = {gradients_.data() + next, elements[id]};
    tensor.sum = {sums_.data() + next, elements[id]};
    tensor.first_index = static_cast<uint32_t>(next);
    fill_gradient(tensor.gradient, kSeed, 0, options.rank, tensor.first_index);
    next += elements[id];
  }
  join(options, elements);
  if (optimizes()) init_weights();
}

Player::~Player() {
  pbox_destroy(context_);
}

void Player::require(pbox_status status) const {
  if (status != PBOX_OK) throw std::runtime_error(pbox_last_error(context_));
}

void Player::join(const PlayerOptions& options, const std::vector<uint64_t>& elements) {
  pbox_options own;
  pbox_options_init(&own);
  own.box = options.box.c_str();
  own.job = options.job.c_str();
  own.rank = options.rank;
  own.world_size = options.worker_count;
  own.chunk_bytes = options.chunk_bytes;
  own.window_bytes = options.window_bytes;
  own.recovery = options.recovers ? PBOX_RECOVERY_COPY : PBOX_RECOVERY_NONE;
  own.priority_policy = policy_of(options.policy);
  own.delivery = delivery_of(options.delivery);
  own.mode = optimizes() ? PBOX_MODE_OPTIMIZE : PBOX_MODE_AGGREGATE;
  require(pbox_create(&own, &context_));
  if (optimizes()) set_optimizer();
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    for (uint32_t index = 0; index < layers_[layer].tensor_count; ++index) {
      const uint32_t tensor = layers_[layer].first_tensor + index;
      uint32_t id = 0;  // equal to tensor
      // The layer that the next forward needs first has the highest priority.
      const int32_t priority = -static_cast<int32_t>(layer);
      require(pbox_register_tensor(context_,
                                   (layers_[layer].name + "/" + std::to_string(index)).c_str(),
                                   elements[tensor], PBOX_F32, priority, &id));
    }
  }
  require(pbox_join(context_));
}

void Player::set_optimizer() {
  using optimizer::OptimizerKind;
  pbox_optimizer_options own;
  pbox_optimizer_options_init(&own, spec_.kind == OptimizerKind::kSgd    ? PBOX_SGD
                                    : spec_.kind == OptimizerKind::kAdam ? PBOX_ADAM
                                                                         : PBOX_NESTEROV);
  own.learning_rate = spec_.learning_rate;
  own.momentum = spec_.kind == OptimizerKind::kNesterov ? spec_.momentum : 0;
  require(pbox_set_optimizer(context_, &own));
}

void Player::init_weights() {
  std::fill(sums_.begin(), sums_.end(), WeightOracle::kFirstWeight);
  still_oracle_.emplace(spec_, kPatternBaseMax);
  for (uint32_t id = 0; id < tensor_count_; ++id) {
    size_t changing = 0;
    for_each_part(tensors_[id].gradient, 0, [&](std::span<float> part, uint32_t, bool changes) {
      if (changes) changing += part.size();
    });
    tensors_[id].oracle.emplace(spec_, changing);
    require(pbox_init_weights(context_, id, tensors_[id].sum.data(), nullptr, nullptr));
  }
  require(pbox_wait_all(context_, 0));
}

pbox_statistics Player::statistics() const {
  pbox_statistics statistics{};
  statistics.struct_size = sizeof(statistics);
  require(pbox_get_statistics(context_, &statistics));
  return statistics;
}

PlayedRun Player::play(uint32_t iterations, double compute_ms, bool with_spans) {
  with_spans_ = with_spans;
  wrong_ = 0;
  spans_.clear();
  PlayedRun run;
  if (with_spans) require(pbox_trace_chunks(context_, kChunkTimesMax));
  require(pbox_barrier(context_, 0));
  clock_ns_ = monotonic_ns();
  uint64_t started_ns = 0;
  for (uint32_t index = 0; index <= iterations; ++index) {
    for (uint32_t tensor = 0; tensor < layers_.front().tensor_count; ++tensor) finish(tensor);
    if (index > 1) {
      run.iteration_ms.push_back(static_cast<double>(clock_ns_ - started_ns) /
                                 kNanosecondsPerMillisecond);
    }
    started_ns = clock_ns_;
    if (index == iterations) break;
    forward(compute_ms * kForwardShare);
    backward(compute_ms * (1 - kForwardShare));
  }
  for (uint32_t tensor = 0; tensor < tensor_count_; ++tensor) finish(tensor);
  for (uint32_t tensor = 0; tensor < tensor_count_; ++tensor) {
    wrong_ += count_wrong(tensors_[tensor], true);
  }
  run.wrong = wrong_;
  if (with_spans) add_chunk_spans();
  run.spans = std::move(spans_);
  return run;
}

void Player::forward(double forward_ms) {
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    const PlayedLayer& own = layers_[layer];
    const uint64_t ready_ns = clock_ns_;
    for (uint32_t index = 0; index < own.tensor_count; ++index) finish(own.first_tensor + index);
    if (with_spans_ && clock_ns_ > ready_ns) {
      spans_.push_back({SpanKind::kWait, layer, ready_ns, clock_ns_});
    }
    compute(SpanKind::kForward, layer, forward_ms * own.share);
  }
}

void Player::backward(double backward_ms) {
  ++iteration_;
  if (still_oracle_) {
    std::array<float, kPatternBaseMax> gradients;
    for (uint32_t base = 1; base <= kPatternBaseMax; ++base) {
      gradients[base - 1] = static_cast<float>(base * pattern_weight_sum(options_.worker_count));
    }
    still_oracle_->step(gradients);
  }
  for (auto layer = static_cast<uint32_t>(layers_.size()); layer-- > 0;) {
    const PlayedLayer& own = layers_[layer];
    compute(SpanKind::kBackward, layer, backward_ms * own.share);
    for (uint32_t index = own.tensor_count; index-- > 0;) push(own.first_tensor + index);
  }
}

void Player::compute(SpanKind kind, uint32_t layer, double ms) {
  const uint64_t from_ns = clock_ns_;
  clock_ns_ += static_cast<uint64_t>(ms * kNanosecondsPerMillisecond);
  sleep_until(clock_ns_);
  if (with_spans_) spans_.push_back({kind, layer, from_ns, clock_ns_});
}

// Adds the phases of every chunk. A chunk's wait begins when its tensor is pushed.
void Player::add_chunk_spans() {
  std::vector<std::vector<uint64_t>> starts_ns(tensor_count_);  // ascending
  for (const Span& span : spans_) {
    if (span.kind == SpanKind::kExchange) starts_ns[span.index].push_back(span.from_ns);
  }
  std::vector<pbox_chunk_times> times(kChunkTimesTaken);
  for (uint32_t count = kChunkTimesTaken; count == kChunkTimesTaken;) {
    require(pbox_take_chunk_times(context_, times.data(), &count));
    for (const pbox_chunk_times& one : std::span(times).first(count)) {
      const auto& starts = starts_ns.at(one.tensor);
      const auto after = std::upper_bound(starts.begin(), starts.end(), one.pushed_ns);
      const uint64_t queued_ns = after == starts.begin() ? one.pushed_ns : *(after - 1);
      spans_.push_back({SpanKind::kQueue, one.tensor, queued_ns, one.pushed_ns, one.chunk});
      spans_.push_back({SpanKind::kPush, one.tensor, one.pushed_ns, one.sent_ns, one.chunk});
      spans_.push_back({SpanKind::kAggregate, one.tensor, one.sent_ns, one.answered_ns, one.chunk});
      spans_.push_back(
          {SpanKind::kResult, one.tensor, one.answered_ns, one.completed_ns, one.chunk});
    }
  }
  require(pbox_trace_chunks(context_, 0));
}

void Player::push(uint32_t tensor_id) {
  Tensor& tensor = tensors_[tensor_id];
  stamp(tensor);
  tensor.under_way = true;
  tensor.done_ns.store(0);
  tensor.started_ns = monotonic_ns();
  const pbox_callback note_time = [](void* user, uint32_t, pbox_status) {
    static_cast<Tensor*>(user)->done_ns.store(monotonic_ns());
  };
  require(pbox_push_pull(context_, tensor_id, tensor.gradient.data(), tensor.sum.data(), note_time,
                         &tensor));
}

// Waits for the tensor's result. Advances the clock to the time of its arrival, if that is later.
void Player::finish(uint32_t tensor_id) {
  Tensor& tensor = tensors_[tensor_id];
  if (!tensor.under_way) return;
  require(pbox_wait(context_, tensor_id, 0));
  tensor.under_way = false;
  uint64_t done_ns = tensor.done_ns.load();
  // The callback may run only after pbox_wait has returned; done_ns is still 0 then.
  if (done_ns < tensor.started_ns) done_ns = monotonic_ns();
  clock_ns_ = std::max(clock_ns_, done_ns);
  if (with_spans_) {
    spans_.push_back({SpanKind::kExchange, tensor_id, tensor.started_ns, done_ns});
  }
  step(tensor);
  wrong_ += count_wrong(tensor, false);
}

void Player::stamp(Tensor& tensor) {
  for_each_part(tensor.gradient, tensor.first_index,
                [this](std::span<float> part, uint32_t first_index, bool changes) {
                  if (changes) fill_gradient(part, kSeed, iteration_, options_.rank, first_index);
                });
}

// Steps the oracle of a tensor, if it has one, by the gradients of this iteration.
void Player::step(Tensor& tensor) {
  if (!tensor.oracle) return;
  std::vector<float> gradients;
  const auto weight = pattern_weight_sum(options_.worker_count);
  for_each_part(tensor.gradient, tensor.first_index,
                [&](std::span<float> part, uint32_t first_index, bool changes) {
                  for (uint32_t i = 0; changes && i < part.size(); ++i) {
                    const auto base = pattern_base(kSeed, iteration_, first_index + i);
                    gradients.push_back(static_cast<float>(base * weight));
                  }
                });
  tensor.oracle->step(gradients);
}

uint64_t Player::count_wrong_weights(const Tensor& tensor, bool all) const {
  uint64_t wrong = 0;
  size_t next = 0;  // in tensor.oracle
  for_each_part(std::span<const float>(tensor.sum), tensor.first_index,
                [&](std::span<const float> part, uint32_t first_index, bool changes) {
                  for (uint32_t i = 0; (changes || all) && i < part.size(); ++i) {
                    const float expected =
                        changes
                            ? tensor.oracle->weights()[next++]
                            : still_oracle_->weights()[pattern_base(kSeed, 0, first_index + i) - 1];
                    wrong += part[i] != expected;
                  }
                });
  return wrong;
}

uint64_t Player::count_wrong(const Tensor& tensor, bool all) const {
  if (tensor.oracle) return count_wrong_weights(tensor, all);
  uint64_t wrong = 0;
  for_each_part(std::span<const float>(tensor.sum), tensor.first_index,
                [&](std::span<const float> part, uint32_t first_index, bool changes) {
                  if (!changes && !all) return;
                  wrong += count_wrong_sums(part, kSeed, changes ? iteration_ : 0,
                                            options_.worker_count, first_index);
                });
  return wrong;
}

}  // namespace pbox::perf
