#include "appliance/control/job_admission.h"

#include <algorithm>

#include "appliance/control/part_memory.h"
#include "appliance/control/refusals.h"
#include "appliance/control/sync_spec.h"
#include "appliance/control/version_checks.h"
#include "base/check.h"
#include "base/clock.h"
#include "nic/wire/tenant.h"

namespace pbox::control {
namespace {

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

Result<Job*> JobAdmission::admit(const proto::WorkerMessage& message,
                                 const std::optional<tls::Identity>& identity) {
  const proto::Join& join = message.join();
  auto spec = parse_join(join, context_.options.job_limits);
  if (!spec) return spec.error();
  for (const wire::AddedField* field :
       wire::used_fields(message, 0, context_.options.added_fields)) {
    if (field->scope == wire::AddedField::Scope::kJob) spec->added_fields.push_back(field);
  }
  spec->relayed = abilities_.has_upstream && !spec->is_backup;
  if (const Status status = check_abilities(*spec); !status) return status.error();
  Job* job = context_.jobs.find(key_of(*spec));
  // Every rank of an elastic job sets `rejoins`, so there it does not show that the rank was lost.
  const bool is_new = !join.resumes() && (!join.rejoins() || spec->is_elastic());
  const bool begins_anew = job != nullptr && job->running() && is_new &&
                           job->members().count(Member::State::kJoined) == 0;
  if (begins_anew) {
    owner_.fail(*job, {ErrorCode::kWorkerLost,
                       spec->title() + ": every rank was lost, and a new run has begun"});
    job = nullptr;
  }
  if (job == nullptr) return make_job(join, std::move(*spec));
  const Status alike = check_versions_of_ranks(*job, message, context_.options.added_fields);
  if (!alike) return alike.error();
  if (const Status status = check_member(*job, *spec, join); !status) return status.error();
  if (const Status status = check_seat(*job, join, identity); !status) return status.error();
  return job;
}

Status JobAdmission::check_abilities(const JobSpec& spec) const {
  if (spec.relayed) {
    if (const Status status = check_relayed(spec); !status) return status;
  }
  if (spec.replicas == 0) return ok_status();
  if (const Status status = check_replicas(spec); !status) return status;
  if (abilities_.knows_backups) return ok_status();
  return Error{ErrorCode::kInvalidArgument,
               spec.title() +
                   ": replicas 1 needs other boxes that this one knows; give them a common store "
                   "([cluster] store = etcd), or set replicas 0"};
}

Result<Job*> JobAdmission::make_job(const proto::Join& join, JobSpec spec) {
  const RegistryOptions& options = context_.options;
  if (const Status status = check_job_slots(spec); !status) return status.error();
  JobTimeouts timeouts{.join_ns = options.join_timeout_ns, .lost_ns = options.lost_timeout_ns};
  if (const uint64_t wanted_ns = join.join_timeout_ms() * kNanosPerMilli; wanted_ns > 0) {
    timeouts.join_ns = std::min(wanted_ns, options.join_timeout_ns);
  }
  timeouts.stated_lost_ms = join.lost_timeout_ms();
  if (join.lost_timeout_ms() > 0) timeouts.lost_ns = join.lost_timeout_ms() * kNanosPerMilli;
  const std::vector<PipelineUse> uses = pipeline_use(context_.jobs, host_.count());
  // Checked before the chunks are planned, because a short JOIN can describe very many of them.
  const uint64_t least = one_shard_bytes(spec) + control_bytes(spec);
  if (const Status status = check_total(spec, least); !status) return status.error();
  const Placement placement = choose_pipelines(spec, uses);
  auto job = std::make_unique<Job>(std::move(spec), context_.now_ns, placement, timeouts);
  if (const Status status = check_gathering(*job, join); !status) return status.error();
  if (const Status status = check_tenant(job->spec(), *job); !status) return status.error();
  if (const Status status = check_places(*job, uses); !status) return status.error();
  if (const Status status = check_memory(*job, uses); !status) return status.error();
  Job& admitted = context_.jobs.add(std::move(job));
  context_.note(RegistryEvent::Severity::kDebug, "job_admitted",
                admitted.spec().title() + ": " + admitted.placement(), admitted.spec().name);
  return &admitted;
}

Error JobAdmission::no_room(const JobSpec& spec, const std::string& wanted,
                            const std::string& figures) const {
  ++context_.totals.refusals;
  const std::string needs = spec.title() + " needs " + wanted + "; ";
  if (context_.options.keys == nullptr) return {ErrorCode::kResourceExhausted, needs + figures};
  context_.note(RegistryEvent::Severity::kInfo, "no_room", needs + figures, spec.name);
  return {ErrorCode::kResourceExhausted,
          needs +
              "the box has no room for it now. Wait for other jobs, or ask its operator: the "
              "log of the box has the figures (no_room)"};
}

// The parts of a job share a slot. A backup copy needs none: it belongs to another box's job.
Status JobAdmission::check_job_slots(const JobSpec& spec) const {
  const uint32_t slots_max = context_.options.jobs_max;
  const uint32_t taken = job_slots_taken(context_.jobs);
  if (spec.is_backup || taken < slots_max || context_.jobs.has_job(spec.name)) return ok_status();
  return no_room(spec, "a place among the jobs of the box",
                 "the box serves " + std::to_string(taken) +
                     " jobs already ([jobs] max = " + std::to_string(slots_max) + ")");
}

// Checks the bounds of the tenant, except the one on memory, which check_total() checks.
Status JobAdmission::check_tenant(const JobSpec& spec, const Job& job) const {
  const std::string_view tenant = wire::tenant_of(spec.name);
  const TenantBounds& bounds = context_.options.tenants.of(tenant);
  if (bounds.jobs == 0 && bounds.sessions == 0) return ok_status();
  const TenantUse use = tenant_uses(context_.jobs)[std::string(tenant)];
  const bool is_new = !spec.is_backup && !context_.jobs.has_job(spec.name);
  if (const Status status = check_bound(tenant, "jobs", "jobs", bounds.jobs, use.jobs, is_new);
      !status) {
    return status;
  }
  const uint64_t sessions = job.members().size() * job.shards().pipelines().size();
  return check_bound(tenant, "sessions", "sessions", bounds.sessions, use.sessions, sessions);
}

// A job in one part uses all pipelines. A part of a divided job, and a backup copy, get the least
// loaded pipeline that has room. A backup copy that fits on none is spread over all.
Placement JobAdmission::choose_pipelines(const JobSpec& spec,
                                         const std::vector<PipelineUse>& uses) const {
  Placement placement;
  for (const PipelineUse& use : uses) placement.loads_bytes.push_back(use.round_bytes);
  if (spec.parts == 1 && !spec.is_backup) return placement;
  const uint64_t wanted = one_shard_bytes(spec);
  for (uint32_t pipeline = 0; pipeline < uses.size(); ++pipeline) {
    const PipelineUse& use = uses[pipeline];
    const bool fits = use.shards < limits::kShardsPerPipelineMax &&
                      use.sessions + spec.world_size <= limits::kSessionsPerPipelineMax &&
                      free_on_pipeline(context_.options, pipeline, use) >= wanted;
    const bool is_better =
        !placement.pipeline || use.round_bytes < uses[*placement.pipeline].round_bytes;
    if (fits && is_better) placement.pipeline = pipeline;
  }
  return placement;
}

// The job is not in the table yet. It must fit beside the jobs that are.
Status JobAdmission::check_places(const Job& job, const std::vector<PipelineUse>& uses) const {
  for (const uint32_t pipeline : job.shards().pipelines()) {
    const PipelineUse& use = uses[pipeline];
    if (use.shards >= limits::kShardsPerPipelineMax) {
      return no_room(job.spec(), "a place on pipeline " + std::to_string(pipeline),
                     "it serves " + std::to_string(use.shards) +
                         " parts of jobs and can serve no more; wait for other jobs to end");
    }
    if (use.sessions + job.members().size() > limits::kSessionsPerPipelineMax) {
      return no_room(
          job.spec(),
          std::to_string(job.members().size()) + " sessions on pipeline " +
              std::to_string(pipeline),
          "the box has no free session there for some of them: " + std::to_string(use.sessions) +
              " of " + std::to_string(limits::kSessionsPerPipelineMax) + " are in use");
    }
  }
  return ok_status();
}

Status JobAdmission::check_memory(const Job& job, const std::vector<PipelineUse>& uses) const {
  if (const Status status = check_total(job.spec(), job.footprint()); !status) return status;
  return check_arenas(job, uses);
}

Status JobAdmission::check_total(const JobSpec& spec, uint64_t wanted) const {
  // This box may keep a state from which the part is to open again. The state is not counted here,
  // because it is released once the ranks are back. Until then the box may exceed its bound by it.
  const uint64_t taken = owner_.memory_taken_bytes({}) - handover_.kept_bytes(key_of(spec));
  const uint64_t limit = context_.options.job_memory_bytes;
  if (wanted > limit || taken > limit - wanted) {
    return no_room(spec, std::to_string(wanted) + " bytes",
                   "other jobs hold " + std::to_string(taken) + " of the " + std::to_string(limit) +
                       " bytes that jobs may take ([memory] job_share)");
  }
  const std::string_view tenant = wire::tenant_of(spec.name);
  const uint64_t bound = context_.options.tenants.of(tenant).memory_bytes;
  if (bound == 0) return ok_status();
  const uint64_t held = owner_.memory_taken_bytes(tenant) - handover_.kept_bytes(key_of(spec));
  return check_bound(tenant, "bytes of memory", "memory_mib", bound, held, wanted);
}

Status JobAdmission::check_arenas(const Job& job, const std::vector<PipelineUse>& uses) const {
  const auto& limits = context_.options.arena_bytes;
  for (uint32_t index = 0; index < limits.size(); ++index) {
    const uint64_t free = free_on_pipeline(context_.options, index, uses[index]);
    if (job.footprint_on(index) <= free) continue;
    const int node = host_.info(index).numa_node;
    return no_room(
        job.spec(),
        std::to_string(job.footprint_on(index)) + " bytes on pipeline " + std::to_string(index) +
            (node == kAnyNumaNode ? "" : " (NUMA node " + std::to_string(node) + ")"),
        std::to_string(free) + " of " + std::to_string(limits[index]) +
            " are free there. Wait for other jobs, raise [memory] job_share, or take pipelines off "
            "a node that has less memory than others ([pipeline] cores)");
  }
  return ok_status();
}

Status JobAdmission::check_member(const Job& job, const JobSpec& spec,
                                  const proto::Join& join) const {
  if (const auto difference = first_difference(job.spec(), spec)) {
    return Error{ErrorCode::kMismatch,
                 rank_of(join) + " differs from the ranks before it: " + *difference};
  }
  return job.running() ? check_return(job, join) : check_gathering(job, join);
}

// A rank belongs to the identity with which it joined, until the job is over or the rank leaves
// before the start. Renewed keys state the same identity.
Status JobAdmission::check_seat(const Job& job, const proto::Join& join,
                                const std::optional<tls::Identity>& identity) {
  const auto& owner = job.members()[join.rank()].identity;
  if (!owner || owner == identity) return ok_status();
  return Error{ErrorCode::kInvalidArgument,
               rank_of(join) + " belongs to " + tls::to_uri(*owner) + "; " +
                   (identity ? "the keys of " + tls::to_uri(*identity) : "a peer without keys") +
                   " cannot take its place: use keys of the same identity"};
}

// Checks a JOIN of a job that has yet to start, or to start again on this box.
Status JobAdmission::check_gathering(const Job& job, const proto::Join& join) const {
  PBOX_CHECK(join.rank() < job.members().size());  // parse_join() has checked the rank
  const Member& member = job.members()[join.rank()];
  if (member.state == Member::State::kJoined && !same_process(member, join)) {
    return taken(member, join);
  }
  const bool was_in_job = join.resumes() || join.rejoins();
  for (const Member& other : job.members()) {
    if (other.state != Member::State::kJoined || &other == &member) continue;
    if ((other.resumes || other.rejoins) == was_in_job) continue;
    return Error{
        ErrorCode::kMismatch,
        rank_of(join) +
            (was_in_job ? " was in this job before, but other ranks begin a new run; "
                        : " is new, but the other ranks resume a running job; set rejoin to "
                          "take a lost rank's place, or ") +
            "start all ranks again"};
  }
  return join.resumes() ? check_resuming(job, join) : ok_status();
}

Status JobAdmission::check_resuming(const Job& job, const proto::Join& join) const {
  const bool is_of_here = join.box().empty() || join.box() == context_.options.box_name;
  const bool no_box_has_it = is_of_here && !handover_.keeps(key_of(job.spec()));
  if (!job.spec().may_move() || (!job.spec().survives_its_box() && no_box_has_it)) {
    return Error{ErrorCode::kBoxLost,
                 rank_of(join) + " cannot go on: the box that had the job's state was lost (" +
                     (job.spec().relayed ? "its sums went on to another box, [upstream]"
                      : job.spec().is_relaxed()
                          ? std::string("sync.model ") + to_string(job.spec().relaxed_model)
                          : "recovery none") +
                     "); start all ranks again, from a checkpoint"};
  }
  if (job.members().left_behind(join.rank(), {join.epoch(), join.generation()})) {
    return Error{ErrorCode::kWorkerLost,
                 rank_of(join) +
                     " was lost and the job has gone on without it; start it again "
                     "with rejoin"};
  }
  // A worker must not use up the epochs by stating one that is far too high.
  constexpr uint32_t kAheadMax = 1u << 24;
  if (join.epoch() > epochs_.newest() && join.epoch() - epochs_.newest() > kAheadMax) {
    return Error{ErrorCode::kInvalidArgument, rank_of(join) + " states epoch " +
                                                  std::to_string(join.epoch()) +
                                                  ", which no box has given; start it again"};
  }
  return ok_status();
}

// Checks a JOIN of a job that runs here.
Status JobAdmission::check_return(const Job& job, const proto::Join& join) const {
  PBOX_CHECK(join.rank() < job.members().size());
  const Member& member = job.members()[join.rank()];
  switch (member.state) {
    case Member::State::kJoined:
      if (!same_process(member, join)) return taken(member, join);
      break;
    case Member::State::kLeft:
      return Error{ErrorCode::kAlreadyExists,
                   rank_of(join) +
                       " has left while other ranks are still in the job; wait for them to leave, "
                       "or use another job name"};
    case Member::State::kExcluded:
      if (join.rejoins() && job.spec().excludes_for_good()) {
        return excluded_for_good(job.spec(), join.rank(), member.lost_reason);
      }
      if (join.rejoins()) return ok_status();
      return Error{ErrorCode::kWorkerLost,
                   rank_of(join) +
                       (member.has_left ? " has left" : " was lost (" + member.lost_reason + ")") +
                       " and the job has gone on without it; start it again with rejoin"};
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
  // The same process may state an earlier epoch, if it was admitted to this one but never received
  // its SESSION.
  if (join.epoch() == job.epoch() || same_process(member, join)) return ok_status();
  return Error{ErrorCode::kWorkerLost,
               rank_of(join) + " has epoch " + std::to_string(join.epoch()) +
                   ", but the job is in epoch " + std::to_string(job.epoch()) +
                   ": the rank was left behind; start it again with rejoin"};
}

}  // namespace pbox::control
