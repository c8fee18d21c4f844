#include "appliance/relay/box_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "appliance/control/job_relay.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_set.h"

namespace pbox::relay {
namespace {

constexpr int kAskAgainMs = 500;
constexpr uint32_t kWaitMs = 200;
// The tensor to which each rack contributes its number of workers. Means divide by its sum.
constexpr uint32_t kWorkersTensor = 0;
static_assert(control::kTensorsBesideChunks == 1);

uint32_t left_ms(uint64_t deadline_ns) {
  const uint64_t now_ns = monotonic_ns();
  const uint64_t left = now_ns >= deadline_ns ? 0 : (deadline_ns - now_ns) / kNanosPerMilli;
  return static_cast<uint32_t>(std::clamp<uint64_t>(left, 1, UINT32_MAX));
}

}  // namespace

BoxRelay::BoxRelay(boost::asio::io_context& context, const config::Upstream& settings,
                   std::string keys, control::RelaySpec spec, std::function<void(Status)> report)
    : control_context_(context),
      settings_(settings),
      keys_(std::move(keys)),
      spec_(std::move(spec)),
      report_(std::move(report)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      lane_of_(spec_.chunks.size()) {
  PBOX_CHECK(wake_fd_ >= 0 && report_ != nullptr);
  thread_ = std::thread([this] {
    name_current_thread("relay");
    work();
  });
}

BoxRelay::~BoxRelay() {
  stop_ = true;
  wake();
  {
    const std::lock_guard lock(context_mutex_);
    if (context_ != nullptr) pbox_leave(context_);
  }
  thread_.join();
  pbox_destroy(context_);
  // Closed later: until the owner of this relay has taken the lanes away, the pipelines may still
  // write to the event fd.
  boost::asio::post(control_context_, [fd = wake_fd_] { close(fd); });
}

void BoxRelay::seed(std::vector<std::vector<float>> values) {
  PBOX_CHECK(!is_running_ && values.size() <= spec_.chunks.size());
  seeds_ = std::move(values);
  has_seeds_ = true;
  wake();
}

void BoxRelay::run(std::vector<control::RelayLane> lanes) {
  PBOX_CHECK(is_joined_ && !is_running_);
  for (const control::RelayLane& lane : lanes) PBOX_CHECK(lane.uplink != nullptr);
  lanes_ = std::move(lanes);
  is_running_ = true;
  wake();
}

// The other box is told, so that results come back in this order too, and so are its other ranks.
void BoxRelay::set_priorities(std::vector<int32_t> by_chunk) {
  PBOX_CHECK(is_joined_ && by_chunk.size() == spec_.chunks.size());
  by_chunk.insert(by_chunk.begin(), control::kTensorsBesideChunks, 0);
  const pbox_status status = pbox_set_priorities(context_, PBOX_PRIORITY_EXPLICIT, by_chunk.data());
  if (status != PBOX_OK) fail(last_error(status));
}

control::RelayView BoxRelay::view() const {
  const uint64_t relayed = relayed_;
  return {.box = settings_.box,
          .rank = settings_.rank,
          .racks = settings_.world_size,
          .is_joined = is_joined_,
          .workers = workers_,
          .chunks_relayed = relayed,
          .chunks_in_flight = static_cast<uint32_t>(started_ - relayed)};
}

void BoxRelay::work() {
  if (const Status joined = join(); !joined) return fail(joined.error());
  workers_ = static_cast<uint32_t>(all_workers_);
  is_joined_ = true;
  report_(ok_status());
  while (!is_running_ && !stop_) {
    sleep(-1);
    if (!has_seeds_.exchange(false)) continue;
    if (const Status sent = send_seeds(); !sent) return fail(sent.error());
    report_(ok_status());
  }
  if (is_running_) relay_sums();
}

// Retries a box that is not available yet until the job's join timeout is over. A backup box is
// tried once, because there may be others.
Status BoxRelay::join() {
  const uint64_t deadline_ns = monotonic_ns() + spec_.join_timeout_ns;
  for (;;) {
    const Status joined = try_join(deadline_ns);
    const bool may_pass =
        !joined && joined.error().code == ErrorCode::kUnavailable && !spec_.is_backup;
    if (!may_pass || stop_ || monotonic_ns() >= deadline_ns) return joined;
    sleep(kAskAgainMs);
  }
}

Status BoxRelay::try_join(uint64_t deadline_ns) {
  pbox_options options;
  pbox_options_init(&options);
  options.box = settings_.box.c_str();
  options.job = spec_.job.c_str();
  options.rank = settings_.rank;
  options.world_size = settings_.world_size;
  options.port = settings_.port.c_str();
  options.keys = keys_.c_str();
  options.numerics = static_cast<pbox_numerics>(spec_.numerics);
  options.guard = static_cast<pbox_guard>(spec_.guard);
  options.backup = spec_.is_backup ? 1 : 0;
  if (spec_.is_backup) {
    options.recovery = PBOX_RECOVERY_NONE;
    // No result is needed, only the announcement that the copy has arrived.
    options.delivery = PBOX_DELIVERY_PULL;
  }
  options.join_timeout_ms = left_ms(deadline_ns);
  {
    const std::lock_guard lock(context_mutex_);
    pbox_destroy(std::exchange(context_, nullptr));
    const pbox_status made = pbox_create(&options, &context_);
    if (made != PBOX_OK) return last_error(made);
  }
  if (const Status registered = register_tensors(); !registered) return registered;
  if (stop_) return Error{ErrorCode::kClosed, "the job has ended"};
  return join_and_count(deadline_ns);
}

Status BoxRelay::register_tensors() {
  const auto add = [this](const std::string& name, uint32_t elements, int32_t priority) {
    uint32_t id = 0;
    return pbox_register_tensor(context_, name.c_str(), elements, PBOX_F32, priority, &id);
  };
  pbox_status status = add("pbox.workers", 1, 0);
  for (const control::RelayedChunk& chunk : spec_.chunks) {
    if (status != PBOX_OK) break;
    status = add(chunk.name, chunk.elements, chunk.priority);
  }
  if (status != PBOX_OK) return last_error(status);
  return ok_status();
}

Status BoxRelay::join_and_count(uint64_t deadline_ns) {
  if (const pbox_status joined = pbox_join(context_); joined != PBOX_OK) return last_error(joined);
  return count_workers(deadline_ns);
}

Status BoxRelay::count_workers(uint64_t deadline_ns) {
  own_workers_ = all_workers_ = static_cast<float>(spec_.workers);
  pbox_status status =
      pbox_push_pull(context_, kWorkersTensor, &own_workers_, &all_workers_, nullptr, nullptr);
  if (status != PBOX_OK) return last_error(status);
  if (const Status counted = await(kWorkersTensor, deadline_ns); !counted) return counted;
  return control::check_worker_count(all_workers_, spec_.workers);
}

Status BoxRelay::await(uint32_t tensor, uint64_t deadline_ns) {
  pbox_status status = PBOX_TIMEOUT;
  while (status == PBOX_TIMEOUT && !stop_ && monotonic_ns() < deadline_ns) {
    status = pbox_wait(context_, tensor, std::min(kWaitMs, left_ms(deadline_ns)));
  }
  if (status != PBOX_OK) return last_error(status);
  return ok_status();
}

// Sends the initial values and waits until the other box has them, however long the network takes.
// The loss of the box ends the wait.
Status BoxRelay::send_seeds() {
  for (uint32_t chunk = 0; chunk < seeds_.size(); ++chunk) {
    float* values = seeds_[chunk].data();
    if (seeds_[chunk].empty()) continue;
    const pbox_status status = pbox_push_pull(context_, chunk + control::kTensorsBesideChunks,
                                              values, values, nullptr, nullptr);
    if (status != PBOX_OK) return last_error(status);
  }
  for (uint32_t chunk = 0; chunk < seeds_.size(); ++chunk) {
    if (seeds_[chunk].empty()) continue;
    const Status there = await(chunk + control::kTensorsBesideChunks, UINT64_MAX);
    if (!there) return there;
  }
  seeds_.clear();
  return ok_status();
}

void BoxRelay::relay_sums() {
  for (const control::RelayLane& lane : lanes_) lane.uplink->open(workers_, wake_fd_);
  while (!stop_ && !failed_) {
    if (!start_all() && may_sleep()) sleep(-1);
  }
}

// Starts every sum that is ready. Returns whether there was any.
bool BoxRelay::start_all() {
  bool any = false;
  pipeline::Uplink::Sum sum;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    while (!failed_ && lanes_[lane].uplink->next(sum)) {
      start(lane, sum);
      any = true;
    }
  }
  return any;
}

void BoxRelay::start(size_t lane, const pipeline::Uplink::Sum& sum) {
  PBOX_CHECK(sum.chunk < lane_of_.size());
  lane_of_[sum.chunk] = static_cast<uint16_t>(lane);
  ++started_;
  const pbox_status status = pbox_push_pull(context_, sum.chunk + control::kTensorsBesideChunks,
                                            sum.values, sum.values, on_result, this);
  if (status != PBOX_OK) fail(last_error(status));
}

bool BoxRelay::may_sleep() {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const control::RelayLane& lane) { return lane.uplink->may_sleep(); });
}

void BoxRelay::sleep(int timeout_ms) {
  pollfd wait{wake_fd_, POLLIN, 0};
  if (poll(&wait, 1, timeout_ms) <= 0) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = read(wake_fd_, &count, sizeof(count));
}

void BoxRelay::on_result(void* self, uint32_t tensor, pbox_status status) {
  auto& relay = *static_cast<BoxRelay*>(self);
  if (status != PBOX_OK) return relay.fail(relay.last_error(status));
  PBOX_CHECK(tensor >= control::kTensorsBesideChunks);
  const uint32_t chunk = tensor - control::kTensorsBesideChunks;
  PBOX_CHECK(chunk < relay.lane_of_.size() && relay.lane_of_[chunk] < relay.lanes_.size());
  const control::RelayLane& lane = relay.lanes_[relay.lane_of_[chunk]];
  ++relay.relayed_;
  lane.uplink->give_back(chunk);
  lane.wake();
}

void BoxRelay::fail(const Error& error) {
  if (stop_ || failed_.exchange(true)) return;
  report_(error);
  wake();
}

void BoxRelay::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

Error BoxRelay::last_error(pbox_status status) const {
  return {static_cast<ErrorCode>(status), pbox_last_error(context_)};
}

}  // namespace pbox::relay
