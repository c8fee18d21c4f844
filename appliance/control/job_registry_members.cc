// Ranks that join, leave, are lost and come back.
#include <algorithm>

#include "appliance/control/job_registry.h"
#include "appliance/control/peer_text.h"
#include "appliance/control/refusals.h"
#include "appliance/control/version_checks.h"
#include "base/check.h"
#include "base/clock.h"
#include "nic/socket/address.h"
#include "nic/wire/tenant.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

std::string rank_of(const Job& job, uint32_t rank) {
  PBOX_CHECK(rank < job.members().size());
  return job.spec().title() + ": rank " + std::to_string(rank) + " (" + job.members()[rank].peer;
}

proto::BoxMessage peer_left(const Job& job, uint32_t rank) {
  proto::BoxMessage message;
  message.mutable_peer_left()->set_rank(rank);
  message.mutable_peer_left()->set_reason(job.members()[rank].left_reason);
  return message;
}

proto::BoxMessage membership_of(const Job& job) {
  proto::BoxMessage message;
  proto::MembershipUpdate& membership = *message.mutable_membership();
  membership.set_generation(job.generation());
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    if (job.members()[rank].state == Member::State::kExcluded) membership.add_absent_ranks(rank);
  }
  return message;
}

// Returns true if a new process in this rank's place could not give back what the rank alone has
// consumed, or would need results that were lost with the former box.
bool needs_others_copies(const Job& job, uint32_t rank, PipelineHost& host) {
  PBOX_DCHECK(rank < job.members().size());
  if (job.starts().empty()) return false;
  const auto rounds = job.shards().open_rounds(host);
  if (!copies_owed(job.starts(), rank, rounds).empty()) return true;
  return job.spec().mode == pipeline::Mode::kAggregate &&
         lacks_for_newcomer(job.starts(), chunk_counts(job.spec()), rounds);
}

// Returns whether, in mode optimize, rank 0 has not given all initial weights yet. `rounds`: the
// open rounds, by chunk.
bool lacks_initial_weights(const JobSpec& spec, const std::vector<uint32_t>& rounds) {
  return spec.mode == pipeline::Mode::kOptimize &&
         std::find(rounds.begin(), rounds.end(), 0u) != rounds.end();
}

// Returns whether the job needs nothing that only this rank has, and can finish its rounds without
// the rank.
bool may_go_on_without_leaver(const Job& job, uint32_t rank, PipelineHost& host) {
  const JobSpec& spec = job.spec();
  const bool drops = spec.relaxed_model == wire::SyncModel::kDrop;
  if (!drops || spec.on_worker_lost != LostPolicy::kPartial) return false;
  const auto rounds = job.shards().open_rounds(host);
  return copies_owed(job.starts(), rank, rounds).empty() &&
         !(rank == 0 && lacks_initial_weights(spec, rounds));
}

// Fills the member from its JOIN. A worker that resumes states its former session too.
void describe_member(Member& member, const proto::WorkerMessage& message,
                     uint64_t barrier_released) {
  const proto::Join& join = message.join();
  member.software = printable(join.software());
  member.protocol_version = session_version(message);
  member.path_mtu = join.path_mtu();
  member.workers = std::max(1u, join.workers());
  member.incarnation = join.incarnation();
  member.reads_by_staleness.clear();
  member.progress = {};
  member.resumes = join.resumes();
  member.rejoins = join.rejoins();
  member.epoch = join.resumes() ? join.epoch() : 0;
  member.box = join.resumes() ? join.box() : "";
  member.copy = join.resumes() ? CopyName{join.copy().box(), join.copy().job()} : CopyName();
  member.restored_snapshot = join.resumes() ? join.restored_snapshot() : 0;
  member.restored_steps = join.resumes() ? join.restored_steps() : 0;
  member.generation = join.resumes() ? join.generation() : 0;
  member.barrier_sequence = join.resumes() ? join.barrier_sequence() : barrier_released;
  member.barriers_released = join.resumes() ? join.barriers_released() : 0;
  member.consumed.clear();
  member.lacks.clear();
  member.stated = false;
  member.learning_rates_set = join.resumes() ? join.learning_rates_set() : 0;
  member.learning_rate = join.learning_rate();
  member.verdict.reset();
  if (join.has_verdict()) member.verdict = from_message(join.verdict());
  // The worker chooses the list's length, so impossible ranks and repetitions are left out.
  std::vector<bool> is_absent(join.world_size());
  for (const uint32_t rank : join.absent_ranks()) {
    if (rank < is_absent.size()) is_absent[rank] = true;
  }
  member.absent.clear();
  for (uint32_t rank = 0; rank < is_absent.size(); ++rank) {
    if (is_absent[rank]) member.absent.push_back(rank);
  }
}

}  // namespace

audit::Record join_record(audit::Kind kind, const proto::Join& join, std::string reason) {
  return {.kind = kind,
          .job = join.job(),
          .part = join.part(),
          .rank = join.rank(),
          .outcome = join.is_backup() ? "replica" : "",
          .reason = std::move(reason)};
}

void JobRegistry::on_join(ConnectionId id, Connection& connection,
                          const proto::WorkerMessage& message) {
  const proto::Join& join = message.join();
  if (is_shutting_down_) return context_.connections.close(id);  // the worker tries another box
  auto job = Result<Job*>(
      Error{ErrorCode::kAlreadyExists, "this connection has joined already; open another one"});
  if (connection.job == nullptr) {
    const auto place = other_owner(join);
    if (place && *place) return context_.connections.redirect(id, **place);
    // With keys, the connection has counted towards the tenant's bound since it was opened.
    const Status in_bounds =
        connection.identity ? ok_status()
                            : check_connections(wire::tenant_of(join.job()),
                                                context_.options.tenants, context_.connections, 1);
    job = !in_bounds ? in_bounds.error()
          : place    ? admission_.admit(message, connection.identity)
                     : place.error();
    const bool has_no_room = place && !job && job.error().code == ErrorCode::kResourceExhausted;
    if (has_no_room && !join.is_backup() && parts_.hand_back(join.job(), join.part())) {
      job = Error{ErrorCode::kUnavailable, job.error().message +
                                               "; another box is asked to take "
                                               "the part, try again"};
    }
  }
  if (!job) {
    return refuse_join(context_, id, connection, job.error(), &join);
  }
  PBOX_CHECK(*job != nullptr);
  connection.job = *job;
  connection.rank = join.rank();
  admit_member(id, connection, message);
}

// Returns the box that has the part; nothing if this box may have it. A backup copy stays here.
Result<std::optional<proto::PartPlace>> JobRegistry::other_owner(const proto::Join& join) const {
  if (join.is_backup()) return std::optional<proto::PartPlace>();
  return parts_.other_owner(join.job(), join.part(), std::max(1u, join.parts()));
}

void JobRegistry::admit_member(ConnectionId id, const Connection& connection,
                               const proto::WorkerMessage& message) {
  const proto::Join& join = message.join();
  Job& job = *connection.job;
  PBOX_CHECK(join.rank() < job.members().size());  // parse_join() has refused higher ranks
  Member& member = job.members()[join.rank()];
  if (member.state == Member::State::kJoined) {  // its former connection is half open
    context_.connections.drop(member.connection);
  }
  member.connection = id;
  member.peer = connection.peer;
  member.identity = connection.identity;
  member.joined_ns = context_.now_ns;
  member.ipv6 = connection.endpoint.ipv6;
  describe_member(member, message, job.barrier_released());
  member.is_on_host = host_.offers_lanes() && nic::host_has_address(connection.endpoint);
  member.known_host.reset();
  // Workers of older releases know no challenges.
  if (context_.options.checks_addresses && member.protocol_version >= wire::kChallengeVersion) {
    member.known_host = connection.endpoint;
  }
  context_.note(Severity::kDebug, "worker_joined",
                "job '" + join.job() + "': rank " + std::to_string(join.rank()) + " of " +
                    std::to_string(join.world_size()) + " (" + member.peer + ", path MTU " +
                    std::to_string(join.path_mtu()) + "), " + member.software +
                    " with control protocol " + std::to_string(member.protocol_version) +
                    (join.resumes() ? ", resumes from epoch " + std::to_string(join.epoch()) : ""),
                join.job());
  context_.audit(join_record(audit::Kind::kJoin, join), &connection);
  if (job.running()) return readmit(job, join.rank());
  member.state = Member::State::kJoined;
  if (join.resumes()) job.on_rank_resumes(context_.now_ns);
  starter_.dismiss_left_behind(job);
  starter_.advance(key_of(job.spec()));
}

// Handles a resuming worker's statement of what it has consumed. A running part ignores it.
void JobRegistry::on_rounds(ConnectionId id, const Connection& connection,
                            const proto::RoundMap& rounds) {
  PBOX_CHECK(connection.job != nullptr);
  Job& job = *connection.job;
  if (job.running()) return;
  PBOX_CHECK(connection.rank < job.members().size());
  Member& member = job.members()[connection.rank];
  const uint32_t chunks = job.shards().chunk_count();
  const uint64_t stated = member.consumed.size() + static_cast<uint64_t>(rounds.rounds_size());
  const bool fits = member.resumes && !member.stated && rounds.rounds_size() > 0 &&
                    rounds.first_chunk() == member.consumed.size() &&
                    (rounds.last() ? stated == chunks : stated < chunks);
  const bool names_chunks = std::all_of(rounds.lacks().begin(), rounds.lacks().end(),
                                        [&](uint32_t chunk) { return chunk < stated; });
  if (!fits || !names_chunks) {
    return context_.connections.refuse(
        id, {ErrorCode::kInvalidArgument,
             "rank " + std::to_string(connection.rank) + " sent an invalid round map: it covers " +
                 std::to_string(stated) + " chunks, and the job has " + std::to_string(chunks) +
                 "; a worker that resumes must state the round of each chunk exactly once"});
  }
  member.consumed.reserve(chunks);
  member.consumed.insert(member.consumed.end(), rounds.rounds().begin(), rounds.rounds().end());
  PBOX_CHECK(member.consumed.size() == stated);
  member.lacks.resize(member.consumed.size());
  for (const uint32_t chunk : rounds.lacks()) member.lacks[chunk] = true;
  member.stated = rounds.last();
  starter_.advance(key_of(job.spec()));
}

// Admits a rank of a running part that has come back, as the same process or as a new one in its
// place.
void JobRegistry::readmit(Job& job, uint32_t rank) {
  PBOX_CHECK(job.running());  // a gathering part has no sessions to give
  PBOX_CHECK(rank < job.members().size());
  Member& member = job.members()[rank];
  if (!member.resumes && needs_others_copies(job, rank, host_)) {
    member.state = Member::State::kJoined;
    return gather_again(
        job, {.event = {Severity::kWarning, "job_gathers_again",
                        job.spec().title() + ": a new rank needs results that only others have",
                        job.spec().name},
              .kept_rank = rank});
  }
  Status admitted = job.check_path(host_, member, rank);
  if (admitted) admitted = job.admit(host_, spis_, context_.session_maker(), rank);
  if (!admitted) {
    context_.connections.dismiss(member.connection, admitted.error());
    if (member.state == Member::State::kJoined) lose(job, rank, admitted.error().message);
    return;
  }
  const bool was_excluded = member.state == Member::State::kExcluded;
  if (!member.resumes) member.is_from_start = false;
  member.state = Member::State::kJoined;
  member.has_left = false;
  job.follow_learning_rate(host_);  // a new process has set none yet
  ++context_.totals.workers_back;
  context_.note(
      Severity::kInfo, "worker_back",
      rank_of(job, rank) + (member.resumes ? ") goes on" : ") takes its place as a new process"),
      job.spec().name);
  if (was_excluded) {
    sessions_.share_credit();
    context_.connections.send_all(job, membership_of(job));
  }
  const JobKey part = key_of(job.spec());
  verdicts_.on_rank_back(job, rank);
  if (!context_.jobs.contains(part)) return;
  sessions_.send(job, rank, job.shards().open_rounds(host_, rank));
  for (uint32_t other = 0; other < job.members().size(); ++other) {
    if (job.members()[other].state == Member::State::kLeft) {
      context_.connections.send(member.connection, peer_left(job, other));
    }
  }
  release_barriers(context_, job);
}

// Returns whether a job of policy partial may go on without the missing ranks. If there are other
// boxes, one of them may have taken the part over, and the missing ranks may go on there. Then only
// a majority may go on.
bool JobRegistry::can_go_on_without_missing(const Job& job) const {
  const bool may_be_split = job.spec().may_move() && parts_.has_other_boxes(job.spec().name);
  return !may_be_split || job.members().has_majority();
}

// Returns the end of an error message, which says why a job of policy partial does not go on
// without the missing ranks; "" if that is not the reason.
std::string JobRegistry::no_majority(const Job& job) const {
  if (job.spec().on_worker_lost != LostPolicy::kPartial || can_go_on_without_missing(job))
    return "";
  return "; the remaining ranks are not a majority, so the others may have continued at another "
         "box";
}

// Has a job of policy partial go on without a rank that has not come back.
void JobRegistry::exclude(Job& job, uint32_t rank) {
  const Member& member = job.members()[rank];
  const auto rounds = job.shards().open_rounds(host_);
  if (!copies_owed(job.starts(), rank, rounds).empty()) {
    return gather_again(
        job, {.event = {Severity::kWarning, "job_gathers_again",
                        job.spec().title() + ": rank " + std::to_string(rank) +
                            " was lost before it had given back the results that it alone had",
                        job.spec().name}});
  }
  if (rank == 0 && lacks_initial_weights(job.spec(), rounds)) {
    return fail(job, {ErrorCode::kWorkerLost, job.spec().title() + ": rank 0 was lost (" +
                                                  member.lost_reason +
                                                  ") before it had given its initial weights"});
  }
  go_on_without(job, rank);
  ++context_.totals.workers_excluded;
  context_.note(
      Severity::kWarning, "worker_excluded",
      rank_of(job, rank) + ") was lost (" + member.lost_reason + ") and did not come back; " +
          std::to_string(job.members().count(Member::State::kJoined)) + " ranks go on without it",
      job.spec().name);
}

// Excludes the rank: no round waits for it any more, and no result is kept for it.
void JobRegistry::go_on_without(Job& job, uint32_t rank) {
  job.members()[rank].state = Member::State::kExcluded;
  job.follow_learning_rate(host_);  // before rounds finish without the rank
  job.exclude(host_, spis_, rank);
  context_.connections.send_all(job, membership_of(job));
  sessions_.share_credit();
  release_barriers(context_, job);
}

void JobRegistry::lose(Job& job, uint32_t rank, const std::string& reason) {
  Member& member = job.members()[rank];
  if (!job.running()) {
    member = {};  // the rank may join again
    return remove_if_over(job);
  }
  ++context_.totals.workers_lost;
  member.state = Member::State::kLost;
  member.connection = 0;
  member.lost_ns = context_.now_ns;
  member.lost_reason = reason;
  context_.note(Severity::kWarning, "worker_lost", rank_of(job, rank) + ") lost: " + reason,
                job.spec().name);
  if (job.spec().on_worker_lost == LostPolicy::kAbort) {
    return fail(job, {ErrorCode::kWorkerLost, rank_of(job, rank) + ") was lost (" + reason + ")"});
  }
  remove_if_over(job);
}

// A job of sync.model drop and policy partial may go on without a rank that leaves. In any other
// job, ranks that go on would wait for it in vain, so they are told that it has left.
void JobRegistry::on_leave(ConnectionId id, Connection& connection, const proto::Leave& leave) {
  Job& job = *connection.job;
  const uint32_t rank = connection.rank;
  Member& leaver = job.members()[rank];
  leaver.state = Member::State::kLeft;
  leaver.connection = 0;
  leaver.left_reason = printable(leave.reason(), kReasonBytes);
  context_.connections.drop(id);
  if (!job.running()) {
    leaver = {};  // the rank may join again
  } else if (may_go_on_without_leaver(job, rank, host_)) {
    leaver.has_left = true;
    go_on_without(job, rank);
    context_.note(Severity::kInfo, "worker_left",
                  rank_of(job, rank) + ") has left; the others go on without it", job.spec().name);
  } else {
    job.follow_learning_rate(host_);
    context_.connections.send_all(job, peer_left(job, rank));
    release_barriers(context_, job);
  }
  remove_if_over(job);
}

void JobRegistry::tick_job(Job& job) {
  if (!job.running()) return tick_gathering(job);
  job.trace().on_tick(host_, job.shards(), context_.now_ns);
  const JobKey part = key_of(job.spec());
  backups_.on_tick(job);
  if (!context_.jobs.contains(part)) return;
  guards_.on_tick(job);
  if (!context_.jobs.contains(part)) return;
  mismatches_.on_tick(job);
  if (!context_.jobs.contains(part)) return;
  verdicts_.on_tick(job);
  if (!context_.jobs.contains(part)) return;
  if (const auto* decision = job.shards().control_sync(host_, context_.now_ns)) {
    context_.note(
        Severity::kDebug, "sync_adapted",
        job.spec().title() + ": " + wire::sync_text(decision->rule) + ", because " + decision->why,
        job.spec().name);
  }
  if (job.shards().rounds_finished() > 0) handover_.release_previous_owner(job);
  tick_lost(job);
}

// Handles at most one rank in a tick, because the job may be gone afterwards.
void JobRegistry::tick_lost(Job& job) {
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& member = job.members()[rank];
    if (member.state != Member::State::kLost) continue;
    const uint64_t lost_for_ns = context_.now_ns - member.lost_ns;
    if (lost_for_ns < job.timeouts().lost_ns) continue;
    const bool goes_on = job.spec().on_worker_lost == LostPolicy::kPartial &&
                         job.members().count(Member::State::kJoined) > 0 &&
                         can_go_on_without_missing(job);
    if (goes_on) return exclude(job, rank);
    return fail(job, {ErrorCode::kWorkerLost,
                      rank_of(job, rank) + ") was lost " + in_seconds(lost_for_ns) + " ago (" +
                          member.lost_reason + ") and did not come back" + no_majority(job)});
  }
}

// Ends a job that has no joined ranks. A running job with lost ranks waits for them instead if they
// cannot bring along what it needs: in mode optimize only the box has the weights, and a relayed
// job cannot leave the upper box and come back.
void JobRegistry::remove_if_over(Job& job) {
  const bool was_running = job.running();
  const uint32_t lost = job.members().count(Member::State::kLost);
  if (job.members().count(Member::State::kJoined) > 0) return;
  const bool needs_state = job.spec().mode == pipeline::Mode::kOptimize || job.spec().relayed;
  if (was_running && lost > 0 && needs_state) return;
  if (was_running) handover_.release_previous_owner(job);
  if (job.spec().is_backup) return end(job);  // the part that it is a copy of may well go on
  if (was_running && lost > 0) {
    ++context_.totals.jobs_failed;
  } else if (was_running) {
    ++context_.totals.jobs_finished;
    context_.note(Severity::kInfo, "job_finished", job.spec().title() + ": every rank has left",
                  job.spec().name);
  }
  end(job);
}

}  // namespace pbox::control
