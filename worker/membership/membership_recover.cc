// Searches for a lost box or its successor, and repeats the requests that it may lack.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/version.h"
#include "worker/membership/membership.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kBackOffFloorNs = 50 * kNanosPerMilli;
constexpr uint64_t kBackOffCapNs = kNanosPerSecond;
// Limit of one attempt. A box that is started again meanwhile may have a different address.
constexpr uint64_t kConnectNs = 2 * kNanosPerSecond;

// Returns the box to try. This is in turn the box that is believed to own the part, and another
// box, which may know the owner. `next`: index of that other box.
std::string choose_box(const MembershipOptions& options, uint32_t attempts, size_t& next) {
  if (options.boxes.empty() || attempts % 2 != 0) return options.box;
  const std::string& box = options.boxes[next++ % options.boxes.size()];
  return box != options.box ? box : options.boxes[next++ % options.boxes.size()];
}

}  // namespace

proto::AskPartMap part_map_request(const std::string& job) {
  proto::AskPartMap request;
  request.set_software(std::string("libpbox ") + kVersion);
  request.set_job(job);
  return request;
}

uint64_t answer_deadline_ns(const MembershipOptions& options, uint64_t now_ns) {
  // When the job's time-out ends, the box says which ranks are missing. The margin leaves it time.
  constexpr uint64_t kMarginNs = 2 * kNanosPerSecond;
  return now_ns + options.join_timeout_ms * kNanosPerMilli + kMarginNs;
}

void merge_box_list(const proto::PartMap& map, std::vector<std::string>& boxes) {
  constexpr size_t kFormerBoxesMax = 8;
  const std::vector<std::string> former = std::exchange(boxes, {});
  boxes.assign(map.boxes().begin(), map.boxes().end());
  const size_t boxes_max = boxes.size() + kFormerBoxesMax;
  for (const std::string& box : former) {
    const bool is_listed = std::find(boxes.begin(), boxes.end(), box) != boxes.end();
    if (!is_listed && boxes.size() < boxes_max) boxes.push_back(box);
  }
}

// From here on nothing of the ended session is accepted or sent.
void Membership::lose_box(const Error& why, uint64_t now_ns) {
  if (!can_resume(options_)) return fail(why);
  begin_recovery(why.message, now_ns);
  try_again(why, now_ns);
}

void Membership::begin_recovery(const std::string& reason, uint64_t now_ns) {
  PBOX_CHECK(phase_ == Phase::kRunning && exchange_.has_value());
  phase_ = Phase::kRecovering;
  exchange_->suspend();
  loss_ = {.since_ns = now_ns, .reason = reason};
  attempts_ = 0;
}

void Membership::ask_part_map(uint64_t now_ns) {
  await(Step::kPartMap, answer_deadline_ns(options_, now_ns));
  proto::WorkerMessage message;
  proto::AskPartMap& request = *message.mutable_ask_part_map();
  request = part_map_request(options_.job);
  if (connected_box_ != options_.box && seems_lost_) {
    request.set_lost_box(options_.box_name);
    request.set_rank(options_.rank);
    const uint64_t lost_ns = now_ns - std::min(now_ns, unreachable_since_ns_);
    request.set_lost_for_ms(static_cast<uint32_t>(lost_ns / kNanosPerMilli));
  }
  wire::state_versions(message, options_.added_fields);
  send() = std::move(message);
}

void Membership::on_part_map(const proto::PartMap& map, uint64_t now_ns) {
  if (!awaits(Step::kPartMap)) return;
  if (map.parts_size() != static_cast<int>(options_.parts)) {
    return fail({ErrorCode::kMismatch,
                 "job '" + options_.job + "' is in " + std::to_string(map.parts_size()) +
                     " parts now, but it was in " + std::to_string(options_.parts) +
                     " when this worker joined; start all ranks again"});
  }
  merge_box_list(map, options_.boxes);
  const proto::PartPlace& place = map.parts(static_cast<int>(options_.part));
  if (!place.address().empty() && place.address() != connected_box_) return redirect(place, now_ns);
  options_.box = connected_box_;
  options_.box_name = place.box();
  ask_data_addresses(now_ns);
}

// Nothing is lost: what is in flight is pushed again to the new owner.
void Membership::on_moved(const proto::PartPlace& place, uint64_t now_ns) {
  const std::string part = "part " + std::to_string(options_.part) + " of the job";
  if (phase_ == Phase::kRunning && place.address().empty()) {
    begin_recovery("box " + place.box() + " moves chunks of " + part + " to other pipelines",
                   now_ns);
  } else if (phase_ == Phase::kRunning) {
    begin_recovery("box " + place.box() + " has taken over " + part, now_ns);
  }
  redirect(place, now_ns);
}

// For a while, boxes may disagree about which one owns the part.
void Membership::redirect(const proto::PartPlace& place, uint64_t now_ns) {
  constexpr uint32_t kAtOnce = 4;
  const std::string& address = place.address().empty() ? connected_box_ : place.address();
  if (address != options_.box) unreachable_since_ns_ = 0;
  options_.box = address;
  options_.box_name = place.box();
  seems_lost_ = false;
  const Error why{ErrorCode::kUnavailable, "the part is on box " + place.box() + " now"};
  if (++redirections_ > kAtOnce) return try_again(why, now_ns);
  last_failure_ = why.message;
  act(Action::Kind::kDisconnect);
  act(Action::Kind::kCloseTransport);
  heartbeat_due_ns_ = UINT64_MAX;
  connect(options_.box, phase_ == Phase::kJoining ? join_ends_ns_ : now_ns + kConnectNs);
}

void Membership::fail_or_retry(const Error& why, uint64_t now_ns) {
  if (phase_ == Phase::kRecovering) {
    try_again(why, now_ns);
  } else {
    fail(why);
  }
}

void Membership::try_again(const Error& why, uint64_t now_ns) {
  last_failure_ = why.message;
  if (connected_box_ == options_.box) {
    seems_lost_ = !has_answered_;
    if (!seems_lost_) unreachable_since_ns_ = 0;
    if (seems_lost_ && unreachable_since_ns_ == 0) unreachable_since_ns_ = now_ns;
  }
  act(Action::Kind::kDisconnect);
  act(Action::Kind::kCloseTransport);
  heartbeat_due_ns_ = UINT64_MAX;
  // The wait varies by +/- 50 %, so that the workers of a job do not all connect at the same time.
  const uint64_t wait_ns = std::min(kBackOffFloorNs << std::min(attempts_, 5u), kBackOffCapNs);
  ++attempts_;
  step_ = Step::kRetry;
  step_deadline_ns_ = now_ns + wait_ns / 2 + rng_.below(wait_ns + 1);
}

void Membership::check_recovery(uint64_t now_ns) {
  PBOX_CHECK(loss_.has_value());
  if (now_ns >= recovery_ends_ns(options_, *loss_)) {
    const bool waits = awaits(Step::kSession);
    const std::string last =
        waits ? "the box waits for the other ranks to come back" : last_failure_;
    return fail({ErrorCode::kBoxLost,
                 "box " + options_.box + " was lost " + in_seconds(now_ns - loss_->since_ns) +
                     " ago (" + loss_->reason + ") and could not be joined again within " +
                     std::to_string(options_.recover_timeout_ms) + " ms: " + last});
  }
  if (now_ns >= silence_ends_ns())
    return try_again(silence_error(options_.box, now_ns - heard_ns_), now_ns);
  if (now_ns < step_deadline_ns_) return;
  if (step_ == Step::kRetry)
    return connect(choose_box(options_, attempts_, next_box_), now_ns + kConnectNs);
  try_again({ErrorCode::kTimeout, "box " + options_.box + " did not answer"}, now_ns);
}

// Repeats requests that the lost box may never have received, or whose confirmation was lost.
void Membership::repeat_requests() {
  PBOX_CHECK(phase_ == Phase::kRunning);
  confirmed_version_ = 0;
  for (proto::WorkerMessage& message : requests_.unconfirmed()) send() = std::move(message);
  if (priorities_requested_) {
    *send().mutable_set_priorities() = *priorities_requested_;
  } else if (options_.rank == 0 && priorities_changed_ && !priorities_known_) {
    // The box has started without the job's state.
    ask_priorities(priorities_.policy(), priorities_.by_tensor());
  }
}

}  // namespace pbox::worker
