#include "worker/transport/lane_opener.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/thread.h"
#include "worker/process/fork_guard.h"
#include "worker/process/io_thread.h"
#include "worker/transport/transport_library.h"

namespace pbox::worker {
namespace {

// Limit for opening a port that has a replacement.
constexpr uint64_t kOpenFirstNs = 10 * kNanosPerSecond;

}  // namespace

bool PortChoice::give_up(const Error& why) {
  PBOX_CHECK(current < ports.size());
  if (is_last()) return false;
  const std::string& former = ports[current++];
  if (former == kAutoPort && why.code == ErrorCode::kNotFound) return true;
  ++given_up;
  proto::PortGivenUp& report = reports.emplace_back();
  report.set_port(former);
  report.set_reason(why.message);
  report.set_next(ports[current]);
  return true;
}

Result<std::unique_ptr<Transport>> PortChoice::open_next() {
  PBOX_CHECK(current < ports.size());
  for (;;) {
    auto transport = open_transport(ports[current]);
    if (transport || !give_up(transport.error())) return transport;
  }
}

LaneOpener::LaneOpener(Order order) : order_(std::move(order)), memory_(order_.memory) {
  PBOX_CHECK(order_.transport != nullptr);
  outcome_.choice = std::move(order_.choice);
  outcome_.transport = std::move(order_.transport);
  if (auto event = create_own_event()) ready_ = std::move(*event);
  auto thread = start_thread("open lanes", [this] { run(); });
  if (thread) {
    thread_ = std::move(*thread);
    return;
  }
  outcome_.facts = thread.error();
  is_ready_ = true;
  wake();
}

LaneOpener::~LaneOpener() {
  cancel();
  {
    const std::lock_guard lock(mutex_);
    is_taken_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (ready_.ok()) forget_in_child(ready_.get());
}

std::optional<proto::QueuePairs> LaneOpener::take_request() {
  clear_event(ready_.get());
  const std::lock_guard lock(mutex_);
  if (requests_.empty()) return std::nullopt;
  proto::QueuePairs request = std::move(requests_.front());
  requests_.pop_front();
  return request;
}

void LaneOpener::give_answer(const proto::QueuePairs& answer) {
  const std::lock_guard lock(mutex_);
  answers_.push_back(answer);
}

void LaneOpener::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
}

bool LaneOpener::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

std::optional<LaneOpener::Outcome> LaneOpener::take() {
  {
    const std::lock_guard lock(mutex_);
    PBOX_CHECK(!is_taken_);
    if (!is_ready_ || has_memory_to_change()) return std::nullopt;
    is_taken_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  outcome_.answers = std::move(answers_);
  return std::move(outcome_);
}

void LaneOpener::add_memory(const std::byte* memory, size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    memory_[memory] = bytes;
  }
  changed_.notify_all();
}

bool LaneOpener::remove_memory(const std::byte* memory) {
  const std::lock_guard lock(mutex_);
  memory_.erase(memory);
  changed_.notify_all();
  return !registered_.contains(memory);
}

void LaneOpener::wake() const {
  set_event(ready_.get());
}

void LaneOpener::run() {
  become_library_thread("pbox-open");
  Result<TransportFacts> opened = open();
  std::unique_lock lock(mutex_);
  if (opened) registrar_ = outcome_.transport->memory_registrar();
  outcome_.facts = std::move(opened);
  while (!is_taken_) {
    is_ready_ = !has_memory_to_change();
    if (is_ready_) {
      wake();
      changed_.wait(lock);
    } else {
      change_memory(lock);
    }
  }
}

Result<TransportFacts> LaneOpener::open() {
  PortChoice& choice = outcome_.choice;
  for (;;) {
    const uint64_t alone_by_ns = choice.is_last() ? UINT64_MAX : monotonic_ns() + kOpenFirstNs;
    const Status opened = outcome_.transport->open(
        order_.session,
        {std::min(order_.deadline_ns, alone_by_ns), [this] { return keep_alive(); }, order_.heap});
    if (opened) return facts();
    if (is_cancelled() || !choice.give_up(opened.error())) return opened.error();
    outcome_.closed.add(outcome_.transport->payload_counts());
    outcome_.transport.reset();
    auto next = choice.open_next();
    if (!next) return next.error();
    outcome_.transport = std::move(*next);
  }
}

// Passes the transport's requests on to the box, and the box's answers to the transport.
Status LaneOpener::keep_alive() {
  std::vector<proto::QueuePairs> answers;
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return Error{ErrorCode::kClosed, "the lanes are no longer needed"};
    answers.swap(answers_);
  }
  for (const proto::QueuePairs& answer : answers) outcome_.transport->on_answer(answer);
  proto::QueuePairs request;
  if (!outcome_.transport->take_request(request)) return ok_status();
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
  }
  wake();
  return ok_status();
}

TransportFacts LaneOpener::facts() const {
  PBOX_CHECK(outcome_.transport != nullptr);
  TransportFacts facts;
  facts.rto_floor_ns = outcome_.transport->rto_floor_ns();
  facts.unread_memory = outcome_.transport->unread_memory();
  for (uint32_t lane = 0; lane < order_.session.pipelines.size(); ++lane) {
    facts.receivable_bytes.push_back(outcome_.transport->receivable_bytes(lane));
  }
  return facts;
}

// The mutex must be held.
bool LaneOpener::has_memory_to_change() const {
  if (registrar_ == nullptr || is_cancelled_) return false;
  return memory_.size() != registered_.size() ||
         !std::equal(
             memory_.begin(), memory_.end(), registered_.begin(),
             [](const auto& wanted, const std::byte* held) { return wanted.first == held; });
}

// Registers a region that is wanted, or gives up one that is not wanted any more. No device reads
// it, because nothing has been sent yet. If a device refuses a region, its payloads are copied and
// counted, so a refusal is no reason to stop.
void LaneOpener::change_memory(std::unique_lock<std::mutex>& lock) {
  PBOX_CHECK(lock.owns_lock() && registrar_ != nullptr);
  const auto gone = std::find_if(registered_.begin(), registered_.end(),
                                 [&](const std::byte* held) { return !memory_.contains(held); });
  if (gone != registered_.end()) {
    const std::byte* memory = *gone;
    lock.unlock();
    std::unique_ptr<DeviceMemory> released;
    PBOX_CHECK(outcome_.transport->remove_memory(memory, true, released));
    released.reset();
    lock.lock();
    registered_.erase(memory);
    return;
  }
  const auto wanted = std::find_if(memory_.begin(), memory_.end(), [&](const auto& region) {
    return !registered_.contains(region.first);
  });
  PBOX_CHECK(wanted != memory_.end());
  const auto [memory, bytes] = *wanted;
  registered_.insert(memory);
  lock.unlock();
  outcome_.transport->add_memory(memory, bytes, registrar_->add(memory, bytes));
  lock.lock();
}

}  // namespace pbox::worker
