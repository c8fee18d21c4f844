// Parts whose ranks have not all joined: when they begin, begin again, or end.
#include <algorithm>

#include "appliance/control/job_registry.h"
#include "base/clock.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

// An elastic job that could begin waits this long after each JOIN for the next one, because ranks
// that are started together do not join in the same instant.
constexpr uint64_t kLastCallNs = 3 * kNanosPerSecond;
// The first version of the control protocol in which `moved` may have no address.
constexpr uint32_t kMovedInsideVersion = 3;

// Returns whether an elastic job may begin: min_world_size ranks are ready, and none has joined for
// a while. In mode optimize rank 0 must be among them, because it gives the initial weights.
bool has_enough_ranks(const Job& job, uint64_t now_ns) {
  const JobSpec& spec = job.spec();
  if (!spec.is_elastic()) return false;
  uint32_t ready = 0;
  uint64_t newest_join_ns = 0;
  for (const Member& member : job.members()) {
    if (!member.ready()) continue;
    ++ready;
    newest_join_ns = std::max(newest_join_ns, member.joined_ns);
  }
  const bool has_weights = spec.mode == pipeline::Mode::kAggregate || job.members()[0].ready();
  return ready >= spec.min_world_size && has_weights && now_ns - newest_join_ns >= kLastCallNs;
}

// Returns the end of an error message, which says what an elastic job needs to begin; "" for other
// jobs.
std::string needed_ranks(const JobSpec& spec) {
  if (!spec.is_elastic()) return "";
  return "; the job begins with min_world_size " + std::to_string(spec.min_world_size) +
         (spec.mode == pipeline::Mode::kOptimize ? ", rank 0 among them" : "");
}

}  // namespace

// Closes the part and has its ranks join again. They state once more what they have, and the part
// goes on from that. This is needed if a rank was lost that alone held what others need, if a new
// rank needs what only others hold, if a backup copy has to begin, or if chunks move to other
// pipelines.
void JobRegistry::gather_again(Job& job, Regathering how) {
  context_.events.push_back(std::move(how.event));
  keep_state(job);
  close(job);
  job.begin_again(context_.now_ns);
  proto::PartPlace here;  // without an address, it means the address that the worker has used
  here.set_box(context_.options.box_name);
  const bool tells = !how.group_pipelines.empty();
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    Member& member = job.members()[rank];
    if (rank == how.kept_rank) continue;
    const bool is_here = member.state == Member::State::kJoined;
    if (is_here && tells && member.protocol_version >= kMovedInsideVersion) {
      context_.connections.detach(member.connection);
      context_.connections.redirect(member.connection, here);
    } else if (is_here) {
      context_.connections.drop(member.connection);
    }
    auto seat = std::move(member.identity);
    member = {};
    member.identity = std::move(seat);
  }
  sessions_.share_credit();
  if (!tells) return remove_if_over(job);
  job.shards().move_groups(job.spec(), how.group_pipelines);
  job.on_rank_resumes(context_.now_ns);  // all of them are about to resume
}

void JobRegistry::tick_gathering(Job& job) {
  if (starter_.on_tick(job)) return;
  if (job.gather_times().resumed_ns != 0) return tick_recovering(job);
  if (has_enough_ranks(job, context_.now_ns)) {
    return starter_.advance_without_missing(key_of(job.spec()));
  }
  const uint64_t waited_ns = context_.now_ns - job.gather_times().begun_ns;
  if (waited_ns <= job.timeouts().join_ns) return;
  const bool is_the_boxs = job.timeouts().join_ns == context_.options.join_timeout_ns;
  fail(job,
       {ErrorCode::kTimeout,
        job.spec().title() + ": " + std::to_string(job.members().count(Member::State::kAbsent)) +
            " of " + std::to_string(job.spec().world_size) + " ranks have not joined after " +
            in_seconds(waited_ns) +
            (is_the_boxs ? " (the box's [control] join_timeout_s): " : ": ") +
            job.members().ranks_in(Member::State::kAbsent) + needed_ranks(job.spec())});
}

// Waits longer than for a single lost rank, because the ranks do not all notice at the same time
// that the box was lost.
void JobRegistry::tick_recovering(Job& job) {
  const uint64_t waited_ns = context_.now_ns - job.gather_times().resumed_ns;
  if (waited_ns <= job.timeouts().lost_ns + context_.options.dead_after_ns) return;
  const bool some_are_ready =
      std::any_of(job.members().begin(), job.members().end(),
                  [](const Member& member) { return member.resumes && member.ready(); });
  if (job.spec().on_worker_lost == LostPolicy::kPartial && some_are_ready &&
      can_go_on_without_missing(job)) {
    return starter_.advance_without_missing(key_of(job.spec()));
  }
  fail(job, {ErrorCode::kWorkerLost,
             job.spec().title() + ": the box was lost or its chunks moved, and after " +
                 in_seconds(waited_ns) + " " + job.members().ranks_in(Member::State::kAbsent) +
                 " did not come back" + no_majority(job)});
}

}  // namespace pbox::control
