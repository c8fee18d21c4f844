#include "appliance/control/job_registry.h"

#include <algorithm>
#include <set>

#include "appliance/control/authorise.h"
#include "appliance/control/cut_off.h"
#include "appliance/control/refusals.h"
#include "appliance/control/version_checks.h"
#include "base/check.h"
#include "base/clock.h"
#include "nic/wire/tenant.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

// A connection that only asks questions may stay for this many times as long as a silent one.
constexpr uint64_t kAskingTimeouts = 6;

proto::BoxMessage data_addresses(const PipelineHost& host) {
  std::set<std::string> addresses;
  for (uint32_t index = 0; index < host.count(); ++index) {
    addresses.insert(host.info(index).address);
  }
  proto::BoxMessage message;
  proto::DataAddresses& answer = *message.mutable_data_addresses();
  for (const auto& address : addresses) answer.add_addresses(address);
  const wire::VersionRange versions;
  answer.set_oldest_version(versions.oldest);
  answer.set_newest_version(versions.newest);
  return message;
}

void refuse_message(RegistryContext& context, ConnectionId id, const Connection& peer,
                    const proto::WorkerMessage& message, const Error& why) {
  if (message.has_join()) return refuse_join(context, id, peer, why, &message.join());
  if (message.has_ask_part_map()) ++context.totals.joins_refused;
  context.connections.refuse(id, why);
}

// Refuses a message that the peer's keys do not allow, and logs and audits it. A JOIN is logged and
// audited by refuse_join().
void deny_message(RegistryContext& context, ConnectionId id, const Connection& peer,
                  const proto::WorkerMessage& message, const Error& why) {
  if (!message.has_join()) {
    context.note(Severity::kWarning, "message_denied", peer.peer + ": " + why.message);
    context.audit({.kind = audit::Kind::kMessageDenied, .reason = why.message}, &peer);
  }
  refuse_message(context, id, peer, message, why);
}

}  // namespace

JobRegistry::JobRegistry(const RegistryOptions& options, PipelineHost& host,
                         storage::Epochs& epochs, PartDirectory& parts,
                         snapshot::SnapshotStore* store, Upstream* upstream, BackupBoxes* backups)
    : context_(options),
      host_(host),
      parts_(parts),
      spis_(host.count(), options.draw),
      handover_(context_, parts, *this),
      snapshots_(context_, host, parts, store, *this),
      relays_(context_, upstream, *this),
      backups_(context_, parts, backups, *this),
      sessions_(context_, host),
      starter_(context_, host, spis_, epochs, *this,
               {handover_, snapshots_, relays_, backups_, sessions_, verdicts_}),
      admission_(context_, host, epochs, handover_, *this,
                 {.has_upstream = upstream != nullptr, .knows_backups = backups != nullptr}),
      requests_(context_, host),
      moves_(context_, host, *this),
      verdicts_(context_, host, parts, *this),
      guards_(context_, *this),
      mismatches_(context_, *this) {}

void JobRegistry::on_open(ConnectionId connection, const nic::Endpoint& peer, uint64_t now_ns,
                          std::optional<tls::Identity> identity) {
  context_.now_ns = now_ns;
  if (started_ns_ == 0) started_ns_ = now_ns;
  const bool is_tenant = identity && identity->role == tls::Role::kTenant;
  const std::string tenant = is_tenant ? identity->tenant : "";
  context_.connections.open(connection, peer, now_ns, std::move(identity));
  if (!is_tenant) return;
  const Status in_bounds =
      check_connections(tenant, context_.options.tenants, context_.connections, 0);
  if (in_bounds) return;
  refuse_join(context_, connection, *context_.connections.find(connection), in_bounds.error());
}

void JobRegistry::on_message(ConnectionId id, const std::string& body, uint64_t now_ns) {
  context_.now_ns = now_ns;
  Connection* connection = context_.connections.find(id);
  if (connection == nullptr) return;
  connection->heard_ns = now_ns;
  proto::WorkerMessage message;
  if (!message.ParseFromString(body)) {
    return context_.connections.refuse(
        id, {ErrorCode::kInvalidArgument,
             "a message was received that is not a PBox control message; check that this is the "
             "intended port"});
  }
  if (const Status speaks = check_versions(message, context_.options.added_fields); !speaks) {
    return refuse_message(context_, id, *connection, message, speaks.error());
  }
  if (connection->identity) {
    const tls::Identity& identity = *connection->identity;
    const Standing standing{
        .has_joined = connection->job != nullptr,
        .is_listed = identity.role == tls::Role::kBox && parts_.lists_box(identity.box)};
    const Status allowed = authorise(identity, message, standing);
    if (!allowed) return deny_message(context_, id, *connection, message, allowed.error());
  }
  if (message.has_join()) return on_join(id, *connection, message);
  if (answer_box(id, message)) return;
  if (connection->job == nullptr) {
    return context_.connections.refuse(
        id, {ErrorCode::kInvalidArgument, "the first message must be JOIN"});
  }
  switch (message.kind_case()) {
    case proto::WorkerMessage::kLeave: return on_leave(id, *connection, message.leave());
    case proto::WorkerMessage::kRounds: return on_rounds(id, *connection, message.rounds());
    case proto::WorkerMessage::kStepVerdict:
      return verdicts_.on_held(id, *connection, message.step_verdict());
    case proto::WorkerMessage::kSlotOperation:
      return mismatches_.on_answer(*connection, message.slot_operation());
    default: break;
  }
  requests_.handle(id, *connection, message);  // a newer worker may send kinds unknown here
}

// Answers the questions that need no JOIN. Returns false if the message is none of them.
bool JobRegistry::answer_box(ConnectionId id, const proto::WorkerMessage& message) {
  if (message.has_ask_data_addresses()) {
    proto::BoxMessage answer = data_addresses(host_);
    answer.mutable_data_addresses()->set_up_for_ms((context_.now_ns - started_ns_) /
                                                   kNanosPerMilli);
    const proto::AskDataAddresses& question = message.ask_data_addresses();
    if (!question.cut_off_job().empty()) {
      answer.mutable_data_addresses()->set_most_are_cut_off(
          note_cut_off(context_, question.cut_off_job(), question.cut_off_ranks()));
    }
    context_.connections.send(id, std::move(answer));
  } else if (message.has_ask_part_map()) {
    on_ask_part_map(id, message.ask_part_map());
  } else if (message.has_ask_state()) {
    on_ask_state(id, message.ask_state());
  } else if (message.has_ask_cut()) {
    on_ask_cut(id, message.ask_cut());
  } else if (message.has_ask_step()) {
    verdicts_.on_report(id, message.ask_step());
  } else if (message.has_ask_report()) {
    proto::BoxMessage answer;
    *answer.mutable_report() = report();
    context_.connections.send(id, std::move(answer));
  } else {
    return false;
  }
  return true;
}

// The answer may come later: it may need the cluster's store, or a question to a box that may be
// lost.
void JobRegistry::on_ask_part_map(ConnectionId id, const proto::AskPartMap& question) {
  // The name is checked because it becomes a key of the cluster's store.
  if (const Status valid = check_job_name(question.job()); !valid) {
    ++context_.totals.joins_refused;
    return context_.connections.refuse(id, valid.error());
  }
  parts_.ask(question, [this, id, alive = std::weak_ptr(context_.alive)](
                           const Result<proto::PartMap>& part_map) {
    if (alive.expired() || !context_.connections.contains(id)) return;
    if (!part_map) return context_.connections.refuse(id, part_map.error());
    proto::BoxMessage message;
    *message.mutable_part_map() = *part_map;
    context_.connections.send(id, std::move(message));
  });
}

// The box that asks has all ranks of the part, so the part is over here, whatever this box
// believes.
void JobRegistry::on_ask_state(ConnectionId id, const proto::AskState& question) {
  Job* job = context_.jobs.find({question.job(), question.part()});
  const bool is_copy = question.is_backup();
  const bool is_meant = job != nullptr && job->running() && job->spec().is_backup == is_copy &&
                        (is_copy || job->epoch() == question.epoch());
  if (is_meant) {
    context_.note(Severity::kInfo, "part_asked_for",
                  job->spec().title() +
                      (is_copy ? ", the backup copy of a part whose box was lost, is handed over "
                                 "to the box that has the part now"
                               : " goes on at another box, which asks for its state"),
                  job->spec().name);
    keep_state(*job);
    abandon(*job);
  }
  auto answer = handover_.answer(question, context_.connections.find(id));
  if (!answer) return context_.connections.refuse(id, answer.error());
  context_.connections.send(id, std::move(*answer));
}

void JobRegistry::on_ask_cut(ConnectionId id, const proto::AskCut& question) {
  auto progress = snapshots_.take_cut(question, context_.connections.find(id));
  if (!progress) return context_.connections.refuse(id, progress.error());
  proto::BoxMessage answer;
  *answer.mutable_cut_progress() = std::move(*progress);
  context_.connections.send(id, std::move(answer));
}

proto::BoxReport JobRegistry::report() const {
  proto::BoxReport report;
  for (proto::JobLoad& load : parts_.loads()) *report.add_loads() = std::move(load);
  std::set<std::string> names;
  for (const auto& [part, job] : context_.jobs) {
    if (!job->spec().is_backup) names.insert(part.first);
  }
  for (const std::string& name : names) report.add_jobs(name);
  const FreeCapacity free = free_capacity();
  report.set_memory_free_bytes(free.memory_bytes);
  report.set_largest_part_bytes(free.part_memory_bytes);
  report.set_jobs_free(free.job_slots);
  report.set_parts_free(free.shards);
  report.set_refusals(context_.totals.refusals);
  report.set_traffic_bytes_per_s(static_cast<uint64_t>(context_.options.traffic_bytes_per_s()));
  return report;
}

std::optional<RunningParts> JobRegistry::running(const std::string& name) const {
  std::optional<RunningParts> running;
  for (const Job* job : context_.jobs.parts_of(name)) {
    if (!job->running() || job->spec().is_backup) continue;
    if (!running) running.emplace();
    running->may_move = job->spec().may_move();
    for (const wire::AddedField* field : job->spec().added_fields) {
      running->protocol_version = std::max(running->protocol_version, field->since);
    }
    running->part_memory_bytes = std::max(running->part_memory_bytes, job->footprint());
  }
  return running;
}

void JobRegistry::on_closed(ConnectionId id, const std::string& reason, uint64_t now_ns) {
  context_.now_ns = now_ns;
  if (!context_.connections.contains(id)) return;
  const Connection connection = context_.connections.erase(id);
  PBOX_CHECK(connection.job == nullptr || connection.rank < connection.job->members().size());
  host_.disconnect(id);
  if (connection.job != nullptr) lose(*connection.job, connection.rank, reason);
}

void JobRegistry::on_tick(uint64_t now_ns) {
  context_.now_ns = now_ns;
  if (started_ns_ == 0) started_ns_ = now_ns;
  close_silent_connections();
  std::vector<JobKey> parts;
  for (const auto& [part, job] : context_.jobs) parts.push_back(part);
  for (const JobKey& part : parts) {
    if (Job* job = context_.jobs.find(part)) tick_job(*job);
  }
  handover_.drop_expired();
  snapshots_.on_tick();
}

void JobRegistry::on_standstill(const TurnClock::Turn& turn, uint64_t now_ns) {
  context_.now_ns = now_ns;
  for (auto& [id, connection] : context_.connections) {
    connection.heard_ns = std::min(now_ns, connection.heard_ns + turn.gap_ns);
  }
  for (const auto& [part, job] : context_.jobs) job->forgive(turn.gap_ns, now_ns);
  handover_.forgive(turn.gap_ns);
  snapshots_.forgive(turn.gap_ns);
  const std::string gap = in_seconds(turn.gap_ns);
  if (turn.was_busy) {
    return context_.note(Severity::kWarning, "control_was_busy",
                         "the control thread worked for " + gap +
                             " on end, for example on the state of a large part that moves; this "
                             "time is not counted against any rank");
  }
  context_.note(Severity::kWarning, "box_stood_still",
                "this box did not run for " + gap +
                    ": it was stopped, its virtual machine was paused, or other programs had the "
                    "CPU; this time is not counted against any rank");
}

void JobRegistry::close_silent_connections() {
  const RegistryOptions& options = context_.options;
  const uint64_t now_ns = context_.now_ns;
  std::vector<ConnectionId> dead;
  for (auto& [id, connection] : context_.connections) {
    const uint64_t silent_ns = now_ns - std::min(now_ns, connection.heard_ns);
    // A worker learns only from its session how often it must send, so it has more time before.
    const bool gathering = connection.job != nullptr && !connection.job->running();
    const uint64_t dead_after_ns = gathering
                                       ? std::max(options.dead_after_ns, options.hello_timeout_ns)
                                       : options.dead_after_ns;
    // Questions need no JOIN, but a connection cannot stay open just by asking.
    const uint64_t asks_max_ns = kAskingTimeouts * options.hello_timeout_ns;
    const bool asks_too_long = now_ns - std::min(now_ns, connection.opened_ns) > asks_max_ns;
    if (connection.job == nullptr && (silent_ns > options.hello_timeout_ns || asks_too_long)) {
      const uint64_t limit_ns = asks_too_long ? asks_max_ns : options.hello_timeout_ns;
      context_.connections.refuse(id,
                                  {ErrorCode::kTimeout, "no JOIN within " + in_seconds(limit_ns)});
      connection.heard_ns = connection.opened_ns = now_ns;
    } else if (connection.job != nullptr && silent_ns > dead_after_ns) {
      dead.push_back(id);
    }
  }
  for (const ConnectionId id : dead) {
    context_.connections.close(id);
    on_closed(id, "silent for " + in_seconds(options.dead_after_ns), now_ns);
  }
}

void JobRegistry::fail(Job& job, const Error& error) {
  if (!job.spec().is_backup) ++context_.totals.jobs_failed;
  context_.note(Severity::kWarning, "job_failed", error.message, job.spec().name);
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined) {
      context_.connections.dismiss(member.connection, error);
    }
  }
  if (job.relay() != nullptr) job.relay()->set_reason(error.message);
  handover_.release_previous_owner(job);
  end(job);
}

void JobRegistry::end(Job& job) {
  handover_.discard_copy(job.copy());
  parts_.on_job_over(job.spec().name);
  remove(job);
}

void JobRegistry::remove(Job& job) {
  const bool was_running = job.running();
  const JobKey part = key_of(job.spec());
  keep_copy(job);
  close(job);
  snapshots_.on_removed(part);
  context_.jobs.erase(part);
  if (!context_.jobs.has_job(part.first)) retired_.forget(part.first);
  if (was_running) sessions_.share_credit();
}

// Takes the shards back from the pipelines, and drops all that belongs to this opening of the part.
void JobRegistry::close(Job& job) {
  const JobKey part = key_of(job.spec());
  retired_.keep(job.view(context_.now_ns));
  job.close(host_, spis_);
  backups_.forget(part);
  relays_.forget(part);
  handover_.forget(part);
  starter_.forget(part);
  verdicts_.forget(part);
  guards_.forget(part);
  mismatches_.forget(part);
  snapshots_.on_closed(part);
}

// Closes the connections of the ranks without a message, so that they look for the box that has the
// part next.
void JobRegistry::abandon(Job& job) {
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined) context_.connections.drop(member.connection);
  }
  remove(job);
}

void JobRegistry::on_parts_changed() {
  std::vector<std::pair<Job*, proto::PartPlace>> moved;
  for (const auto& [part, job] : context_.jobs) {
    const JobSpec& spec = job->spec();
    if (spec.is_backup) continue;
    const auto place = parts_.other_owner(spec.name, spec.part, spec.parts);
    if (!place || !*place) continue;
    if (spec.may_move()) {
      moved.emplace_back(job.get(), **place);
    } else {
      parts_.reclaim_part(spec.name, spec.part);
    }
  }
  for (auto& [job, place] : moved) move_away(*job, place);
}

// At the other box the workers push again what they have in flight here, and bring along what any
// of them has consumed. The state that only this box has is kept until the other box asks for it.
void JobRegistry::move_away(Job& job, const proto::PartPlace& place) {
  ++context_.totals.parts_moved;
  context_.note(
      Severity::kInfo, "part_moved",
      job.spec().title() + " goes on at box " + place.box() + " (" + place.address() + ")",
      job.spec().name);
  keep_state(job);
  for (const Member& member : job.members()) {
    if (member.state != Member::State::kJoined) continue;
    context_.connections.detach(member.connection);
    context_.connections.redirect(member.connection, place);
  }
  remove(job);
}

// Keeps the state of a part in mode optimize for the box that asks for it. The caller closes the
// job next.
void JobRegistry::keep_state(Job& job) {
  if (!job.running() || job.spec().mode != pipeline::Mode::kOptimize) return;
  if (!job.spec().may_move()) return;
  CopyName copy = job.copy();
  handover_.keep(job, job.take_state(host_), false, std::move(copy));
}

// Keeps a backup copy of another box's part as it was after the last complete push. It may take a
// while until the other box or its successor asks for it. The caller closes the job next.
void JobRegistry::keep_copy(Job& job) {
  if (!job.spec().is_backup || !job.running()) return;
  PartState copy = job.take_copy(host_);
  if (!copy.chunks.empty()) handover_.keep(job, std::move(copy), true, {});
}

void JobRegistry::shut_down() {
  on_parts_changed();  // the other boxes may have taken parts at this very moment
  is_shutting_down_ = true;
  while (!context_.jobs.empty()) {
    Job& job = *context_.jobs.begin()->second;
    if (job.running() && job.spec().survives_its_box()) {
      context_.note(Severity::kInfo, "job_left",
                    "the workers of " + job.spec().title() +
                        " look for this box after its restart, or for another box",
                    job.spec().name);
      abandon(job);
      continue;
    }
    fail(job, {ErrorCode::kBoxLost, "box '" + context_.options.box_name + "' is shutting down; " +
                                        job.spec().title() + " ends here"});
  }
}

Status JobRegistry::begin_snapshot(const std::string& job, uint64_t timeout_ns, uint64_t now_ns) {
  context_.now_ns = now_ns;
  return snapshots_.begin(job, timeout_ns);
}

uint64_t JobRegistry::memory_taken_bytes(std::optional<std::string_view> tenant) const {
  uint64_t bytes = handover_.bytes_of(tenant) + snapshots_.cut_bytes(tenant);
  for (const auto& [part, job] : context_.jobs) {
    if (!tenant || wire::tenant_of(part.first) == *tenant) bytes += memory_of(*job);
  }
  return bytes;
}

TenantUses JobRegistry::tenants() const {
  auto uses = tenant_uses(context_.jobs);
  for (const auto& [id, connection] : std::as_const(context_.connections)) {
    if (const auto tenant = tenant_of(connection)) ++uses[std::string(*tenant)].connections;
  }
  handover_.add_use(uses);
  snapshots_.add_use(uses);
  return uses;
}

}  // namespace pbox::control
