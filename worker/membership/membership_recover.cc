// A box that is lost: looked for again, and told where this worker is.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "worker/membership/membership.h"
#include "worker/version.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kBackOffFloorNs = 50 * kNanosPerMilli;
constexpr uint64_t kBackOffCapNs = kNanosPerSecond;
// For one attempt: a box that starts meanwhile may have another address by then.
constexpr uint64_t kConnectNs = 2 * kNanosPerSecond;

}  // namespace

proto::AskPartMap plan_question(const std::string& job) {
  proto::AskPartMap question;
  question.set_protocol_version(wire::kControlProtocolVersion);
  question.set_software(std::string("libpbox ") + kVersion);
  question.set_job(job);
  return question;
}

void know_boxes(const proto::PartMap& plan, std::vector<std::string>& boxes) {
  constexpr size_t kFormerBoxesMax = 8;
  const std::vector<std::string> former = std::exchange(boxes, {});
  boxes.assign(plan.boxes().begin(), plan.boxes().end());
  const size_t boxes_max = boxes.size() + kFormerBoxesMax;
  for (const std::string& box : former) {
    const bool is_listed = std::find(boxes.begin(), boxes.end(), box) != boxes.end();
    if (!is_listed && boxes.size() < boxes_max) boxes.push_back(box);
  }
}

// From here on nothing of the session that is over is accepted or sent.
void Membership::lose_box(const Error& why, uint64_t now_ns) {
  if (options_.sync.model != wire::SyncModel::kBsp) {
    return fail({why.code, why.message + "; only BSP (PBOX_SYNC_BSP) outlives that, start the job "
                                         "again from a checkpoint"});
  }
  if (options_.recovery == Recovery::kNone) return fail(why);
  begin_recovery(why.message, now_ns);
  try_again(why, now_ns);
}

void Membership::begin_recovery(const std::string& reason, uint64_t now_ns) {
  phase_ = Phase::kRecovering;
  exchange_->suspend();
  loss_ = {.since_ns = now_ns, .reason = reason};
  attempts_ = 0;
}

// The box that has the part as far as this worker knows, in turn with the others, which may know
// better.
void Membership::reconnect(uint64_t now_ns) {
  std::string box = options_.box;
  if (!options_.boxes.empty() && attempts_ % 2 == 0) {
    box = options_.boxes[next_box_++ % options_.boxes.size()];
    if (box == options_.box) box = options_.boxes[next_box_++ % options_.boxes.size()];
  }
  connect(box, now_ns + kConnectNs);
}

void Membership::ask_part_map(uint64_t now_ns) {
  await_box(Step::kPartMap, now_ns);
  proto::AskPartMap& question = *send().mutable_ask_part_map();
  question = plan_question(options_.job);
  if (connected_box_ == options_.box || !seems_lost_) return;
  question.set_lost_box(options_.box_name);
  const uint64_t lost_ns = now_ns - std::min(now_ns, unreachable_since_ns_);
  question.set_lost_for_ms(static_cast<uint32_t>(lost_ns / kNanosPerMilli));
}

void Membership::on_part_map(const proto::PartMap& plan, uint64_t now_ns) {
  if (!awaits(Step::kPartMap)) return;
  if (plan.parts_size() != static_cast<int>(options_.parts)) {
    return fail({ErrorCode::kMismatch,
                 "job '" + options_.job + "' is in " + std::to_string(plan.parts_size()) +
                     " parts now, this worker joined it in " + std::to_string(options_.parts) +
                     "; it was planned anew, start all ranks again"});
  }
  know_boxes(plan, options_.boxes);
  const proto::PartPlace& place = plan.parts(static_cast<int>(options_.part));
  if (!place.address().empty() && place.address() != connected_box_) return redirect(place, now_ns);
  options_.box = connected_box_;
  options_.box_name = place.box();
  ask_data_addresses(now_ns);
}

// Nothing is lost: what is in flight is pushed again there.
void Membership::on_moved(const proto::PartPlace& place, uint64_t now_ns) {
  if (phase_ == Phase::kRunning) {
    begin_recovery("box " + place.box() + " has taken over part " + std::to_string(options_.part) +
                       " of the job",
                   now_ns);
  }
  redirect(place, now_ns);
}

// Boxes may differ for a while on who has the part.
void Membership::redirect(const proto::PartPlace& place, uint64_t now_ns) {
  constexpr uint32_t kAtOnce = 4;
  if (place.address() != options_.box) unreachable_since_ns_ = 0;
  options_.box = place.address();
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
  // +/- 50 %, so that the workers of a job do not all knock at once.
  const uint64_t wait_ns = std::min(kBackOffFloorNs << std::min(attempts_, 5u), kBackOffCapNs);
  ++attempts_;
  step_ = Step::kRetry;
  step_deadline_ns_ = now_ns + wait_ns / 2 + rng_.below(wait_ns + 1);
}

uint64_t Membership::recovery_ends_ns() const {
  return loss_->since_ns + options_.recover_timeout_ms * kNanosPerMilli;
}

void Membership::check_recovery(uint64_t now_ns) {
  if (now_ns >= recovery_ends_ns()) return fail(recovery_timeout(now_ns));
  if (now_ns >= silence_ends_ns()) return try_again(silence(now_ns), now_ns);
  if (now_ns < step_deadline_ns_) return;
  if (step_ == Step::kRetry) return reconnect(now_ns);
  try_again({ErrorCode::kTimeout, "box " + options_.box + " did not answer"}, now_ns);
}

Error Membership::recovery_timeout(uint64_t now_ns) const {
  const std::string last =
      awaits(Step::kSession) ? "it waits for the other ranks to come back" : last_failure_;
  return {ErrorCode::kBoxLost, "box " + options_.box + " was lost " +
                                   in_seconds(now_ns - loss_->since_ns) + " ago (" + loss_->reason +
                                   ") and could not be joined again within " +
                                   std::to_string(options_.recover_timeout_ms) + " ms: " + last};
}

// After a JOIN that resumes.
void Membership::send_rounds() {
  const std::vector<uint32_t> rounds = exchange_->consumed_rounds();
  for (size_t first = 0; first < rounds.size(); first += limits::kRoundMapChunksMax) {
    const size_t end = std::min<size_t>(rounds.size(), first + limits::kRoundMapChunksMax);
    proto::RoundMap& map = *send().mutable_rounds();
    map.set_first_chunk(static_cast<uint32_t>(first));
    for (size_t chunk = first; chunk < end; ++chunk) {
      const auto id = static_cast<uint32_t>(chunk);
      map.add_rounds(rounds[chunk]);
      if (exchange_->lacks_result(id)) map.add_lacks(id);
    }
    map.set_last(end == rounds.size());
  }
}

// What a box that is gone may never have heard, or answered in vain. The box takes the highest
// barrier for all before it.
void Membership::repeat_requests() {
  for (proto::WorkerMessage& message : requests_.unconfirmed()) send() = std::move(message);
  if (priorities_requested_) {
    *send().mutable_set_priorities() = *priorities_requested_;
  } else if (options_.rank == 0 && priorities_changed_ && !priorities_known_) {
    ask_priorities(priorities_.policy(), priorities_.by_tensor());  // a box that begins anew
  }
}

}  // namespace pbox::worker
