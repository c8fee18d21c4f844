#include "appliance/relay/box_relay.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "appliance/control/job_relay.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_set.h"
#include "base/event.h"
#include "base/thread.h"

namespace pbox::relay {
namespace {

constexpr int kAskAgainMs = 500;
constexpr char kThreadName[] = "relay";

// Returns the chunks of each lane, ascending.
std::vector<std::vector<uint32_t>> chunks_by_lane(const std::vector<uint8_t>& lane_of,
                                                  uint32_t lanes) {
  std::vector<std::vector<uint32_t>> chunks(lanes);
  for (uint32_t chunk = 0; chunk < lane_of.size(); ++chunk) {
    PBOX_CHECK(lane_of[chunk] < lanes);
    chunks[lane_of[chunk]].push_back(chunk);
  }
  return chunks;
}

}  // namespace

BoxRelay::BoxRelay(boost::asio::io_context& context, const config::Upstream& settings,
                   std::string keys, control::RelaySpec spec, std::function<void(Status)> report,
                   std::function<void(std::function<void()>)> post)
    : control_context_(context),
      plan_{settings, std::move(keys), std::move(spec)},
      report_(std::move(report)),
      post_(std::move(post)) {
  PBOX_CHECK(report_ != nullptr);
  auto wake = create_event();
  if (!wake) {
    fail(wake.error());
    return;
  }
  wake_ = std::move(*wake);
  auto thread = start_thread("forward sums", [this] {
    name_current_thread(kThreadName);
    work();
  });
  if (!thread) {
    fail(thread.error());
    return;
  }
  thread_ = std::move(*thread);
}

BoxRelay::~BoxRelay() {
  stop_ = true;
  wake();
  leave_lanes();
  if (thread_.joinable()) thread_.join();
  lanes_.clear();
  // The eventfds are closed later: until the owner of this relay has taken the rings away, the
  // pipelines may still write to them.
  lane_wakes_.push_back(std::move(wake_));
  boost::asio::post(control_context_, [events = std::move(lane_wakes_)] {});
}

void BoxRelay::seed(std::vector<std::vector<float>> values) {
  PBOX_CHECK(!is_running_ && values.size() <= plan_.spec.chunks.size());
  seeds_ = std::move(values);
  has_seeds_ = true;
  wake();
}

void BoxRelay::run(std::vector<control::RelayLane> rings) {
  PBOX_CHECK(is_joined_ && !is_running_);
  rings_ = std::move(rings);
  is_running_ = true;
  wake();
}

// Tells the other box, which sends results back in this order and tells its other ranks.
void BoxRelay::set_priorities(std::vector<int32_t> by_chunk) {
  PBOX_CHECK(is_joined_ && by_chunk.size() == plan_.spec.chunks.size());
  for (const auto& lane : lanes_) {
    if (const Status set = lane->set_priorities(by_chunk); !set) fail(set.error());
  }
}

void BoxRelay::set_learning_rate(float learning_rate, const std::function<void()>& confirmed) {
  PBOX_CHECK(is_running_ && plan_.spec.mode == pipeline::Mode::kOptimize);
  {
    const std::lock_guard lock(rates_mutex_);
    rates_.push_back({learning_rate, confirmed});
  }
  wake();
}

control::RelayView BoxRelay::view() const {
  control::RelayView view{.box = plan_.settings.box,
                          .rank = plan_.settings.rank,
                          .racks = plan_.settings.world_size,
                          .is_joined = is_joined_};
  if (!view.is_joined) return view;
  view.workers = lanes_.front()->workers();
  for (const auto& lane : lanes_) {
    const uint64_t relayed = lane->relayed();
    view.chunks_relayed += relayed;
    view.chunks_in_flight += static_cast<uint32_t>(lane->started() - relayed);
  }
  return view;
}

uint32_t BoxRelay::lane_count() const {
  PBOX_CHECK(is_joined_);
  return static_cast<uint32_t>(lanes_.size());
}

uint8_t BoxRelay::lane_of(uint32_t chunk) const {
  PBOX_CHECK(is_joined_ && chunk < lane_of_.size());
  return lane_of_[chunk];
}

void BoxRelay::set_reason(const std::string& reason) {
  const std::lock_guard lock(lanes_mutex_);
  reason_ = reason;
}

void BoxRelay::work() {
  if (const Status joined = join(); !joined) return fail(joined.error());
  is_joined_ = true;
  report_(ok_status());
  while (!is_running_ && !stop_) {
    sleep(-1);
    if (!has_seeds_.exchange(false)) continue;
    PBOX_CHECK(lanes_.size() == 1);  // only backups are seeded
    if (const Status sent = lanes_.front()->send_seeds(seeds_); !sent) return fail(sent.error());
    seeds_.clear();
    report_(ok_status());
  }
  if (stop_) return;
  Status runs = run_lanes();
  // From now on this thread only forwards learning rates.
  while (runs && !stop_ && plan_.spec.mode == pipeline::Mode::kOptimize) {
    sleep(-1);
    runs = set_learning_rates();
  }
  if (!runs) fail(runs.error());
}

Status BoxRelay::set_learning_rates() {
  std::vector<LearningRate> rates;
  {
    const std::lock_guard lock(rates_mutex_);
    rates.swap(rates_);
  }
  for (LearningRate& rate : rates) {
    for (const auto& lane : lanes_) {
      if (const Status set = lane->set_learning_rate(rate.value); !set) return set;
    }
    post_(std::move(rate.confirmed));
  }
  return ok_status();
}

// Retries a box that is not available yet, or is lost while the racks gather, until the job's join
// timeout is over. A backup box is tried once, because there may be others.
Status BoxRelay::join() {
  const uint64_t deadline_ns = monotonic_ns() + plan_.spec.join_timeout_ns;
  for (;;) {
    const Status joined = try_join(deadline_ns);
    const bool is_away = !joined && (joined.error().code == ErrorCode::kUnavailable ||
                                     joined.error().code == ErrorCode::kBoxLost);
    const bool may_pass = is_away && !plan_.spec.is_backup;
    if (!may_pass || stop_ || monotonic_ns() >= deadline_ns) return joined;
    sleep(kAskAgainMs);
  }
}

// Returns how many lanes the relay has. A replica has one, because it is a job of one part, which
// other boxes know by name. A part of a job with several parts has one, too.
Result<uint32_t> BoxRelay::ask_lanes(uint64_t deadline_ns) {
  if (plan_.spec.is_backup || plan_.spec.parts > 1) return 1u;
  std::vector<std::unique_ptr<UplinkLane>> asking;
  asking.push_back(
      std::make_unique<UplinkLane>(plan_, 0, 1, std::vector<uint32_t>(), [](const Error&) {}));
  UplinkLane& first = *asking.front();
  if (!set_lanes(std::move(asking))) return Error{ErrorCode::kClosed, "the job has ended"};
  const auto pipelines = first.ask_lanes(deadline_ns);
  if (!pipelines) return pipelines;
  const auto chunks = static_cast<uint32_t>(plan_.spec.chunks.size());
  return std::min({*pipelines, chunks, pipeline::Uplink::kLanesMax});
}

Status BoxRelay::try_join(uint64_t deadline_ns) {
  const auto count = ask_lanes(deadline_ns);
  if (!count) return count.error();
  PBOX_CHECK(*count > 0);
  lane_of_ = control::uplink_lanes(plan_.spec, *count);
  auto chunks = chunks_by_lane(lane_of_, *count);
  std::vector<std::unique_ptr<UplinkLane>> lanes;
  for (uint32_t lane = 0; lane < *count; ++lane) {
    const bool is_whole = plan_.spec.parts == 1;  // each lane has a part at the other box
    lanes.push_back(std::make_unique<UplinkLane>(
        plan_, is_whole ? lane : plan_.spec.part, is_whole ? *count : plan_.spec.parts,
        std::move(chunks[lane]), [this](const Error& error) { fail(error); }));
  }
  if (!set_lanes(std::move(lanes))) return Error{ErrorCode::kClosed, "the job has ended"};
  return join_lanes(deadline_ns);
}

// Replaces the lanes. Returns false if they must not be used, because the relay ends.
bool BoxRelay::set_lanes(std::vector<std::unique_ptr<UplinkLane>> lanes) {
  const std::lock_guard lock(lanes_mutex_);
  lanes_.swap(lanes);
  return !stop_;
}

// Joins all lanes at once: each waits for the other racks. The first lane that fails ends the
// others, and its error is returned.
Status BoxRelay::join_lanes(uint64_t deadline_ns) {
  std::mutex mutex;
  Status outcome = ok_status();
  const auto end_with = [&](const Status& joined) {
    if (joined) return;
    {
      const std::lock_guard lock(mutex);
      if (!outcome) return;
      outcome = joined;
    }
    leave_lanes();
  };
  std::vector<std::thread> threads;
  for (const auto& lane : lanes_) {
    auto thread = start_thread("join another box", [&, own = lane.get()] {
      name_current_thread(kThreadName);
      end_with(own->join(deadline_ns));
    });
    if (!thread) {
      end_with(thread.error());
      break;
    }
    threads.push_back(std::move(*thread));
  }
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

Status BoxRelay::run_lanes() {
  std::vector<std::vector<control::RelayLane>> rings(lanes_.size());
  for (const control::RelayLane& ring : rings_) {
    PBOX_CHECK(ring.lane < rings.size());
    rings[ring.lane].push_back(ring);
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    auto event = create_event();
    if (!event) return event.error();
    const int fd = lane_wakes_.emplace_back(std::move(*event)).get();
    if (const Status runs = lanes_[lane]->run(std::move(rings[lane]), fd); !runs) return runs;
  }
  return ok_status();
}

// Leaves all lanes at once, because a lane may have to wait for a box that does not answer.
void BoxRelay::leave_lanes() {
  const std::lock_guard lock(lanes_mutex_);
  std::vector<std::thread> threads;
  for (size_t lane = 1; lane < lanes_.size(); ++lane) {
    auto thread = start_thread("leave another box",
                               [this, own = lanes_[lane].get()] { own->leave(reason_); });
    if (thread) {
      threads.push_back(std::move(*thread));
    } else {
      lanes_[lane]->leave(reason_);  // there are no more threads
    }
  }
  if (!lanes_.empty()) lanes_.front()->leave(reason_);
  for (std::thread& thread : threads) thread.join();
}

void BoxRelay::fail(const Error& error) {
  if (stop_ || failed_.exchange(true)) return;
  report_(error);
}

void BoxRelay::sleep(int timeout_ms) {
  pollfd wait{wake_.get(), POLLIN, 0};
  if (poll(&wait, 1, timeout_ms) > 0) clear_event(wait.fd);
}

void BoxRelay::wake() const {
  set_event(wake_.get());
}

}  // namespace pbox::relay
