#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/event.h"
#include "worker/client.h"
#include "worker/process/io_thread.h"

namespace pbox::worker {
namespace {

// Longest time until the control side is served again: while packets keep the thread busy, and
// while it wakes for packets alone.
constexpr uint64_t kControlIntervalNs = 50'000'000;
constexpr uint64_t kControlDelayNs = 5'000'000;
constexpr uint64_t kLeaveLimitNs = 1'000'000'000;
// For transports that must be polled. A round trip on such a network fits well into kSpinNs. A nap
// of kNapNs still leaves the core to other threads most of the time.
constexpr uint64_t kSpinNs = 50'000;
constexpr uint64_t kNapNs = 50'000;
constexpr uint64_t kNapMaxNs = 1'000'000;

bool is_same(const std::optional<proto::StepVerdict>& one, const proto::StepVerdict& other) {
  return one && one->round() == other.round() && one->epoch() == other.epoch() &&
         one->loss_scale() == other.loss_scale();
}

using Drivers = std::vector<std::unique_ptr<PartDriver>>;

void notice_lost_addresses(std::optional<AddressWatch>& watch, const Drivers& drivers,
                           uint64_t now_ns) {
  if (!watch) return;
  const std::vector<nic::Endpoint> lost = watch->take_lost();
  if (lost.empty()) return;
  for (const auto& driver : drivers) driver->on_addresses_lost(lost, now_ns);
}

bool must_poll(const Drivers& drivers) {
  return std::any_of(drivers.begin(), drivers.end(),
                     [](const auto& driver) { return driver->must_poll(); });
}

bool awaits_results(PartSet& parts) {
  for (size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].exchange()->awaits_results()) return true;
  }
  return false;
}

}  // namespace

void Client::run_io() {
  become_library_thread("pbox-io");
  prctl(PR_SET_TIMERSLACK, 1);  // otherwise pauses last twice as long as requested
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    take_requests();
    const bool busy = exchange_packets(now_ns);
    if (auto completed = job_tensors_->take_completed(now_ns); !completed.empty()) {
      complete(completed);
    }
    const bool idle = !busy && !may_spin(now_ns);
    if (now_ns >= control_due_ns_) serve_control(now_ns);
    bool stops = false;
    {
      const std::lock_guard lock(mutex_);
      stops = stop_;
    }
    if (stops) return finish_io();
    if (idle) sleep(now_ns);
  }
}

Status Client::run_source(OperationSource& source) {
  std::unique_lock lock(mutex_);
  if (const Status status = check_phase(Phase::kJoined); !status) return status;
  for (const TensorState& state : tensor_states_) {
    if (!state.pending) continue;
    return Error{ErrorCode::kAlreadyExists,
                 "an operation is in flight; wait for it before pbox_run_source"};
  }
  bool is_over = false;
  const Status asked = call_on_io(lock, [&] {
    PBOX_CHECK(source_ == nullptr);
    is_over = failure_.has_value();
    if (!is_over) source_ = &source;
  });
  if (asked && is_over) return *failure_;
  return asked;
}

Status Client::leave(const std::string& reason) {
  leaving_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kJoined) return ok_status();
    if (thread_.get_id() == std::this_thread::get_id()) {
      return Error{ErrorCode::kInvalidArgument,
                   "a callback cannot leave the job, because the thread that runs it has to end "
                   "first; call pbox_leave from another thread"};
    }
    phase_ = Phase::kLeft;
    leave_reason_ = reason;
    stop_ = true;
  }
  wake();
  thread_.join();
  return ok_status();
}

// Sends LEAVE, waits a bounded time for the boxes to read it, and completes the operations in
// flight. A backup's job does not wait, because two boxes that keep replicas of each other's parts
// would wait for each other, and because LEAVE does not decide what happens to a replica.
void Client::finish_io() {
  const uint64_t limit_ns = monotonic_ns() + (options_.is_backup ? 0 : kLeaveLimitNs);
  serve_control(monotonic_ns());
  parts_->leave(leave_reason_);
  for (const auto& driver : drivers_) driver->perform_actions();
  for (;;) {
    std::vector<pollfd> waits;
    for (const auto& driver : drivers_) driver->end_control(waits);
    if (waits.empty() || monotonic_ns() >= limit_ns) break;
    poll(waits.data(), waits.size(), 10);
  }
  for (const auto& driver : drivers_) driver->end_opening();
  publish();
  const std::lock_guard lock(mutex_);
  for (const auto* call : calls_) (*call)();
  calls_.clear();
  io_done_ = true;
  changed_.notify_all();
}

bool Client::exchange_packets(uint64_t now_ns) {
  size_t received = 0;
  turns_.begin();
  for (size_t part = 0; part < drivers_.size(); ++part) {
    received += drivers_[part]->receive(now_ns);
    drivers_[part]->add_lanes(part, now_ns, turns_);
  }
  if (received > 0) waits_.received(received, now_ns);
  bool busy = received > 0;
  turns_.run([&](const SendTurns::Lane& lane) {
    std::optional<int32_t> next;
    busy = drivers_[lane.part]->send(lane.lane, now_ns, next) || busy;
    return next;
  });
  for (const auto& driver : drivers_) busy = driver->run_timers(now_ns) || busy;
  if (busy) busy_ns_ = now_ns;
  return busy;
}

void Client::take_requests() {
  std::vector<uint32_t> submitted;
  std::vector<Operation> operations;
  Operation next;
  while (source_ != nullptr && source_->next(next)) {
    next.initial_weights = options_.optimize && parts_->round(next.tensor) == 0;
    parts_->start(next);
  }
  {
    const std::lock_guard lock(mutex_);
    if (collectives_) collectives_->take_ready(operations);
    if (submitted_.empty() && calls_.empty() && operations.empty()) return;
    submitted.swap(submitted_);
    for (const uint32_t tensor : submitted) operations.push_back(tensor_states_[tensor].operation);
    for (const auto* call : calls_) (*call)();
    if (!calls_.empty()) changed_.notify_all();
    calls_.clear();
  }
  PBOX_CHECK(parts_.has_value() && operations.size() >= submitted.size());
  for (const Operation& operation : operations) job_tensors_->start(operation, monotonic_ns());
}

void Client::complete(const std::vector<uint32_t>& tensors) {
  if (source_ != nullptr) {
    for (const uint32_t tensor : tensors) source_->done(tensor);
    const std::lock_guard lock(mutex_);
    completed_ += tensors.size();
    return;
  }
  std::vector<Batch> finished;
  std::vector<Collectives::Ended> ended;
  std::vector<Collectives::SliceEnded> slices;
  {
    const std::lock_guard lock(mutex_);
    for (const uint32_t tensor : tensors) {
      if (collectives_) {
        if (const auto one = collectives_->complete(tensor, &slices)) ended.push_back(*one);
        continue;
      }
      PBOX_CHECK(tensor < tensor_states_.size());
      TensorState& state = tensor_states_[tensor];
      if (!state.pending) continue;
      state.round = job_tensors_->round(tensor);
      state.contributors = job_tensors_->contributors(tensor);
      if (state.operation.initial_weights) state.initialised = true;
      ++completed_;
      end_operation(tensor, ErrorCode::kOk, finished);
    }
    completed_ += ended.size();
    if (!collectives_ || !ended.empty()) changed_.notify_all();
  }
  run_callbacks(finished);
  Collectives::run_callbacks(slices);
  Collectives::run_callbacks(ended);
}

// Ends an operation, and adds its batch to `finished` if it was the last one. mutex_ must be held.
void Client::end_operation(uint32_t tensor, ErrorCode status, std::vector<Batch>& finished) {
  TensorState& state = tensor_states_[tensor];
  PBOX_CHECK(state.pending && state.batch != nullptr && state.batch->left > 0);
  state.pending = false;
  state.awaits_input = false;
  state.status = status;
  const auto batch = std::exchange(state.batch, nullptr);
  if (batch->status == ErrorCode::kOk && status != ErrorCode::kOk) {
    batch->status = status;
    batch->tensor = tensor;
  }
  if (--batch->left == 0) finished.push_back(*batch);
}

void Client::run_callbacks(const std::vector<Batch>& finished) {
  for (const Batch& one : finished) {
    const auto [callback, user] = one.completion;
    if (callback != nullptr) callback(user, one.tensor, static_cast<pbox_status>(one.status));
  }
}

// Shows callers the state of the parts. Once the job is over for this worker, completes everything
// in flight with the reason, which every later call returns too.
void Client::publish() {
  const auto& failure = parts_->failure();
  auto loss = parts_->loss();
  auto absent_ranks = parts_->absent_ranks();
  // These reads need no lock, because only this thread writes the fields.
  if (barriers_released_ == parts_->barriers_released() &&
      learning_rates_set_ == parts_->learning_rates_set() &&
      syncs_answered_ == parts_->syncs_answered() && loss_.has_value() == loss.has_value() &&
      absent_ranks_ == absent_ranks && failure_.has_value() == failure.has_value()) {
    return;
  }
  std::vector<Batch> finished;
  std::vector<Collectives::Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    barriers_released_ = parts_->barriers_released();
    learning_rates_set_ = parts_->learning_rates_set();
    syncs_answered_ = parts_->syncs_answered();
    loss_ = std::move(loss);
    absent_ranks_ = std::move(absent_ranks);
    if (failure && !failure_) {
      failure_ = failure;
      last_error_ = failure_->message;
      for (uint32_t tensor = 0; tensor < tensor_states_.size(); ++tensor) {
        if (!tensor_states_[tensor].pending) continue;
        ++failed_;
        end_operation(tensor, failure_->code, finished);
      }
      submitted_.clear();
      if (collectives_) ended = collectives_->fail(failure_->code);
      failed_ += ended.size();
    }
    changed_.notify_all();
  }
  run_callbacks(finished);
  Collectives::run_callbacks(ended);
  if (failure && source_ != nullptr) std::exchange(source_, nullptr)->failed(failure->code);
}

// Sends the boxes of all parts the verdict that one part's box has made. Callers see it before any
// result of the round completes, because no box publishes a result until this rank has confirmed.
void Client::pass_verdict_on() {
  const auto& verdict = parts_->verdict();
  if (!verdict || is_same(verdict_, *verdict)) return;
  for (const auto& driver : drivers_) driver->perform_actions();
  const std::lock_guard lock(mutex_);
  verdict_ = verdict;
}

void Client::serve_control(uint64_t now_ns) {
  notice_lost_addresses(address_watch_, drivers_, now_ns);
  control_due_ns_ = now_ns + kControlIntervalNs;
  std::vector<std::function<void()>> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const auto& request : requests) request();
  for (const auto& driver : drivers_) driver->pump(now_ns);
  pass_verdict_on();
  // A failure of one part ends the others. Their transports are closed before callers learn that
  // they may use their buffers again.
  if (parts_->failure()) {
    for (const auto& driver : drivers_) driver->perform_actions();
  }
  publish();
}

// Returns whether to look for packets without a pause, because packets have just moved and only
// polling finds the answer.
bool Client::may_spin(uint64_t now_ns) {
  return must_poll(drivers_) && now_ns - busy_ns_ < kSpinNs && awaits_results(*parts_);
}

// Returns how long this thread may sleep without missing an event. A packet on a lane without a
// descriptor is found after the sleep.
uint64_t Client::sleep_limit_ns(uint64_t now_ns) {
  uint64_t until_ns = control_due_ns_;
  for (const auto& driver : drivers_) until_ns = std::min(until_ns, driver->next_deadline_ns());
  const uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
  if (!must_poll(drivers_)) return wait_ns;
  const bool may_grow = now_ns - busy_ns_ > kSpinNs && !awaits_results(*parts_);
  nap_ns_ = may_grow ? std::clamp(2 * nap_ns_, kNapNs, kNapMaxNs) : kNapNs;
  return std::min(wait_ns, nap_ns_);
}

void Client::sleep(uint64_t now_ns) {
  {
    const std::lock_guard lock(mutex_);
    if (!requests_.empty()) control_due_ns_ = now_ns;
    if (!submitted_.empty() || !calls_.empty() || !requests_.empty()) return;
    if (collectives_ && collectives_->has_ready()) return;
  }
  if (source_ != nullptr && !source_->may_sleep()) return;
  const int own[] = {wake_.get(), source_ != nullptr ? source_->fd() : -1,
                     address_watch_ ? address_watch_->fd() : -1};
  const bool has_control = waits_.wait(own, drivers_, sleep_limit_ns(now_ns), must_poll(drivers_));
  const uint64_t end_ns = monotonic_ns();
  control_due_ns_ = has_control ? end_ns : std::min(control_due_ns_, end_ns + kControlDelayNs);
  for (const size_t event : {0, 1}) {
    if (waits_.is_ready(event)) clear_event(own[event]);
  }
}

void Client::wake() {
  set_event(wake_.get());
}

}  // namespace pbox::worker
