// Ranks that come, go and come back; what becomes of a job that lacks one.
#include <algorithm>

#include "appliance/control/job_registry.h"
#include "base/clock.h"
#include "nic/wire/control_frame.h"

namespace pbox::appliance {
namespace {

using Severity = RegistryEvent::Severity;

// "; pipeline 0: spi 1509949440, UDP port 9542, credit 1048576 bytes; pipeline 1: ..."
std::string describe(const proto::Session& session) {
  std::string text;
  for (int index = 0; index < session.pipelines_size(); ++index) {
    const auto& pipeline = session.pipelines(index);
    text += "; pipeline " + std::to_string(index) + ": spi " + std::to_string(pipeline.spi()) +
            ", UDP port " + std::to_string(pipeline.udp_port()) + ", credit " +
            std::to_string(pipeline.credit_bytes()) + " bytes";
  }
  return text;
}

// The open rounds, and which of them the worker must give back a copy of, in pieces that fit a
// message.
std::vector<proto::BoxMessage> round_maps(const std::vector<uint32_t>& rounds,
                                          const std::vector<uint32_t>& give) {
  std::vector<proto::BoxMessage> messages;
  auto next_give = give.begin();
  for (size_t first = 0; first < rounds.size(); first += limits::kRoundMapChunksMax) {
    const size_t end = std::min(rounds.size(), first + limits::kRoundMapChunksMax);
    proto::RoundMap& map = *messages.emplace_back().mutable_rounds();
    map.set_first_chunk(static_cast<uint32_t>(first));
    map.mutable_rounds()->Add(rounds.begin() + static_cast<ptrdiff_t>(first),
                              rounds.begin() + static_cast<ptrdiff_t>(end));
    for (; next_give != give.end() && *next_give < end; ++next_give) map.add_give(*next_give);
    map.set_last(end == rounds.size());
  }
  return messages;
}

// Of a job that goes on after its box was lost: the last barrier that all who resume have come to;
// where others are new, who are yet to come to one, the last that somebody has passed.
uint64_t barrier_reached(Job& job) {
  uint64_t asked = UINT64_MAX, passed = 0;
  bool some_are_new = false;
  for (const Member& member : job.members()) {
    if (member.resumes) {
      asked = std::min(asked, member.barrier_sequence);
      passed = std::max(passed, member.barriers_released);
    } else if (member.state == Member::State::kJoined) {
      some_are_new = true;
    }
  }
  return some_are_new ? passed : asked;
}

proto::BoxMessage peer_left(uint32_t rank) {
  proto::BoxMessage message;
  message.mutable_peer_left()->set_rank(rank);
  return message;
}

}  // namespace

// Of a job that gathers after its box was lost: a rank that cannot go on with the others.
void JobRegistry::send_away(Job& job, uint32_t rank) {
  Member& member = job.members()[rank];
  connections_[member.connection].job = nullptr;
  refuse(member.connection,
         {ErrorCode::kWorkerLost, "rank " + std::to_string(rank) + " of " + job.spec().title() +
                                      " was left behind: the box was lost, and the others go on "
                                      "from where it has no part; start it again with rejoin"});
  member = {};
}

// They may come back as new processes.
void JobRegistry::exclude_missing(Job& job) {
  for (Member& member : job.members()) {
    if (Job::ready(member)) continue;
    if (member.connection != 0) {
      connections_[member.connection].job = nullptr;
      actions_.push_back({Action::Kind::kClose, member.connection, {}});
    }
    member = {};
    member.state = Member::State::kExcluded;
    member.lost_reason = "it did not come back after the box was lost";
    ++totals_.workers_excluded;
  }
}

// The job goes on gathering, and each tick tries again.
void JobRegistry::await_epoch(Job& job, const Error& error) {
  if (!job.epoch_awaited) {
    note(Severity::kWarning, "epoch_awaited", job.spec().title() + ": " + error.message);
  }
  job.epoch_awaited = error;
}

void JobRegistry::start_job(Job& job) {
  if (awaits_state(job)) return;
  const PartState* state = state_for(job);
  if (awaits_snapshot(job, state) || awaits_relay(job) || awaits_backup(job, state)) return;
  const auto beyond = job.beyond_recovery(state);
  if (!beyond) {
    fail_job(job, beyond.error());
    return;
  }
  for (const uint32_t rank : *beyond) send_away(job, rank);
  if (!beyond->empty() && !job.all_joined()) return;
  uint32_t newest_epoch = 0;
  for (const Member& member : job.members()) newest_epoch = std::max(newest_epoch, member.epoch);
  const auto epoch = epochs_.next(newest_epoch);
  if (!epoch && epoch.error().code == ErrorCode::kUnavailable) {
    await_epoch(job, epoch.error());
    return;
  }
  job.epoch_awaited.reset();
  exclude_missing(job);
  const uint64_t barrier = barrier_reached(job);
  const bool recovers = job.recovering();
  if (state != nullptr) {
    const bool is_own = !job.transfer;
    job.opened_from = {.box = is_own ? options_.box_name : job.transfer->box,
                       .job = is_own ? job.spec().name : job.transfer->job,
                       .part = is_own ? job.spec().part : job.transfer->part,
                       .epoch = state->epoch,
                       .is_backup = !is_own && job.transfer->is_backup};
  }
  const Status opened = epoch ? job.open(host_, spis_, *epoch, state) : epoch.error();
  if (!opened) {
    fail_job(job, opened.error());
    return;
  }
  job.transfer.reset();
  if (job.restored) job.restored->chunks.clear();
  if (job.moments) job.moments->chunks.clear();
  if (!recovers) kept_.erase(key(job.spec()));  // of a job before, of that name
  if (job.relay) job.relay->run(job.relay_lanes(host_));
  job.backup.look_due_ns = now_ns_ + kNanosPerSecond;
  share_credit();
  job.recovering_since_ns = 0;
  if (recovers) ++totals_.jobs_recovered;
  job.barrier_released = recovers ? barrier : 0;
  note(Severity::kInfo, recovers ? "job_recovered" : "job_started",
       job.spec().title() + ": " + std::to_string(job.count(Member::State::kJoined)) +
           " workers, " + std::to_string(job.spec().element_count()) + " elements in " +
           std::to_string(job.spec().tensors.size()) + " tensors, fragments of " +
           std::to_string(job.fragment_bytes()) + " bytes, epoch " + std::to_string(*epoch));
  if (job.has_restarted_optimizer()) {
    ++totals_.optimizer_restarts;
    note(Severity::kWarning, "optimizer_restarted",
         job.spec().title() +
             ": the box that had its weights and its optimizer's state was lost; weights are those "
             "that its workers hold, momentum and moments " +
             (job.moments && job.moments->number > 0
                  ? "those of snapshot " + std::to_string(job.moments->number) + ", after " +
                        std::to_string(job.moments->steps) + " steps"
                  : std::string("begin anew at 0")));
  }
  send_sessions(job, recovers);
}

void JobRegistry::send_sessions(Job& job, bool recovers) {
  const bool goes_by_rank = recovers && wire::applies_on_arrival(job.spec().sync.model);
  auto rounds = recovers ? job.open_rounds(host_) : std::vector<uint32_t>();
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    Member& member = job.members()[rank];
    if (member.state != Member::State::kJoined) continue;
    if (!member.resumes) member.barrier_sequence = job.barrier_released;
    if (goes_by_rank) rounds = job.open_rounds(host_, rank);
    send_session(job, rank, rounds);
    std::vector<uint32_t>().swap(member.consumed);
  }
}

// open_rounds is empty in a job that begins.
void JobRegistry::send_session(Job& job, uint32_t rank, const std::vector<uint32_t>& open_rounds) {
  const Member& member = job.members()[rank];
  // Only from here on does it know how often it must be heard.
  connections_[member.connection].heard_ns = now_ns_;
  if (job.priorities_set()) {  // before the session, so that nothing is started without
    proto::BoxMessage priorities;
    *priorities.mutable_set_priorities() = *job.priorities_set();
    send(member.connection, std::move(priorities));
  }
  proto::BoxMessage message;
  proto::Session& session = *message.mutable_session();
  session.set_protocol_version(wire::kControlProtocolVersion);
  session.set_box(options_.box_name);
  session.set_payload_crc(options_.payload_crc);
  session.set_heartbeat_interval_ms(options_.heartbeat_interval_ms);
  session.set_dead_after_ms(static_cast<uint32_t>(options_.dead_after_ns / kNanosPerMilli));
  session.set_has_rounds(!open_rounds.empty());
  session.set_optimizer_restarted(job.has_restarted_optimizer());
  if (const CopyName copy = job.copy(); !copy.job.empty()) {
    session.mutable_copy()->set_box(copy.box);
    session.mutable_copy()->set_job(copy.job);
  }
  job.describe(rank, host_, session);
  for (int index = 0; index < session.pipelines_size(); ++index) {
    const uint32_t pipeline = job.pipelines()[static_cast<size_t>(index)];
    session.mutable_pipelines(index)->set_credit_bytes(credit_on(pipeline, job));
  }
  note(Severity::kDebug, "session_installed",
       job.spec().title() + ": rank " + std::to_string(rank) + " (" + member.peer + ")" +
           describe(session));
  send(member.connection, std::move(message));
  const auto give = member.resumes ? job.copies_owed(rank, open_rounds) : std::vector<uint32_t>();
  const auto rounds = member.resumes ? open_rounds : job.rounds_for_newcomer(open_rounds);
  for (auto& piece : round_maps(rounds, give)) send(member.connection, std::move(piece));
}

// A rank of a running job is back, as itself or as another process in its place.
void JobRegistry::readmit(Job& job, uint32_t rank, uint64_t now_ns) {
  Member& member = job.members()[rank];
  if (!member.resumes) {
    const auto rounds = job.open_rounds(host_);
    if (!job.copies_owed(rank, rounds).empty() || job.lacks_for_newcomer(rounds)) {
      member.state = Member::State::kJoined;
      gather_again(job, rank, now_ns, "job_gathers_again",
                   job.spec().title() + ": a new rank needs what only the others have");
      return;
    }
  }
  Status admitted = job.check_path(host_, member, rank);
  if (admitted) admitted = job.admit(host_, spis_, rank);
  if (!admitted) {
    refuse(member.connection, admitted.error());
    connections_[member.connection].job = nullptr;
    if (member.state == Member::State::kJoined) {
      lose(job, rank, admitted.error().message, now_ns);
    }
    return;
  }
  const bool was_excluded = member.state == Member::State::kExcluded;
  member.state = Member::State::kJoined;
  ++totals_.workers_back;
  note(Severity::kInfo, "worker_back",
       job.spec().title() + ": rank " + std::to_string(rank) + " (" + member.peer +
           (member.resumes ? ") goes on" : ") takes its place as a new process"));
  if (was_excluded) {
    share_credit();
    tell_membership(job);
  }
  send_session(job, rank, job.open_rounds(host_, rank));
  for (uint32_t other = 0; other < job.members().size(); ++other) {
    if (job.members()[other].state == Member::State::kLeft) {
      send(member.connection, peer_left(other));
    }
  }
  release_barriers(job);
}

// Policy partial, where other boxes are: ranks that are missing here may be going on with one that
// has taken over, without those that are here. Then only the greater part may.
bool JobRegistry::may_do_without_missing(const Job& job) const {
  const bool may_be_split = job.spec().may_move() && parts_.has_other_boxes(job.spec().name);
  return !may_be_split || job.has_majority();
}

std::string JobRegistry::no_majority(const Job& job) const {
  if (job.spec().on_worker_lost != LostPolicy::kPartial || may_do_without_missing(job)) return "";
  return "; the ranks that are left are no majority, so that others may be going on at another box";
}

// Policy partial: the job goes on without a rank that does not come back.
void JobRegistry::exclude(Job& job, uint32_t rank, uint64_t now_ns) {
  Member& member = job.members()[rank];
  const auto rounds = job.open_rounds(host_);
  if (!job.copies_owed(rank, rounds).empty()) {
    gather_again(job, pipeline::kNoRank, now_ns, "job_gathers_again",
                 job.spec().title() + ": rank " + std::to_string(rank) +
                     " was lost before it had given back what it alone had");
    return;
  }
  const bool has_weights = std::find(rounds.begin(), rounds.end(), 0u) == rounds.end();
  if (job.spec().mode == pipeline::Mode::kOptimize && rank == 0 && !has_weights) {
    fail_job(job, {ErrorCode::kWorkerLost, job.spec().title() + ": rank 0 was lost (" +
                                               member.lost_reason +
                                               ") before it had given its initial weights"});
    return;
  }
  job.exclude(host_, spis_, rank);
  member.state = Member::State::kExcluded;
  ++totals_.workers_excluded;
  note(Severity::kWarning, "worker_excluded",
       job.spec().title() + ": rank " + std::to_string(rank) + " (" + member.peer + ") was lost (" +
           member.lost_reason + ") and did not come back; " +
           std::to_string(job.count(Member::State::kJoined)) + " go on without it");
  tell_membership(job);
  share_credit();
  release_barriers(job);
}

void JobRegistry::tell_membership(const Job& job) {
  proto::BoxMessage message;
  proto::MembershipUpdate& membership = *message.mutable_membership();
  membership.set_generation(job.generation());
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    if (job.members()[rank].state == Member::State::kExcluded) membership.add_absent_ranks(rank);
  }
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined) send(member.connection, message);
  }
}

// A rank that alone held what others need is gone, a new one needs what only others hold, or a copy
// begins anew: they say once more what they have, and the job goes on from that. Their connections
// are closed without a word, as when a box is lost.
void JobRegistry::gather_again(Job& job, uint32_t but_rank, uint64_t now_ns, const char* event,
                               std::string why) {
  note(Severity::kWarning, event, std::move(why));
  keep_state(job);
  close(job);
  job.begin_again(now_ns);
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    Member& member = job.members()[rank];
    if (rank == but_rank) continue;
    if (member.state == Member::State::kJoined) {
      connections_[member.connection].job = nullptr;
      actions_.push_back({Action::Kind::kClose, member.connection, {}});
    }
    member = {};
  }
  share_credit();
  remove_if_over(job);
}

void JobRegistry::lose(Job& job, uint32_t rank, const std::string& reason, uint64_t now_ns) {
  Member& member = job.members()[rank];
  if (!job.running()) {
    member = {};  // the rank may join again
    remove_if_over(job);
    return;
  }
  ++totals_.workers_lost;
  member.state = Member::State::kLost;
  member.connection = 0;
  member.lost_ns = now_ns;
  member.lost_reason = reason;
  note(Severity::kWarning, "worker_lost",
       job.spec().title() + ": rank " + std::to_string(rank) + " (" + member.peer +
           ") lost: " + reason);
  if (job.spec().on_worker_lost == LostPolicy::kAbort) {
    fail_job(job, {ErrorCode::kWorkerLost, job.spec().title() + ": rank " + std::to_string(rank) +
                                               " (" + member.peer + ") was lost (" + reason + ")"});
    return;
  }
  remove_if_over(job);
}

void JobRegistry::on_leave(ConnectionId id, Connection& connection) {
  Job& job = *connection.job;
  Member& leaver = job.members()[connection.rank];
  leaver.state = Member::State::kLeft;
  leaver.connection = 0;
  connection.job = nullptr;
  actions_.push_back({Action::Kind::kClose, id, {}});
  if (job.running()) {
    for (const Member& member : job.members()) {
      if (member.state == Member::State::kJoined)
        send(member.connection, peer_left(connection.rank));
    }
    release_barriers(job);
  } else {
    leaver = {};  // still gathering: the rank may join again
  }
  remove_if_over(job);
}

void JobRegistry::on_barrier(Connection& connection, const proto::Barrier& barrier) {
  connection.job->members()[connection.rank].barrier_sequence = barrier.sequence();
  release_barriers(*connection.job);
}

// Everybody who is still in the job has asked for it. A process in a lost rank's place may come to
// a barrier that the others passed with its predecessor before they left.
void JobRegistry::release_barriers(Job& job) {
  uint64_t reached = UINT64_MAX;
  for (const Member& member : job.members()) {
    if (member.state != Member::State::kExcluded && member.state != Member::State::kLeft) {
      reached = std::min(reached, member.barrier_sequence);
    }
  }
  if (reached == UINT64_MAX || reached <= job.barrier_released) return;
  job.barrier_released = reached;
  proto::BoxMessage message;
  message.mutable_barrier_released()->set_sequence(reached);
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined) send(member.connection, message);
  }
}

void JobRegistry::tick_gathering(Job& job, uint64_t now_ns) {
  const std::string name = job.spec().title();
  if (job.epoch_awaited && now_ns - job.created_ns() > job.join_timeout_ns) {
    fail_job(job, {ErrorCode::kUnavailable, name + ": " + job.epoch_awaited->message});
    return;
  }
  if (job.transfer && tick_transfer(job)) return;
  if (job.restoring != 0) return;
  if (job.relay && job.all_joined() && !job.epoch_awaited) return;  // it has a deadline of its own
  if (job.epoch_awaited && job.all_joined()) {
    start_job(job);
    return;
  }
  if (job.recovering()) {
    // The ranks do not all notice at once that the box was lost.
    const uint64_t waited_ns = now_ns - job.recovering_since_ns;
    if (waited_ns <= job.lost_timeout_ns + options_.dead_after_ns) return;
    const bool some_are_ready =
        std::any_of(job.members().begin(), job.members().end(),
                    [](const Member& member) { return member.resumes && Job::ready(member); });
    if (job.spec().on_worker_lost != LostPolicy::kPartial || !some_are_ready ||
        !may_do_without_missing(job)) {
      fail_job(job,
               {ErrorCode::kWorkerLost,
                name + ": the box was lost, and after " + in_seconds(waited_ns) + " " +
                    job.ranks(Member::State::kAbsent) + " did not come back" + no_majority(job)});
      return;
    }
    start_job(job);
    return;
  }
  const uint64_t waited_ns = now_ns - job.created_ns();
  if (waited_ns <= job.join_timeout_ns) return;
  const bool is_the_boxs = job.join_timeout_ns == options_.join_timeout_ns;
  fail_job(job, {ErrorCode::kTimeout,
                 name + ": " + std::to_string(job.count(Member::State::kAbsent)) + " of " +
                     std::to_string(job.spec().world_size) + " ranks have not joined after " +
                     in_seconds(waited_ns) +
                     (is_the_boxs ? " (the box's [control] join_timeout_s): " : ": ") +
                     job.ranks(Member::State::kAbsent)});
}

void JobRegistry::tick_job(Job& job, uint64_t now_ns) {
  if (!job.running()) {
    tick_gathering(job, now_ns);
    return;
  }
  job.tick_trace(host_, now_ns);
  if (job.spec().replicas > 0) {
    const JobKey part = key(job.spec());
    tick_backup(job);
    if (!jobs_.contains(part)) return;
  }
  if (job.opened_from && job.rounds_finished() > 0) settle_source(job);
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& member = job.members()[rank];
    if (member.state != Member::State::kLost) continue;
    const uint64_t lost_for_ns = now_ns - member.lost_ns;
    if (lost_for_ns < job.lost_timeout_ns) continue;
    if (job.spec().on_worker_lost == LostPolicy::kPartial &&
        job.count(Member::State::kJoined) > 0 && may_do_without_missing(job)) {
      exclude(job, rank, now_ns);
    } else {
      fail_job(job, {ErrorCode::kWorkerLost,
                     job.spec().title() + ": rank " + std::to_string(rank) + " (" + member.peer +
                         ") was lost " + in_seconds(lost_for_ns) + " ago (" + member.lost_reason +
                         ") and did not come back" + no_majority(job)});
    }
    return;  // the job may be gone; the next tick sees to the next rank
  }
}

// What only the box has must wait for ranks that are all lost; anything else they bring along.
void JobRegistry::remove_if_over(Job& job) {
  const bool was_running = job.running();
  const uint32_t lost = job.count(Member::State::kLost);
  if (job.count(Member::State::kJoined) > 0) return;
  const bool may_return = job.spec().sync.model == wire::SyncModel::kBsp;
  if (was_running && lost > 0 && job.spec().mode == pipeline::Mode::kOptimize && may_return) return;
  if (was_running) settle_source(job);
  if (job.spec().is_backup) return end(job);  // what it is a copy of may well go on
  if (was_running && lost > 0) {
    ++totals_.jobs_failed;
  } else if (was_running) {
    ++totals_.jobs_finished;
    note(Severity::kInfo, "job_finished", job.spec().title() + ": every rank has left");
  }
  end(job);
}

}  // namespace pbox::appliance
