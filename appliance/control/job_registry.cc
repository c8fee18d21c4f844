#include "appliance/control/job_registry.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/clock.h"
#include "nic/wire/control_frame.h"

namespace pbox::appliance {
namespace {

proto::BoxMessage failure(const Error& error) {
  proto::BoxMessage message;
  message.mutable_failure()->set_code(static_cast<uint32_t>(error.code));
  message.mutable_failure()->set_message(error.message);
  return message;
}

// More in flight than this buys nothing on any path a socket serves, and costs cache.
constexpr uint32_t kWindowBytesAuto = 1u << 20;

proto::BoxMessage data_addresses(const PipelineHost& host) {
  std::set<std::string> addresses;
  for (uint32_t index = 0; index < host.count(); ++index) {
    addresses.insert(host.info(index).address);
  }
  proto::BoxMessage message;
  for (const auto& address : addresses) message.mutable_data_addresses()->add_addresses(address);
  return message;
}

}  // namespace

// What a queue takes in: so many bytes, and so many packets.
uint32_t receivable_bytes(const PipelineInfo& info, uint32_t fragment_bytes) {
  if (info.receive_slots == 0) return info.receive_buffer_bytes;
  const uint64_t in_slots = uint64_t{info.receive_slots} * fragment_bytes;
  return static_cast<uint32_t>(std::min<uint64_t>(info.receive_buffer_bytes, in_slots));
}

uint32_t credit_share(uint32_t receive_buffer_bytes, uint32_t sessions, uint32_t window_bytes,
                      uint32_t parts) {
  const uint64_t share = uint64_t{receive_buffer_bytes} * 3 / 4 / std::max(1u, sessions);
  const uint64_t window = window_bytes == 0 ? kWindowBytesAuto : window_bytes;
  const uint64_t wanted = window / std::max(1u, parts);
  const uint64_t credit = std::min({share, wanted, uint64_t{limits::kCreditBytesMax}});
  return static_cast<uint32_t>(std::max<uint64_t>(credit / limits::kCreditUnitBytes, 1) *
                               limits::kCreditUnitBytes);
}

JobRegistry::JobRegistry(const RegistryOptions& options, PipelineHost& host, Epochs& epochs,
                         PartDirectory& parts, snapshot::SnapshotStore* shelf, Upstream* upstream,
                         BackupBoxes* backups)
    : options_(options),
      host_(host),
      epochs_(epochs),
      parts_(parts),
      spis_(host.count(), options.seed),
      shelf_(shelf),
      upstream_(upstream),
      backups_(backups) {}

void JobRegistry::send(ConnectionId id, proto::BoxMessage message) {
  actions_.push_back({Action::Kind::kSend, id, std::move(message)});
}

void JobRegistry::refuse(ConnectionId id, const Error& error) {
  send(id, failure(error));
  actions_.push_back({Action::Kind::kClose, id, {}});
}

void JobRegistry::on_open(ConnectionId connection, const std::string& peer, bool ipv6,
                          uint64_t now_ns) {
  now_ns_ = now_ns;
  if (started_ns_ == 0) started_ns_ = now_ns;
  connections_[connection] = {peer, ipv6, now_ns, now_ns, nullptr, 0};
}

void JobRegistry::on_message(ConnectionId id, const std::string& body, uint64_t now_ns) {
  now_ns_ = now_ns;
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.heard_ns = now_ns;
  proto::WorkerMessage message;
  if (!message.ParseFromString(body)) {
    refuse(id, {ErrorCode::kInvalidArgument,
                "a message that is no PBox control message was received; is this port meant?"});
    return;
  }
  if (message.has_join()) {
    on_join(id, connection, message.join(), now_ns);
    return;
  }
  if (message.has_ask_data_addresses()) {
    proto::BoxMessage answer = data_addresses(host_);
    answer.mutable_data_addresses()->set_up_for_ms((now_ns_ - started_ns_) / kNanosPerMilli);
    send(id, std::move(answer));
    return;
  }
  if (message.has_ask_part_map()) {
    on_ask_part_map(id, message.ask_part_map());
    return;
  }
  if (message.has_ask_state()) {
    on_ask_state(id, message.ask_state());
    return;
  }
  if (message.has_ask_cut()) {
    on_ask_cut(id, message.ask_cut());
    return;
  }
  if (connection.job == nullptr) {
    refuse(id, {ErrorCode::kInvalidArgument, "the first message must be JOIN"});
    return;
  }
  switch (message.kind_case()) {
    case proto::WorkerMessage::kLeave: on_leave(id, connection); return;
    case proto::WorkerMessage::kHeartbeat:
      on_heartbeat(id, connection, message.heartbeat());
      return;
    case proto::WorkerMessage::kRounds: on_rounds(id, connection, message.rounds()); return;
    case proto::WorkerMessage::kBarrier: on_barrier(connection, message.barrier()); return;
    case proto::WorkerMessage::kSetLearningRate:
      on_learning_rate(id, connection, message.set_learning_rate());
      return;
    case proto::WorkerMessage::kSetPriorities:
      on_priorities(id, connection, message.set_priorities());
      return;
    case proto::WorkerMessage::kQueuePairs:
      on_queue_pairs(id, connection, message.queue_pairs());
      return;
    case proto::WorkerMessage::kPortGivenUp:
      on_port_given_up(connection, message.port_given_up());
      return;
    default: return;  // a kind that a newer worker knows
  }
}

void JobRegistry::on_heartbeat(ConnectionId id, const Connection& connection,
                               const proto::Heartbeat& heartbeat) {
  // 0 to the bound on staleness, and all that is beyond.
  constexpr int kBucketsMax = wire::kStalenessMax + 2;
  const auto& reads = heartbeat.reads_by_staleness();
  Member& member = connection.job->members()[connection.rank];
  member.reads_by_staleness.assign(reads.begin(),
                                   reads.begin() + std::min(reads.size(), kBucketsMax));
  const proto::FinishedRounds& finished = heartbeat.finished();
  member.progress = {finished.rounds(), finished.at_ns(), finished.busy_ns()};
  proto::BoxMessage answer;
  answer.mutable_heartbeat()->set_sequence(heartbeat.sequence());
  send(id, std::move(answer));
}

// Sessions came or went: each job's share of the receive rings changes.
void JobRegistry::share_credit() {
  for (uint32_t index = 0; index < host_.count(); ++index) {
    for (auto& [name, job] : jobs_) job->set_credit(host_, index, credit_on(index, *job));
  }
}

uint32_t JobRegistry::credit_on(uint32_t pipeline, const Job& job) const {
  const auto parts = std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const Job& other = *entry.second;
    const std::vector<uint32_t>& used = other.pipelines();
    return entry.first.first == job.spec().name && other.running() &&
           std::find(used.begin(), used.end(), pipeline) != used.end();
  });
  return credit_share(receivable_bytes(host_.info(pipeline), job.fragment_bytes()),
                      spis_.in_use(pipeline), options_.window_bytes, static_cast<uint32_t>(parts));
}

std::vector<uint64_t> JobRegistry::pipeline_loads() const {
  std::vector<uint64_t> loads(host_.count(), 0);
  for (const auto& [name, job] : jobs_) {
    for (uint32_t index = 0; index < loads.size(); ++index) loads[index] += job->bytes_on(index);
  }
  return loads;
}

void JobRegistry::on_learning_rate(ConnectionId id, Connection& connection,
                                   const proto::SetLearningRate& request) {
  if (!std::isfinite(request.learning_rate()) || request.learning_rate() < 0) {
    refuse(id, {ErrorCode::kInvalidArgument, "learning_rate must be finite and >= 0"});
    return;
  }
  connection.job->set_learning_rate(host_, request.learning_rate());
  proto::BoxMessage message;
  *message.mutable_learning_rate_set() = request;
  send(id, std::move(message));
}

void JobRegistry::on_priorities(ConnectionId id, Connection& connection,
                                const proto::SetPriorities& request) {
  Job& job = *connection.job;
  const auto given = static_cast<size_t>(request.by_tensor_size());
  const auto policy = static_cast<wire::PriorityPolicy>(request.policy());
  const bool may_be_given = policy != wire::PriorityPolicy::kFifo;
  const bool fits = given == 0 || (may_be_given && given == job.spec().tensors.size());
  if (request.policy() >= wire::kPriorityPolicyCount || !fits) {
    refuse(id, {ErrorCode::kInvalidArgument,
                "priority policy " + std::to_string(request.policy()) + " with " +
                    std::to_string(given) + " priorities for " +
                    std::to_string(job.spec().tensors.size()) +
                    " tensors; 0 explicit and 1 forward-order take one for each or none, 2 fifo "
                    "none"});
    return;
  }
  set_priorities(job, policy, {request.by_tensor().begin(), request.by_tensor().end()},
                 "rank " + std::to_string(connection.rank));
}

Status JobRegistry::set_priorities(const std::string& name, wire::PriorityPolicy policy) {
  bool found = false;
  for (auto& [key, job] : jobs_) {
    if (key.first != name) continue;
    found = true;
    set_priorities(*job, policy, {}, "the operator");
  }
  if (!found) return Error{ErrorCode::kNotFound, "no job '" + name + "' here"};
  return ok_status();
}

void JobRegistry::set_priorities(Job& job, wire::PriorityPolicy policy,
                                 std::vector<int32_t> by_tensor, const std::string& who) {
  const bool learned = policy == wire::PriorityPolicy::kForwardOrder && !by_tensor.empty();
  job.set_priorities(host_, policy, std::move(by_tensor));
  note(RegistryEvent::Severity::kInfo, "priorities_set",
       job.spec().title() + ": priority policy " +
           wire::kPriorityPolicyNames[static_cast<size_t>(policy)] +
           (learned ? ", learned by " : ", set by ") + who);
  if (!job.running()) return;  // whoever is still to get a session is told then
  proto::BoxMessage message;
  *message.mutable_set_priorities() = *job.priorities_set();
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined) send(member.connection, message);
  }
}

void JobRegistry::on_closed(ConnectionId id, const std::string& reason, uint64_t now_ns) {
  now_ns_ = now_ns;
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection connection = found->second;
  connections_.erase(found);
  host_.disconnect(id);
  if (connection.job != nullptr) lose(*connection.job, connection.rank, reason, now_ns);
}

void JobRegistry::on_tick(uint64_t now_ns) {
  now_ns_ = now_ns;
  if (started_ns_ == 0) started_ns_ = now_ns;
  std::vector<ConnectionId> dead;
  for (auto& [id, connection] : connections_) {
    const uint64_t silent_ns = now_ns - std::min(now_ns, connection.heard_ns);
    // Until its session a worker does not know how often it must be heard.
    const bool gathering = connection.job != nullptr && !connection.job->running();
    const uint64_t dead_after_ns = gathering
                                       ? std::max(options_.dead_after_ns, options_.hello_timeout_ns)
                                       : options_.dead_after_ns;
    if (connection.job == nullptr && silent_ns > options_.hello_timeout_ns) {
      refuse(id, {ErrorCode::kTimeout, "no JOIN within " + in_seconds(options_.hello_timeout_ns)});
      connection.heard_ns = now_ns;
    } else if (connection.job != nullptr && silent_ns > dead_after_ns) {
      dead.push_back(id);
    }
  }
  for (const ConnectionId id : dead) {
    actions_.push_back({Action::Kind::kClose, id, {}});
    on_closed(id, "silent for " + in_seconds(options_.dead_after_ns), now_ns);
  }
  std::vector<Job*> jobs;
  for (auto& [name, job] : jobs_) jobs.push_back(job.get());
  for (Job* job : jobs) tick_job(*job, now_ns);
  drop_old_states();
  tick_snapshots();
}

void JobRegistry::fail_job(Job& job, const Error& error) {
  if (!job.spec().is_backup) ++totals_.jobs_failed;
  note(RegistryEvent::Severity::kWarning, "job_failed", error.message);
  for (const Member& member : job.members()) {
    if (member.state != Member::State::kJoined) continue;
    connections_[member.connection].job = nullptr;
    refuse(member.connection, error);
  }
  settle_source(job);
  end(job);
}

void JobRegistry::end(Job& job) {
  forget_copy(job.copy());
  parts_.on_job_over(job.spec().name);
  remove(job);
}

void JobRegistry::remove(Job& job) {
  const bool was_running = job.running();
  keep_copy(job);
  close(job);
  jobs_.erase(key(job.spec()));
  if (was_running) share_credit();
}

// Its shards are the pipelines' no more.
void JobRegistry::close(Job& job) {
  job.close(host_, spis_);
  lose_cut(key(job.spec()));
}

// The answer may take the cluster's store, and a look at a box that may be gone.
void JobRegistry::on_ask_part_map(ConnectionId id, const proto::AskPartMap& question) {
  if (const Status speaks = check_version(question.protocol_version(), question.software());
      !speaks) {
    ++totals_.joins_refused;
    refuse(id, speaks.error());
    return;
  }
  parts_.ask(question, [this, id, alive = alive_](const Result<proto::PartMap>& plan) {
    if (!*alive || !connections_.contains(id)) return;
    if (!plan) return refuse(id, plan.error());
    proto::BoxMessage message;
    *message.mutable_part_map() = *plan;
    send(id, std::move(message));
  });
}

// Its workers look for the box that has it next.
void JobRegistry::hang_up(Job& job) {
  for (const Member& member : job.members()) {
    if (member.state != Member::State::kJoined) continue;
    connections_[member.connection].job = nullptr;
    actions_.push_back({Action::Kind::kClose, member.connection, {}});
  }
  remove(job);
}

void JobRegistry::send_to(ConnectionId id, const proto::PartPlace& place) {
  proto::BoxMessage message;
  *message.mutable_moved() = place;
  send(id, std::move(message));
  actions_.push_back({Action::Kind::kClose, id, {}});
}

void JobRegistry::on_parts_changed() {
  std::vector<std::pair<Job*, proto::PartPlace>> gone;
  for (auto& [key, job] : jobs_) {
    const JobSpec& spec = job->spec();
    if (spec.is_backup) continue;
    const auto other_owner = parts_.other_owner(spec.name, spec.part, spec.parts);
    if (!other_owner || !*other_owner) continue;
    if (spec.may_move()) {
      gone.emplace_back(job.get(), **other_owner);
    } else {
      parts_.reclaim_part(spec.name, spec.part);
    }
  }
  for (auto& [job, place] : gone) move_away(*job, place);
}

// What its workers have in flight they push again there, and they bring along what any of them has
// consumed. What only this box has is kept until it is asked for.
void JobRegistry::move_away(Job& job, const proto::PartPlace& place) {
  ++totals_.parts_moved;
  note(RegistryEvent::Severity::kInfo, "part_moved",
       job.spec().title() + " goes on at box " + place.box() + " (" + place.address() + ")");
  keep_state(job);
  for (const Member& member : job.members()) {
    if (member.state != Member::State::kJoined) continue;
    connections_[member.connection].job = nullptr;
    send_to(member.connection, place);
  }
  remove(job);
}

void JobRegistry::shut_down() {
  on_parts_changed();  // that it has gone elsewhere may be heard of at this very moment
  shuts_down_ = true;
  while (!jobs_.empty()) {
    Job& job = *jobs_.begin()->second;
    if (job.running() && job.spec().survives_its_box()) {
      note(RegistryEvent::Severity::kInfo, "job_left",
           job.spec().title() + " waits for this box to start again, or for another in its place");
      hang_up(job);
      continue;
    }
    fail_job(job, {ErrorCode::kBoxLost, "box '" + options_.box_name + "' is shutting down; " +
                                            job.spec().title() + " ends here"});
  }
}

std::vector<StragglerView> JobRegistry::stragglers(uint64_t now_ns) const {
  std::vector<StragglerView> views;
  for (const auto& [key, job] : jobs_) {
    StragglerView view = job->stragglers(now_ns);
    if (!views.empty() && views.back().job == view.job) {
      add_part(views.back(), view);
    } else {
      views.push_back(std::move(view));
    }
  }
  return views;
}

std::vector<JobView> JobRegistry::views(uint64_t now_ns) const {
  std::vector<JobView> views;
  for (const auto& [key, job] : jobs_) {
    JobView view = job->view(now_ns);
    if (!views.empty() && views.back().name == view.name) {
      add_part(views.back(), view);
    } else {
      views.push_back(std::move(view));
    }
  }
  return views;
}

bool JobRegistry::has_job(const std::string& name) const {
  const auto first = jobs_.lower_bound({name, 0});
  return first != jobs_.end() && first->first.first == name;
}

std::vector<PartProgress> JobRegistry::progress() const {
  std::vector<PartProgress> list;
  for (const auto& [key, job] : jobs_) {
    const JobSpec& spec = job->spec();
    if (!job->running() || !spec.may_move()) continue;
    PartProgress part{spec.name, spec.part, spec.parts, 0, {}};
    for (uint32_t index = 0; index < host_.count(); ++index) part.bytes += job->bytes_on(index);
    for (const Member& member : job->members()) {
      if (member.state != Member::State::kExcluded) part.ranks.push_back(member.progress);
    }
    list.push_back(std::move(part));
  }
  return list;
}

uint64_t JobRegistry::memory_taken_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, job] : jobs_) bytes += job->footprint();
  for (const auto& [name, kept] : kept_) bytes += kept.state.bytes();
  for (const auto& [part, cut] : cuts_) bytes += cut.bytes;
  return bytes;
}

}  // namespace pbox::appliance
