// A box that is lost: looked for again, and told where this worker is.
#include <algorithm>

#include "base/clock.h"
#include "worker/membership.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kBackOffFloorNs = 50 * kNanosPerMilli;
constexpr uint64_t kBackOffCapNs = kNanosPerSecond;
// For one attempt: a box that starts meanwhile may have another address by then.
constexpr uint64_t kConnectNs = 2 * kNanosPerSecond;

}  // namespace

// From here on nothing of the session that is over is accepted or sent.
void Membership::lose_box(const Error& why, uint64_t now_ns) {
  if (options_.sync.model != wire::SyncModel::kBsp) {
    return fail({why.code, why.message + "; only BSP (PBOX_SYNC_BSP) outlives that, start the job "
                                         "again from a checkpoint"});
  }
  if (options_.recovery == Recovery::kNone) return fail(why);
  phase_ = Phase::kRecovering;
  core_->suspend();
  loss_ = {.since_ns = now_ns, .reason = why.message};
  attempts_ = 0;
  try_again(why, now_ns);
}

void Membership::miss(const Error& why, uint64_t now_ns) {
  if (phase_ == Phase::kRecovering) {
    try_again(why, now_ns);
  } else {
    fail(why);
  }
}

void Membership::try_again(const Error& why, uint64_t now_ns) {
  last_miss_ = why.message;
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
  if (now_ns >= recovery_ends_ns()) return fail(give_up(now_ns));
  if (now_ns >= silence_ends_ns()) return try_again(silence(now_ns), now_ns);
  if (now_ns < step_deadline_ns_) return;
  if (step_ == Step::kRetry) {
    connect(now_ns + kConnectNs);
    return;
  }
  try_again({ErrorCode::kTimeout, "box " + options_.box + " did not answer"}, now_ns);
}

Error Membership::give_up(uint64_t now_ns) const {
  const std::string last =
      awaits(Step::kSession) ? "it waits for the other ranks to come back" : last_miss_;
  return {ErrorCode::kBoxLost, "box " + options_.box + " was lost " +
                                   in_seconds(now_ns - loss_->since_ns) + " ago (" + loss_->reason +
                                   ") and could not be joined again within " +
                                   std::to_string(options_.recover_timeout_ms) + " ms: " + last};
}

// After a JOIN that resumes.
void Membership::send_rounds() {
  const std::vector<uint32_t> rounds = core_->consumed_rounds();
  for (size_t first = 0; first < rounds.size(); first += limits::kRoundMapChunksMax) {
    const size_t end = std::min<size_t>(rounds.size(), first + limits::kRoundMapChunksMax);
    control::RoundMap& map = *send().mutable_rounds();
    map.set_first_chunk(static_cast<uint32_t>(first));
    for (size_t chunk = first; chunk < end; ++chunk) {
      const auto id = static_cast<uint32_t>(chunk);
      map.add_rounds(rounds[chunk]);
      if (core_->lacks_result(id)) map.add_lacks(id);
    }
    map.set_last(end == rounds.size());
  }
}

// What a box that is gone may never have heard, or answered in vain. The box takes the highest
// barrier for all before it.
void Membership::repeat_requests() {
  if (barriers_asked_ > barriers_released_) send_barrier();
  uint64_t sequence = learning_rates_set_;
  for (const float learning_rate : learning_rates_) send_learning_rate(++sequence, learning_rate);
  if (priorities_asked_) {
    *send().mutable_set_priorities() = *priorities_asked_;
  } else if (options_.rank == 0 && priorities_told_ && !priorities_known_) {
    ask_priorities(priorities_.policy(), priorities_.by_tensor());  // a box that begins anew
  }
}

}  // namespace pbox::worker
