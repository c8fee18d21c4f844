#include "worker/client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "base/check.h"
#include "base/clock.h"
#include "worker/process/fork_guard.h"

namespace pbox::worker {
namespace {

// How long a wait that has timed out may take to find out which rank is late.
constexpr uint32_t kLaggardMs = 1000;
// More than any box has, and so little that the bytes of all tensors fit into 64 bits.
constexpr uint64_t kTensorBytesMax = uint64_t{1} << 46;

// "rank 2 is late, and 1 more; the box has waited 3.0 s for it; it was the last one in 71 % of ..."
std::string describe(const Laggard& laggard, uint64_t now_ns) {
  std::string text = "rank " + std::to_string(laggard.rank) + " is late";
  if (laggard.missing_workers > 1) {
    text += ", and so are " + std::to_string(laggard.missing_workers - 1) + " more";
  }
  if (laggard.waited_ms > 0) {
    const uint64_t asked_ago_ns = now_ns - std::min(now_ns, laggard.asked_ns);
    text += "; the box has waited " +
            in_seconds(laggard.waited_ms * kNanosPerMilli + asked_ago_ns) + " for it";
  }
  if (laggard.last_percent > 0) {
    text += "; it was the last one in " + std::to_string(laggard.last_percent) +
            " % of the chunk rounds before";
  }
  return text;
}

std::string incomplete(const TensorSpec& tensor) {
  return "tensor '" + tensor.name + "' is not complete";
}

// Returns "; the job goes on without ranks 2, 5", or nothing.
std::string absent_ranks_text(const std::vector<uint32_t>& ranks) {
  if (ranks.empty()) return {};
  std::string text =
      ranks.size() == 1 ? "; the job goes on without rank " : "; the job goes on without ranks ";
  for (size_t index = 0; index < ranks.size(); ++index) {
    text += (index == 0 ? "" : ", ") + std::to_string(ranks[index]);
  }
  return text;
}

// Returns "box X was lost 3.2 s ago (why); reconnecting", or nothing.
std::string lost_box_text(const std::optional<PartSet::Loss>& loss) {
  if (!loss) return {};
  return "box " + loss->box + " was lost " + in_seconds(monotonic_ns() - loss->since_ns) +
         " ago (" + loss->reason + "); reconnecting";
}

ClientOptions with_incarnation(ClientOptions options) {
  std::random_device random;
  // `| 1`, because 0 is no worker's incarnation
  options.incarnation = uint64_t{random()} << 32 | random() | 1;
  return options;
}

}  // namespace

Client::Client(ClientOptions options)
    : options_(with_incarnation(std::move(options))), sync_(options_.sync), owner_pid_(getpid()) {}

bool Client::forked() const {
  return getpid() != owner_pid_;
}

Client::~Client() {
  static_cast<void>(leave());
  if (wake_.ok()) forget_in_child(wake_.get());
}

// Returns an error unless the client is in the wanted phase. mutex_ must be held.
Status Client::check_phase(Phase wanted) const {
  if (failure_) return *failure_;
  if (phase_ == wanted) return ok_status();
  switch (phase_) {
    case Phase::kNew: return invalid("not joined yet; call pbox_join first");
    case Phase::kJoined: return invalid("already joined; make this call before pbox_join");
    case Phase::kLeft: return Error{ErrorCode::kClosed, "this worker has left the job"};
  }
  return Error{ErrorCode::kInternal, "unknown phase"};
}

Result<uint32_t> Client::register_tensor(TensorSpec tensor) {
  const std::lock_guard lock(mutex_);
  if (const Status status = check_phase(Phase::kNew); !status) return status.error();
  if (options_.collective) {
    return invalid("mode collective has no tensors; call pbox_collective after pbox_join");
  }
  if (tensor.name.empty() || tensor.name.size() > limits::kTensorNameBytesMax) {
    return invalid("a tensor's name must have 1 to " + std::to_string(limits::kTensorNameBytesMax) +
                   " bytes, not " + std::to_string(tensor.name.size()));
  }
  if (tensor.elements == 0) {
    return invalid("tensor '" + tensor.name + "' has no elements; leave it out");
  }
  const uint64_t elements_max = kTensorBytesMax / wire::dtype_bytes(tensor.dtype);
  if (tensor.elements > elements_max) {
    return invalid("tensor '" + tensor.name + "' has " + std::to_string(tensor.elements) +
                   " elements; give at most " + std::to_string(elements_max));
  }
  const uint64_t elements_min =
      options_.chooses_compression ? ChosenTensors::kElementsMin : wire::kCompressedElementsMin;
  if (tensor.dtype == wire::Dtype::kF32 && tensor.elements >= elements_min) {
    tensor.compression = options_.compression;
    tensor.chooses = options_.chooses_compression;
  }
  if (tensor.chooses) {
    if (const Status sound = ChosenTensors::check(tensor); !sound) return sound.error();
  }
  tensors_.push_back(std::move(tensor));
  return static_cast<uint32_t>(tensors_.size() - 1);
}

Status Client::set_optimizer(const proto::Optimizer& optimizer) {
  const std::lock_guard lock(mutex_);
  if (const Status status = check_phase(Phase::kNew); !status) return status.error();
  if (!options_.optimize) return invalid("an optimizer needs mode optimize (PBOX_MODE_OPTIMIZE)");
  if (!std::isfinite(optimizer.max_grad_norm()) || optimizer.max_grad_norm() < 0) {
    return invalid("max_grad_norm " + std::to_string(optimizer.max_grad_norm()) +
                   " must be finite and >= 0; 0 does not clip");
  }
  optimizer_ = optimizer;
  return ok_status();
}

Status Client::change_tensor(uint32_t tensor, const std::function<Status(TensorSpec&)>& change) {
  const std::lock_guard lock(mutex_);
  if (const Status status = check_phase(Phase::kNew); !status) return status.error();
  if (options_.collective) return invalid("mode collective has no tensors");
  if (tensor >= tensors_.size()) return invalid("tensor " + std::to_string(tensor) + " is unknown");
  return change(tensors_[tensor]);
}

// Returns an error unless the operation can be started now. mutex_ must be held.
Status Client::check_operation(const Operation& operation) const {
  if (options_.collective) {
    return invalid("mode collective has no tensors; call pbox_collective");
  }
  if (operation.tensor >= tensor_states_.size()) {
    return invalid("tensor " + std::to_string(operation.tensor) + " is unknown; " +
                   std::to_string(tensor_states_.size()) + " are registered");
  }
  const std::string& name = tensors_[operation.tensor].name;
  const bool has_input = operation.input != nullptr || operation.rows != nullptr;
  if (!has_input || operation.output == nullptr) {
    return invalid("tensor '" + name + "': input and output must not be NULL");
  }
  if (operation.weight_code != 0 && !options_.weighted) {
    return invalid("tensor '" + name +
                   "': the push has a weight, but the job is not weighted; set options.weighted");
  }
  const TensorState& state = tensor_states_[operation.tensor];
  if (state.pending) {
    return Error{ErrorCode::kAlreadyExists,
                 "tensor '" + name + "' " +
                     (state.batch != nullptr ? "has an operation in flight; wait for it first"
                                             : "is in operations twice; name it once")};
  }
  if (operation.initial_weights == (options_.optimize && !state.initialised)) return ok_status();
  return invalid(operation.initial_weights
                     ? "tensor '" + name + "' needs no initial weights: " +
                           (options_.optimize ? "the box has its weights already"
                                              : "in mode aggregate the box keeps no weights")
                     : "tensor '" + name + "' has no weights yet; call pbox_init_weights first");
}

Status Client::start_many(std::span<const Operation> operations, const Completion& completion,
                          bool input_follows) {
  PBOX_CHECK(!operations.empty());
  {
    const std::lock_guard lock(mutex_);
    if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
    Status sound = ok_status();
    size_t marked = 0;
    for (; marked < operations.size() && sound; ++marked) {
      sound = check_operation(operations[marked]);
      // Marked now, so that check_operation() finds a tensor that is in the list twice.
      if (sound) tensor_states_[operations[marked].tensor].pending = true;
    }
    PBOX_CHECK(marked > 0);
    if (!sound) {
      for (const Operation& each : operations.first(marked - 1)) {
        tensor_states_[each.tensor].pending = false;
      }
      return sound;
    }
    const auto batch = std::make_shared<Batch>(
        Batch{.left = operations.size(), .tensor = operations[0].tensor, .completion = completion});
    const bool is_woken = !submitted_.empty();
    for (const Operation& operation : operations) {
      TensorState& state = tensor_states_[operation.tensor];
      state.status = ErrorCode::kOk;
      state.operation = operation;
      state.batch = batch;
      state.awaits_input = input_follows;
      if (!input_follows) submitted_.push_back(operation.tensor);
    }
    if (is_woken || input_follows) return ok_status();  // already woken, or nothing to send yet
  }
  wake();
  return ok_status();
}

Status Client::wait_until(std::unique_lock<std::mutex>& lock, uint32_t timeout_ms,
                          const std::function<bool()>& done) {
  const auto limit =
      std::chrono::milliseconds(timeout_ms == 0 ? options_.wait_timeout_ms : timeout_ms);
  if (changed_.wait_for(lock, limit, [&] { return done() || failure_.has_value(); })) {
    return ok_status();
  }
  return Error{ErrorCode::kTimeout, "timed out after " + std::to_string(limit.count()) + " ms"};
}

// Runs a function on the I/O thread, with the lock held, and returns after it has run. Returns an
// error, and never runs the function, if that thread does not get to it within wait_timeout_ms, or
// limit_ms if that is less.
Status Client::call_on_io(std::unique_lock<std::mutex>& lock, const std::function<void()>& function,
                          uint32_t limit_ms) {
  PBOX_CHECK(lock.owns_lock());
  // A callback is on that thread already.
  if (io_done_ || thread_.get_id() == std::this_thread::get_id()) {
    function();
    return ok_status();
  }
  bool done = false;
  const std::function<void()> call = [&] {
    function();
    done = true;
  };
  calls_.push_back(&call);
  lock.unlock();
  wake();
  lock.lock();
  const auto limit = std::chrono::milliseconds(std::min(limit_ms, options_.wait_timeout_ms));
  if (changed_.wait_for(lock, limit, [&] { return done; })) return ok_status();
  std::erase(calls_, &call);
  return Error{ErrorCode::kTimeout, "the I/O thread did not answer within " +
                                        std::to_string(limit.count()) +
                                        " ms; a callback of the application may not have returned"};
}

Error Client::timeout_error(std::unique_lock<std::mutex>& lock, uint32_t tensor,
                            uint32_t timeout_ms, const std::string& what) {
  std::string text = what + " after " +
                     std::to_string(timeout_ms == 0 ? options_.wait_timeout_ms : timeout_ms) +
                     " ms: ";
  if (tensor < tensor_states_.size() && tensor_states_[tensor].awaits_input) {
    return {ErrorCode::kTimeout, text +
                                     "the device has not copied its gradient to host memory "
                                     "yet; the work that computes it has not ended"};
  }
  if (loss_) return {ErrorCode::kTimeout, text + lost_box_text(loss_)};
  PBOX_CHECK(tensor < tensors_.size() && parts_.has_value());
  PartSet::Late laggard;
  const Status asked = call_on_io(
      lock, [&] { laggard = job_tensors_->laggard(tensor, monotonic_ns()); }, kLaggardMs);
  if (!asked) return {ErrorCode::kTimeout, text + asked.error().message};
  switch (laggard.kind) {
    case Laggard::Kind::kRank: text += describe(laggard, monotonic_ns()); break;
    case Laggard::Kind::kBox:
      text += "box " + laggard.box + " is late; its last packet came " +
              std::to_string(laggard.silent_ns / kNanosPerMilli) + " ms ago";
      if (needs_verdicts(options_, optimizer_)) {
        text +=
            "; with max_grad_norm, skip_nonfinite or guard reject the box sends the results of a "
            "round only once every rank has pushed every tensor";
      }
      break;
    case Laggard::Kind::kNobody:
      text += "it waits behind other tensors for room in the send window";
      break;
  }
  return {ErrorCode::kTimeout, text + absent_ranks_text(absent_ranks_)};
}

Status Client::wait(uint32_t tensor, uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  if (tensor >= tensor_states_.size()) {
    return check_phase(Phase::kJoined) ? invalid("tensor " + std::to_string(tensor) + " is unknown")
                                       : check_phase(Phase::kJoined);
  }
  TensorState& state = tensor_states_[tensor];
  if (!wait_until(lock, timeout_ms, [&] { return !state.pending; })) {
    return timeout_error(lock, tensor, timeout_ms, incomplete(tensors_[tensor]));
  }
  if (state.status == ErrorCode::kOk) return ok_status();
  return Error{state.status, failure_ ? failure_->message : to_string(state.status)};
}

Status Client::wait_all(uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  uint32_t waiting = 0;
  const auto done = [&] {
    for (; waiting < tensor_states_.size(); ++waiting) {
      if (tensor_states_[waiting].pending) return false;
    }
    return true;
  };
  while (collectives_ && collectives_->has_pending()) {
    const uint64_t oldest = collectives_->oldest_pending();
    lock.unlock();
    if (const Status status = wait_collective(oldest, timeout_ms); !status) return status;
    lock.lock();
  }
  if (!wait_until(lock, timeout_ms, done)) {
    return timeout_error(lock, waiting, timeout_ms, incomplete(tensors_[waiting]));
  }
  if (failure_) return *failure_;
  return ok_status();
}

Status Client::set_priorities(wire::PriorityPolicy policy, const int32_t* by_tensor) {
  const std::lock_guard lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
  if (by_tensor != nullptr && policy != wire::PriorityPolicy::kExplicit) {
    return invalid(
        "only PBOX_PRIORITY_EXPLICIT uses by_tensor; set that policy, or by_tensor to NULL");
  }
  if (by_tensor != nullptr && options_.collective) {
    return invalid("mode collective has no tensors; give each operation its priority");
  }
  std::vector<int32_t> priorities;
  if (by_tensor != nullptr) priorities.assign(by_tensor, by_tensor + tensors_.size());
  requests_.push_back([this, policy, priorities = std::move(priorities)] {
    job_tensors_->ask_priorities(policy, priorities);
  });
  wake();
  return ok_status();
}

Status Client::set_learning_rate(float learning_rate) {
  std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
  if (!options_.optimize) return invalid("the box runs an optimizer only in mode optimize");
  if (!std::isfinite(learning_rate) || learning_rate < 0) {
    return invalid("learning_rate " + std::to_string(learning_rate) + " must be finite and >= 0");
  }
  for (const TensorState& state : tensor_states_) {
    if (state.pending) {
      return invalid(
          "the learning rate can change only between rounds; wait for the operations first");
    }
  }
  const uint64_t sequence = ++learning_rates_asked_;
  requests_.push_back([this, learning_rate] { parts_->ask_learning_rate(learning_rate); });
  wake();
  const Status status = wait_until(
      lock, 0, [&] { return learning_rates_set_ >= sequence || phase_ != Phase::kJoined; });
  if (failure_) return *failure_;
  if (status && learning_rates_set_ < sequence) return check_phase(Phase::kJoined);
  if (!status)
    return Error{ErrorCode::kTimeout, "box " + options_.box +
                                          " did not confirm the learning rate: " +
                                          (loss_ ? lost_box_text(loss_) : status.error().message)};
  return ok_status();
}

Status Client::set_loss_scale(float loss_scale, uint64_t age) {
  const std::lock_guard lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
  if (!needs_verdicts(options_, optimizer_)) {
    return invalid(
        "a loss scale needs an optimizer with max_grad_norm or skip_nonfinite, or guard reject: "
        "set one of them before the join");
  }
  if (!std::isfinite(loss_scale) || loss_scale <= 0) {
    return invalid("loss_scale " + std::to_string(loss_scale) + " must be finite and > 0");
  }
  // The I/O thread runs this before the verdict on any operation that is started later.
  requests_.push_back([this, loss_scale, age] { parts_->set_loss_scale(loss_scale, age); });
  return ok_status();
}

Result<std::optional<proto::StepVerdict>> Client::last_step() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kNew) return invalid("not joined yet; call pbox_join first");
  if (!needs_verdicts(options_, optimizer_)) {
    return invalid("rounds have no verdict without max_grad_norm, skip_nonfinite or guard reject");
  }
  return verdict_;
}

Status Client::barrier(uint32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status.error();
  const uint64_t sequence = ++barriers_asked_;
  requests_.push_back([this] { parts_->ask_barrier(); });
  wake();
  const auto released = [&] { return barriers_released_ >= sequence; };
  const Status status = wait_until(lock, timeout_ms, released);
  if (released()) return ok_status();
  if (failure_) return *failure_;
  return Error{ErrorCode::kTimeout, "barrier " + std::to_string(sequence) +
                                        ": not every rank has reached it; " +
                                        (loss_ ? lost_box_text(loss_) : status.error().message) +
                                        absent_ranks_text(absent_ranks_)};
}

Result<uint32_t> Client::round(uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kNew) return invalid("not joined yet; call pbox_join first");
  if (tensor >= tensor_states_.size())
    return invalid("tensor " + std::to_string(tensor) + " is unknown");
  return tensor_states_[tensor].round;
}

Result<uint32_t> Client::contributors(uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kNew) return invalid("not joined yet; call pbox_join first");
  if (tensor >= tensor_states_.size())
    return invalid("tensor " + std::to_string(tensor) + " is unknown");
  return tensor_states_[tensor].contributors;
}

Result<Client::Report> Client::report() {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kNew) return invalid("not joined yet; call pbox_join first");
  Report report;
  const Status asked = call_on_io(lock, [&] {
    report.exchange = parts_->statistics();
    report.recoveries = parts_->recoveries();
    report.optimizer_restarts = parts_->optimizer_restarts();
    report.restored = parts_->restored();
    report.optimizer_state = parts_->optimizer_state();
    for (const auto& driver : drivers_) {
      report.ports_given_up += driver->ports_given_up();
      report.payloads.add(driver->payload_counts());
    }
    report.fragment_bytes = parts_->session().fragment_bytes();
    report.pipeline_count = parts_->pipeline_count();
    report.compressions.resize(tensors_.size());
    for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
      Report::Compression& compression = report.compressions[tensor];
      compression.now = tensors_[tensor].compression;
      const CompressionChoice* const choice = job_tensors_->choice(tensor);
      if (choice == nullptr) continue;
      if (choice->newest() == Form::kPlain) compression.now = wire::Compression::kNone;
      compression.seconds_plain = choice->mean_seconds(Form::kPlain);
      compression.seconds_compressed = choice->mean_seconds(Form::kCompressed);
      ++report.chosen_tensors;
      if (choice->newest() == Form::kCompressed) ++report.chosen_compressed;
      report.compression_changes += choice->changes();
    }
  });
  if (!asked) return asked.error();
  report.operations_completed = completed_;
  report.operations_failed = failed_;
  return report;
}

Status Client::trace_chunks(uint32_t capacity) {
  std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status;
  return call_on_io(lock, [&] { parts_->trace_chunks(capacity); });
}

Result<size_t> Client::take_chunk_times(std::span<ChunkTimes> times) {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kNew) return invalid("not joined yet; call pbox_join first");
  size_t count = 0;
  const Status asked = call_on_io(lock, [&] { count = job_tensors_->take_chunk_times(times); });
  if (!asked) return asked.error();
  return count;
}

std::string Client::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

void Client::set_last_error(const std::string& message) {
  const std::lock_guard lock(mutex_);
  last_error_ = message;
}

}  // namespace pbox::worker
