// Who may join, and as what: a job's first member, one more, or one that comes back.
#include <algorithm>
#include <set>

#include "appliance/control/job_registry.h"
#include "appliance/control/sync_spec.h"
#include "base/clock.h"
#include "nic/wire/control_frame.h"

namespace pbox::appliance {
namespace {

// What a stranger says of itself, fit for a log: a line's worth of ASCII.
std::string printable(std::string text) {
  constexpr size_t kBytesMax = 64;
  if (text.size() > kBytesMax) text.resize(kBytesMax);
  for (char& character : text) {
    if (character < ' ' || character > '~') character = '?';
  }
  return text;
}

std::string rank_of(const proto::Join& join) {
  return "rank " + std::to_string(join.rank()) + " of job '" + join.job() + "'";
}

Error taken(const Member& member, const proto::Join& join) {
  return {ErrorCode::kAlreadyExists,
          rank_of(join) + " is taken by " + member.peer +
              (join.rejoins() ? ", which still shows signs of life; stop it, or wait until the box "
                                "has given it up ([control] worker_dead_after_ms)"
                              : "; give each worker its own rank")};
}

bool same_process(const Member& member, const proto::Join& join) {
  return join.incarnation() != 0 && member.incarnation == join.incarnation();
}

}  // namespace

void JobRegistry::on_join(ConnectionId id, Connection& connection, const proto::Join& join,
                          uint64_t now_ns) {
  if (shuts_down_) return actions_.push_back({Action::Kind::kClose, id, {}});  // it looks elsewhere
  auto job = Result<Job*>(
      Error{ErrorCode::kAlreadyExists, "this connection has joined already; open another one"});
  if (connection.job == nullptr) {
    auto other_owner = Result<std::optional<proto::PartPlace>>(std::nullopt);
    if (!join.is_backup()) {
      other_owner = parts_.other_owner(join.job(), join.part(), std::max(1u, join.parts()));
    }
    if (other_owner && *other_owner) return send_to(id, **other_owner);
    job = other_owner ? admit(join, now_ns) : other_owner.error();
  }
  if (!job) {
    ++totals_.joins_refused;
    note(RegistryEvent::Severity::kWarning, "join_refused",
         connection.peer + ": " + job.error().message);
    refuse(id, job.error());
    return;
  }
  connection.job = *job;
  connection.rank = join.rank();
  seat(id, connection, join, now_ns);
}

void JobRegistry::seat(ConnectionId id, Connection& connection, const proto::Join& join,
                       uint64_t now_ns) {
  Job& job = *connection.job;
  Member& member = job.members()[join.rank()];
  if (member.state == Member::State::kJoined) {  // the connection before, which is half open
    connections_[member.connection].job = nullptr;
    actions_.push_back({Action::Kind::kClose, member.connection, {}});
  }
  member.connection = id;
  member.peer = connection.peer;
  member.path_mtu = join.path_mtu();
  member.ipv6 = connection.ipv6;
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
  member.barrier_sequence = join.resumes() ? join.barrier_sequence() : job.barrier_released;
  member.barriers_released = join.resumes() ? join.barriers_released() : 0;
  member.consumed.clear();
  member.lacks.clear();
  member.stated = false;
  member.learning_rates_set = join.resumes() ? join.learning_rates_set() : 0;
  member.learning_rate = join.learning_rate();
  member.absent.assign(join.absent_ranks().begin(), join.absent_ranks().end());
  note(RegistryEvent::Severity::kDebug, "worker_joined",
       "job '" + join.job() + "': rank " + std::to_string(join.rank()) + " of " +
           std::to_string(join.world_size()) + " (" + member.peer + ", path MTU " +
           std::to_string(join.path_mtu()) + ")" +
           (join.resumes() ? ", resumes from epoch " + std::to_string(join.epoch()) : ""));
  if (job.running()) {
    readmit(job, join.rank(), now_ns);
    return;
  }
  member.state = Member::State::kJoined;
  if (join.resumes() && job.recovering_since_ns == 0) job.recovering_since_ns = now_ns;
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& other = job.members()[rank];
    if (other.resumes && job.left_behind(rank, other.told())) send_away(job, rank);
  }
  if (job.all_joined()) start_job(job);
}

// What a resuming worker has consumed. In a job that runs here nobody needs to know.
void JobRegistry::on_rounds(ConnectionId id, Connection& connection,
                            const proto::RoundMap& rounds) {
  Job& job = *connection.job;
  if (job.running()) return;
  Member& member = job.members()[connection.rank];
  const uint64_t stated = member.consumed.size() + static_cast<uint64_t>(rounds.rounds_size());
  const bool fits = member.resumes && !member.stated &&
                    rounds.first_chunk() == member.consumed.size() &&
                    (rounds.last() ? stated == job.chunk_count() : stated < job.chunk_count());
  const bool names_chunks = std::all_of(rounds.lacks().begin(), rounds.lacks().end(),
                                        [&](uint32_t chunk) { return chunk < stated; });
  if (!fits || !names_chunks) {
    refuse(id, {ErrorCode::kInvalidArgument,
                "rank " + std::to_string(connection.rank) + " states rounds of chunks up to " +
                    std::to_string(stated) + "; the job has " + std::to_string(job.chunk_count()) +
                    ", each to be stated once, by a worker that resumes"});
    return;
  }
  member.consumed.insert(member.consumed.end(), rounds.rounds().begin(), rounds.rounds().end());
  member.lacks.resize(member.consumed.size());
  for (const uint32_t chunk : rounds.lacks()) member.lacks[chunk] = true;
  member.stated = rounds.last();
  if (job.all_joined()) start_job(job);
}

Status JobRegistry::check_version(uint32_t protocol_version, const std::string& software) {
  if (protocol_version == wire::kControlProtocolVersion) return ok_status();
  return Error{ErrorCode::kVersionMismatch,
               "this worker (" + printable(software) + ") speaks control protocol " +
                   std::to_string(protocol_version) + ", the box speaks " +
                   std::to_string(wire::kControlProtocolVersion) +
                   "; use the libpbox of the box's release"};
}

Result<Job*> JobRegistry::admit(const proto::Join& join, uint64_t now_ns) {
  const Status speaks = check_version(join.protocol_version(), join.software());
  if (!speaks) return speaks.error();
  auto spec = parse_join(join, options_.job_limits);
  if (!spec) return spec.error();
  spec->relayed = upstream_ != nullptr && !spec->is_backup;
  if (spec->relayed) {
    if (const Status status = check_relayed(*spec); !status) return status.error();
  }
  if (spec->replicas > 0) {
    if (const Status status = check_replicas(*spec); !status) return status.error();
    if (backups_ == nullptr) {
      return Error{ErrorCode::kInvalidArgument,
                   spec->title() +
                       ": replicas 1 needs other boxes that this one knows; give them a common "
                       "store ([cluster] store = etcd), or set replicas 0"};
    }
  }
  auto found = jobs_.find(key(*spec));
  if (found != jobs_.end() && found->second->running() && !join.resumes() && !join.rejoins() &&
      found->second->count(Member::State::kJoined) == 0) {
    fail_job(*found->second, {ErrorCode::kWorkerLost,
                              spec->title() + ": every rank was lost, and new ones begin again"});
    found = jobs_.end();
  }
  if (found == jobs_.end()) return make_job(join, std::move(*spec), now_ns);
  if (const Status status = check_member(*found->second, *spec, join); !status) {
    return status.error();
  }
  return found->second.get();
}

Result<Job*> JobRegistry::make_job(const proto::Join& join, JobSpec spec, uint64_t now_ns) {
  std::set<std::string> names;
  for (const auto& [key, job] : jobs_) names.insert(key.first);
  if (names.size() >= options_.jobs_max && !names.contains(spec.name)) {
    return Error{ErrorCode::kResourceExhausted,
                 "the box serves " + std::to_string(names.size()) +
                     " jobs already ([jobs] max = " + std::to_string(options_.jobs_max) + ")"};
  }
  auto job = std::make_unique<Job>(std::move(spec), now_ns, pipeline_loads());
  if (const Status status = check_gathering(*job, join); !status) return status.error();
  if (const Status status = check_memory(*job); !status) return status.error();
  job->join_timeout_ns = options_.join_timeout_ns;
  if (const uint64_t wanted_ns = join.join_timeout_ms() * kNanosPerMilli; wanted_ns > 0) {
    job->join_timeout_ns = std::min(wanted_ns, options_.join_timeout_ns);
  }
  job->lost_timeout_ns = join.lost_timeout_ms() > 0 ? join.lost_timeout_ms() * kNanosPerMilli
                                                    : options_.lost_timeout_ns;
  Job* admitted = job.get();
  jobs_[key(admitted->spec())] = std::move(job);
  note(RegistryEvent::Severity::kDebug, "job_admitted",
       admitted->spec().title() + ": " + admitted->placement());
  return admitted;
}

// Of a job that is not among jobs_ yet: does it fit beside them, on the box and on each pipeline?
Status JobRegistry::check_memory(const Job& job) const {
  const uint64_t wanted = job.footprint();
  // What it has left here goes back into it.
  const auto left = kept_.find(key(job.spec()));
  const uint64_t own = left == kept_.end() ? 0 : left->second.state.bytes();
  const uint64_t taken = memory_taken_bytes() - own;
  if (wanted > options_.job_memory_bytes || taken > options_.job_memory_bytes - wanted) {
    return Error{ErrorCode::kResourceExhausted,
                 job.spec().title() + " needs " + std::to_string(wanted) +
                     " bytes; other jobs hold " + std::to_string(taken) + " of the " +
                     std::to_string(options_.job_memory_bytes) +
                     " that jobs may take ([memory] job_share)"};
  }
  for (uint32_t index = 0; index < options_.arena_bytes.size(); ++index) {
    const uint64_t limit = options_.arena_bytes[index];
    uint64_t taken_here = 0;
    for (const auto& [name, other] : jobs_) taken_here += other->footprint_on(index);
    const uint64_t free = limit - std::min(limit, taken_here);
    if (job.footprint_on(index) <= free) continue;
    const int node = host_.info(index).numa_node;
    return Error{
        ErrorCode::kResourceExhausted,
        job.spec().title() + " needs " + std::to_string(job.footprint_on(index)) +
            " bytes on pipeline " + std::to_string(index) +
            (node == kAnyNumaNode ? "" : " (NUMA node " + std::to_string(node) + ")") + "; " +
            std::to_string(free) + " of " + std::to_string(limit) +
            " are free there. Wait for other jobs, raise [memory] job_share, or take pipelines off "
            "a node that has less memory than others ([pipeline] cores)"};
  }
  return ok_status();
}

Status JobRegistry::check_member(const Job& job, const JobSpec& spec,
                                 const proto::Join& join) const {
  if (const auto difference = first_difference(job.spec(), spec)) {
    return Error{ErrorCode::kMismatch,
                 rank_of(join) + " differs from the ranks before it: " + *difference};
  }
  return job.running() ? check_return(job, join) : check_gathering(job, join);
}

// Into a job that is yet to start, or to start again on this box.
Status JobRegistry::check_gathering(const Job& job, const proto::Join& join) const {
  const Member& member = job.members()[join.rank()];
  if (member.state == Member::State::kJoined && !same_process(member, join)) {
    return taken(member, join);
  }
  const bool of_old_job = join.resumes() || join.rejoins();
  for (const Member& other : job.members()) {
    if (other.state != Member::State::kJoined || &other == &member) continue;
    if ((other.resumes || other.rejoins) == of_old_job) continue;
    return Error{ErrorCode::kMismatch,
                 rank_of(join) +
                     (of_old_job ? " was in this job before, which others begin anew; "
                                 : " is new in a job that others go on with; set "
                                   "rejoin to take a lost rank's place, or ") +
                     "start all ranks again"};
  }
  if (!join.resumes()) return ok_status();
  const bool is_of_here = join.box().empty() || join.box() == options_.box_name;
  const bool nobody_has_it = is_of_here && !kept_.contains(key(job.spec()));
  if (!job.spec().may_move() || (!job.spec().survives_its_box() && nobody_has_it)) {
    return Error{
        ErrorCode::kBoxLost,
        rank_of(join) + " cannot go on: the box that had the job's state was lost (" +
            (job.spec().relayed ? "its sums went on to another box, [upstream]" : "recovery none") +
            "); start all ranks again, from a checkpoint"};
  }
  if (job.left_behind(join.rank(), {join.epoch(), join.generation()})) {
    return Error{ErrorCode::kWorkerLost, rank_of(join) + " was lost and the job went on without " +
                                             "it; start it again with rejoin"};
  }
  constexpr uint32_t kAheadMax = 1u << 24;  // nobody may use all epochs up
  if (join.epoch() > epochs_.newest() && join.epoch() - epochs_.newest() > kAheadMax) {
    return Error{ErrorCode::kInvalidArgument, rank_of(join) + " states epoch " +
                                                  std::to_string(join.epoch()) +
                                                  ", which no box has given; start it again"};
  }
  return ok_status();
}

// Into a job that runs here.
Status JobRegistry::check_return(const Job& job, const proto::Join& join) const {
  const Member& member = job.members()[join.rank()];
  // But for one that never heard that it had been admitted here.
  if (join.resumes() && join.epoch() == job.epoch() &&
      job.spec().sync.model != wire::SyncModel::kBsp) {
    return Error{ErrorCode::kWorkerLost,
                 rank_of(join) + " was lost (its connection ended), and a job of sync.model " +
                     to_string(job.spec().sync.model) +
                     " goes on meanwhile without taking a rank back; start all ranks again"};
  }
  switch (member.state) {
    case Member::State::kJoined:
      if (!same_process(member, join)) return taken(member, join);
      break;
    case Member::State::kLeft:
      return Error{ErrorCode::kAlreadyExists,
                   rank_of(join) +
                       " has left while other ranks are still in the job; wait for them to "
                       "leave or use another job name"};
    case Member::State::kExcluded:
      if (join.rejoins()) return ok_status();
      return Error{ErrorCode::kWorkerLost,
                   rank_of(join) + " was lost (" + member.lost_reason +
                       ") and the job has gone on without it; start it again with rejoin"};
    case Member::State::kLost:
    case Member::State::kAbsent: break;
  }
  if (join.rejoins()) return ok_status();
  if (!join.resumes()) {
    return Error{ErrorCode::kAlreadyExists,
                 rank_of(join) + " was lost (" + member.lost_reason +
                     ") and the others still wait for it; set rejoin to take its place, or start "
                     "it again when all ranks have stopped"};
  }
  // Of an earlier epoch is also who was admitted to this one and never heard its SESSION.
  if (join.epoch() == job.epoch() || same_process(member, join)) return ok_status();
  return Error{ErrorCode::kWorkerLost, rank_of(join) + " is of epoch " +
                                           std::to_string(join.epoch()) + ", the job of epoch " +
                                           std::to_string(job.epoch()) +
                                           ": it was left behind; start it again with rejoin"};
}

}  // namespace pbox::appliance
