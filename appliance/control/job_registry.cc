#include "appliance/control/job_registry.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/clock.h"
#include "nic/wire/control_frame.h"

namespace pbox::appliance {
namespace {

control::BoxMessage failure(const Error& error) {
  control::BoxMessage message;
  message.mutable_failure()->set_code(static_cast<uint32_t>(error.code));
  message.mutable_failure()->set_message(error.message);
  return message;
}

// What a stranger says of itself, fit for a log: a line's worth of ASCII.
std::string printable(std::string text) {
  constexpr size_t kBytesMax = 64;
  if (text.size() > kBytesMax) text.resize(kBytesMax);
  for (char& character : text) {
    if (character < ' ' || character > '~') character = '?';
  }
  return text;
}

// "; pipeline 0: spi 1509949440, UDP port 9542, credit 1048576 bytes; pipeline 1: ..."
std::string describe(const control::Session& session) {
  std::string text;
  for (int index = 0; index < session.pipelines_size(); ++index) {
    const auto& pipeline = session.pipelines(index);
    text += "; pipeline " + std::to_string(index) + ": spi " + std::to_string(pipeline.spi()) +
            ", UDP port " + std::to_string(pipeline.udp_port()) + ", credit " +
            std::to_string(pipeline.credit_bytes()) + " bytes";
  }
  return text;
}

// More in flight than this buys nothing on any path a socket serves, and costs cache.
constexpr uint32_t kWindowBytesAuto = 1u << 20;

control::BoxMessage data_addresses(const PipelineHost& host) {
  std::set<std::string> addresses;
  for (uint32_t index = 0; index < host.count(); ++index) {
    addresses.insert(host.info(index).address);
  }
  control::BoxMessage message;
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

uint32_t credit_share(uint32_t receive_buffer_bytes, uint32_t sessions, uint32_t window_bytes) {
  const uint64_t share = uint64_t{receive_buffer_bytes} * 3 / 4 / std::max(1u, sessions);
  const uint64_t wanted = window_bytes == 0 ? kWindowBytesAuto : window_bytes;
  const uint64_t credit = std::min({share, wanted, uint64_t{limits::kCreditBytesMax}});
  return static_cast<uint32_t>(std::max<uint64_t>(credit / limits::kCreditUnitBytes, 1) *
                               limits::kCreditUnitBytes);
}

JobRegistry::JobRegistry(const RegistryOptions& options, PipelineHost& host)
    : options_(options), host_(host), spis_(host.count()) {}

void JobRegistry::send(ConnectionId id, control::BoxMessage message) {
  actions_.push_back({Action::Kind::kSend, id, std::move(message)});
}

void JobRegistry::refuse(ConnectionId id, const Error& error) {
  send(id, failure(error));
  actions_.push_back({Action::Kind::kClose, id, {}});
}

void JobRegistry::on_open(ConnectionId connection, const std::string& peer, bool ipv6,
                          uint64_t now_ns) {
  connections_[connection] = {peer, ipv6, now_ns, now_ns, nullptr, 0};
}

void JobRegistry::on_message(ConnectionId id, const std::string& body, uint64_t now_ns) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.heard_ns = now_ns;
  control::WorkerMessage message;
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
    send(id, data_addresses(host_));
    return;
  }
  if (connection.job == nullptr) {
    refuse(id, {ErrorCode::kInvalidArgument, "the first message must be JOIN"});
    return;
  }
  switch (message.kind_case()) {
    case control::WorkerMessage::kLeave: on_leave(id, connection); return;
    case control::WorkerMessage::kHeartbeat: {
      control::BoxMessage answer;
      answer.mutable_heartbeat()->set_sequence(message.heartbeat().sequence());
      send(id, std::move(answer));
      return;
    }
    case control::WorkerMessage::kBarrier: on_barrier(connection, message.barrier()); return;
    case control::WorkerMessage::kSetLearningRate:
      on_learning_rate(id, connection, message.set_learning_rate());
      return;
    default: return;  // a kind that a newer worker knows
  }
}

void JobRegistry::on_join(ConnectionId id, Connection& connection, const control::Join& join,
                          uint64_t now_ns) {
  auto job = connection.job != nullptr
                 ? Result<Job*>(Error{ErrorCode::kAlreadyExists,
                                      "this connection has joined already; open another one"})
                 : admit(join, now_ns);
  if (!job) {
    ++totals_.joins_refused;
    note(RegistryEvent::Severity::kWarning, "join_refused",
         connection.peer + ": " + job.error().message);
    refuse(id, job.error());
    return;
  }
  connection.job = *job;
  connection.rank = join.rank();
  Member& member = (*job)->members()[join.rank()];
  member.state = Member::State::kJoined;
  member.connection = id;
  member.peer = connection.peer;
  member.path_mtu = join.path_mtu();
  member.ipv6 = connection.ipv6;
  note(RegistryEvent::Severity::kDebug, "worker_joined",
       "job '" + join.job() + "': rank " + std::to_string(join.rank()) + " of " +
           std::to_string(join.world_size()) + " (" + member.peer + ", path MTU " +
           std::to_string(join.path_mtu()) + ")");
  if ((*job)->all_joined()) start_job(**job);
}

Result<Job*> JobRegistry::admit(const control::Join& join, uint64_t now_ns) {
  if (join.protocol_version() != wire::kControlProtocolVersion) {
    return Error{ErrorCode::kVersionMismatch,
                 "this worker (" + printable(join.software()) + ") speaks control protocol " +
                     std::to_string(join.protocol_version()) + ", the box speaks " +
                     std::to_string(wire::kControlProtocolVersion) +
                     "; use the libpbox of the box's release"};
  }
  auto spec = parse_join(join, options_.job_limits);
  if (!spec) return spec.error();
  const auto found = jobs_.find(spec->name);
  if (found != jobs_.end()) {
    if (const Status status = check_member(*found->second, *spec, join); !status) {
      return status.error();
    }
    return found->second.get();
  }
  if (jobs_.size() >= options_.jobs_max) {
    return Error{ErrorCode::kResourceExhausted,
                 "the box serves " + std::to_string(jobs_.size()) +
                     " jobs already ([jobs] max = " + std::to_string(options_.jobs_max) + ")"};
  }
  auto job = std::make_unique<Job>(std::move(*spec), now_ns, pipeline_loads());
  if (const Status status = check_memory(*job); !status) return status.error();
  job->join_timeout_ns = options_.join_timeout_ns;
  if (const uint64_t wanted_ns = join.join_timeout_ms() * kNanosPerMilli; wanted_ns > 0) {
    job->join_timeout_ns = std::min(wanted_ns, options_.join_timeout_ns);
  }
  job->lost_timeout_ns = join.lost_timeout_ms() > 0 ? join.lost_timeout_ms() * kNanosPerMilli
                                                    : options_.lost_timeout_ns;
  Job* admitted = job.get();
  jobs_[admitted->spec().name] = std::move(job);
  note(RegistryEvent::Severity::kDebug, "job_admitted",
       "job '" + admitted->spec().name + "': " + admitted->placement());
  return admitted;
}

// Of a job that is not among jobs_ yet: does it fit beside them, on the box and on each pipeline?
Status JobRegistry::check_memory(const Job& job) const {
  const uint64_t wanted = job.footprint();
  const uint64_t taken = memory_taken_bytes();
  if (wanted > options_.job_memory_bytes || taken > options_.job_memory_bytes - wanted) {
    return Error{ErrorCode::kResourceExhausted,
                 "job '" + job.spec().name + "' needs " + std::to_string(wanted) +
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
        "job '" + job.spec().name + "' needs " + std::to_string(job.footprint_on(index)) +
            " bytes on pipeline " + std::to_string(index) +
            (node == kAnyNumaNode ? "" : " (NUMA node " + std::to_string(node) + ")") + "; " +
            std::to_string(free) + " of " + std::to_string(limit) +
            " are free there. Wait for other jobs, raise [memory] job_share, or take pipelines off "
            "a node that has less memory than others ([pipeline] cores)"};
  }
  return ok_status();
}

Status JobRegistry::check_member(const Job& job, const JobSpec& spec,
                                 const control::Join& join) const {
  if (const auto difference = first_difference(job.spec(), spec)) {
    return Error{ErrorCode::kMismatch, "rank " + std::to_string(join.rank()) + " of job '" +
                                           spec.name +
                                           "' differs from the ranks before it: " + *difference};
  }
  const Member& member = job.members()[join.rank()];
  const std::string who = "rank " + std::to_string(join.rank()) + " of job '" + spec.name + "'";
  switch (member.state) {
    case Member::State::kAbsent: return ok_status();
    case Member::State::kJoined:
      return Error{ErrorCode::kAlreadyExists,
                   who + " is taken by " + member.peer + "; give each worker its own rank"};
    case Member::State::kLost:
      return Error{ErrorCode::kAlreadyExists,
                   who + " was lost (" + member.lost_reason +
                       ") and the job is ending; start it again when all ranks have stopped"};
    case Member::State::kLeft:
      return Error{ErrorCode::kAlreadyExists,
                   who +
                       " has left while other ranks are still in the job; wait for them to "
                       "leave or use another job name"};
  }
  return ok_status();
}

void JobRegistry::start_job(Job& job) {
  if (const Status status = job.open(host_, spis_); !status) {
    fail_job(job, status.error());
    return;
  }
  share_credit();
  note(RegistryEvent::Severity::kInfo, "job_started",
       "job '" + job.spec().name + "': " + std::to_string(job.spec().world_size) + " workers, " +
           std::to_string(job.spec().element_count()) + " elements in " +
           std::to_string(job.spec().tensors.size()) + " tensors, fragments of " +
           std::to_string(job.fragment_bytes()) + " bytes");
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    control::BoxMessage message;
    control::Session& session = *message.mutable_session();
    session.set_protocol_version(wire::kControlProtocolVersion);
    session.set_box(options_.box_name);
    session.set_payload_crc(options_.payload_crc);
    session.set_heartbeat_interval_ms(options_.heartbeat_interval_ms);
    session.set_dead_after_ms(static_cast<uint32_t>(options_.dead_after_ns / kNanosPerMilli));
    job.describe(rank, host_, session);
    for (int index = 0; index < session.pipelines_size(); ++index) {
      const auto pipeline = static_cast<uint32_t>(index);
      session.mutable_pipelines(index)->set_credit_bytes(
          credit_share(receivable_bytes(host_.info(pipeline), job.fragment_bytes()),
                       spis_.in_use(pipeline), options_.window_bytes));
    }
    note(RegistryEvent::Severity::kDebug, "session_installed",
         "job '" + job.spec().name + "': rank " + std::to_string(rank) + " (" +
             job.members()[rank].peer + ")" + describe(session));
    send(job.members()[rank].connection, std::move(message));
  }
}

// Sessions came or went: each job's share of the receive rings changes.
void JobRegistry::share_credit() {
  for (uint32_t index = 0; index < host_.count(); ++index) {
    const PipelineInfo info = host_.info(index);
    for (auto& [name, job] : jobs_) {
      job->set_credit(host_, index,
                      credit_share(receivable_bytes(info, job->fragment_bytes()),
                                   spis_.in_use(index), options_.window_bytes));
    }
  }
}

std::vector<uint64_t> JobRegistry::pipeline_loads() const {
  std::vector<uint64_t> loads(host_.count(), 0);
  for (const auto& [name, job] : jobs_) {
    for (uint32_t index = 0; index < loads.size(); ++index) loads[index] += job->bytes_on(index);
  }
  return loads;
}

void JobRegistry::on_leave(ConnectionId id, Connection& connection) {
  Job& job = *connection.job;
  Member& leaver = job.members()[connection.rank];
  leaver.state = Member::State::kLeft;
  leaver.connection = 0;
  connection.job = nullptr;
  actions_.push_back({Action::Kind::kClose, id, {}});
  if (job.running()) {
    control::BoxMessage message;
    message.mutable_peer_left()->set_rank(connection.rank);
    for (const Member& member : job.members()) {
      if (member.state == Member::State::kJoined) send(member.connection, message);
    }
  } else {
    leaver = {};  // still gathering: the rank may join again
  }
  remove_if_over(job);
}

void JobRegistry::on_barrier(Connection& connection, const control::Barrier& barrier) {
  Job& job = *connection.job;
  job.members()[connection.rank].barrier_sequence = barrier.sequence();
  const bool all = std::all_of(
      job.members().begin(), job.members().end(),
      [&](const Member& member) { return member.barrier_sequence >= barrier.sequence(); });
  if (!all) return;
  control::BoxMessage message;
  message.mutable_barrier_released()->set_sequence(barrier.sequence());
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined) send(member.connection, message);
  }
}

void JobRegistry::on_learning_rate(ConnectionId id, Connection& connection,
                                   const control::SetLearningRate& request) {
  if (!std::isfinite(request.learning_rate()) || request.learning_rate() < 0) {
    refuse(id, {ErrorCode::kInvalidArgument, "learning_rate must be finite and >= 0"});
    return;
  }
  connection.job->set_learning_rate(host_, request.learning_rate());
  control::BoxMessage message;
  *message.mutable_learning_rate_set() = request;
  send(id, std::move(message));
}

void JobRegistry::on_closed(ConnectionId id, const std::string& reason, uint64_t now_ns) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection connection = found->second;
  connections_.erase(found);
  if (connection.job == nullptr) return;
  Job& job = *connection.job;
  Member& member = job.members()[connection.rank];
  if (!job.running()) {
    member = {};  // still gathering: the rank may join again
  } else {
    ++totals_.workers_lost;
    member.state = Member::State::kLost;
    member.connection = 0;
    member.lost_ns = now_ns;
    member.lost_reason = reason;
    note(RegistryEvent::Severity::kWarning, "worker_lost",
         "job '" + job.spec().name + "': rank " + std::to_string(connection.rank) + " (" +
             member.peer + ") lost: " + reason);
  }
  remove_if_over(job);
}

void JobRegistry::on_tick(uint64_t now_ns) {
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
}

void JobRegistry::tick_job(Job& job, uint64_t now_ns) {
  const std::string name = "job '" + job.spec().name + "'";
  if (!job.running()) {
    const uint64_t waited_ns = now_ns - job.created_ns();
    if (waited_ns <= job.join_timeout_ns) return;
    const bool is_the_boxs = job.join_timeout_ns == options_.join_timeout_ns;
    fail_job(job, {ErrorCode::kTimeout,
                   name + ": " + std::to_string(job.count(Member::State::kAbsent)) + " of " +
                       std::to_string(job.spec().world_size) + " ranks have not joined after " +
                       in_seconds(waited_ns) +
                       (is_the_boxs ? " (the box's [control] join_timeout_s): " : ": ") +
                       job.ranks(Member::State::kAbsent)});
    return;
  }
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& member = job.members()[rank];
    if (member.state != Member::State::kLost) continue;
    const uint64_t lost_for_ns = now_ns - member.lost_ns;
    if (lost_for_ns < job.lost_timeout_ns) continue;
    fail_job(job,
             {ErrorCode::kWorkerLost, name + ": rank " + std::to_string(rank) + " (" + member.peer +
                                          ") was lost " + in_seconds(lost_for_ns) + " ago (" +
                                          member.lost_reason + ") and did not come back"});
    return;
  }
}

void JobRegistry::fail_job(Job& job, const Error& error) {
  ++totals_.jobs_failed;
  note(RegistryEvent::Severity::kWarning, "job_failed", error.message);
  for (const Member& member : job.members()) {
    if (member.state != Member::State::kJoined) continue;
    connections_[member.connection].job = nullptr;
    refuse(member.connection, error);
  }
  remove(job);
}

void JobRegistry::remove_if_over(Job& job) {
  if (job.count(Member::State::kJoined) > 0) return;
  const bool was_running = job.running();
  if (was_running && job.count(Member::State::kLost) > 0) {
    ++totals_.jobs_failed;
  } else if (was_running) {
    ++totals_.jobs_finished;
    note(RegistryEvent::Severity::kInfo, "job_finished",
         "job '" + job.spec().name + "': every rank has left");
  }
  remove(job);
}

void JobRegistry::remove(Job& job) {
  const bool was_running = job.running();
  job.close(host_, spis_);
  jobs_.erase(jobs_.find(job.spec().name));
  if (was_running) share_credit();
}

void JobRegistry::shut_down() {
  while (!jobs_.empty()) {
    Job& job = *jobs_.begin()->second;
    fail_job(job, {ErrorCode::kBoxLost, "box '" + options_.box_name + "' is shutting down; job '" +
                                            job.spec().name + "' ends here"});
  }
}

std::vector<JobView> JobRegistry::views(uint64_t now_ns) const {
  std::vector<JobView> views;
  for (const auto& [name, job] : jobs_) views.push_back(job->view(now_ns));
  return views;
}

uint64_t JobRegistry::memory_taken_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, job] : jobs_) bytes += job->footprint();
  return bytes;
}

}  // namespace pbox::appliance
