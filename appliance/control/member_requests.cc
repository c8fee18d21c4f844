#include "appliance/control/member_requests.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "appliance/control/part_memory.h"
#include "appliance/control/peer_text.h"
#include "base/check.h"
#include "nic/wire/queue_pair.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

Error in_pipeline(const proto::QueuePair& pair, const Error& error) {
  return {error.code, "pipeline " + std::to_string(pair.pipeline()) + ": " + error.message};
}

// Connects queue pairs of a worker. `pipelines`: the box's pipelines, by their index in the
// session.
Status connect_all(PipelineHost& host, const std::vector<uint32_t>& pipelines, ConnectionId id,
                   const proto::QueuePairs& request, proto::QueuePairs& answer) {
  std::set<uint32_t> named;
  for (const proto::QueuePair& pair : request.pairs()) {
    if (pair.pipeline() >= pipelines.size() || !named.insert(pair.pipeline()).second) {
      return in_pipeline(
          pair, {ErrorCode::kInvalidArgument, "there is no such pipeline, or it is named twice"});
    }
    const auto peer = wire::parse_queue_pair(pair);
    if (!peer) return in_pipeline(pair, peer.error());
    const auto own = host.connect(pipelines[pair.pipeline()], id, *peer);
    if (!own) return in_pipeline(pair, own.error());
    proto::QueuePair& connected = *answer.add_pairs();
    connected.set_pipeline(pair.pipeline());
    wire::write_queue_pair(*own, connected);
  }
  return ok_status();
}

// Refuses a change while the part gathers: the state that it begins with may have different models.
Status gathers(const Job& job) {
  return Error{ErrorCode::kUnavailable,
               job.spec().title() + " gathers its ranks; try again once it runs"};
}

}  // namespace

void release_barriers(RegistryContext& context, Job& job) {
  const auto released = job.release_barrier();
  if (!released) return;
  proto::BoxMessage message;
  message.mutable_barrier_released()->set_sequence(*released);
  context.connections.send_all(job, message);
}

bool MemberRequests::handle(ConnectionId id, const Connection& connection,
                            const proto::WorkerMessage& message) {
  PBOX_CHECK(connection.job != nullptr);
  switch (message.kind_case()) {
    case proto::WorkerMessage::kHeartbeat:
      on_heartbeat(id, connection, message.heartbeat());
      return true;
    case proto::WorkerMessage::kBarrier: on_barrier(connection, message.barrier()); return true;
    case proto::WorkerMessage::kSetLearningRate:
      on_learning_rate(id, connection, message.set_learning_rate());
      return true;
    case proto::WorkerMessage::kSetPriorities:
      on_priorities(id, connection, message.set_priorities());
      return true;
    case proto::WorkerMessage::kSetSync:
      on_set_sync(id, connection, message.set_sync());
      return true;
    case proto::WorkerMessage::kQueuePairs:
      on_queue_pairs(id, connection, message.queue_pairs());
      return true;
    case proto::WorkerMessage::kPortGivenUp:
      on_port_given_up(connection, message.port_given_up());
      return true;
    default: return false;
  }
}

void MemberRequests::on_heartbeat(ConnectionId id, const Connection& connection,
                                  const proto::Heartbeat& request) {
  // One bucket for each staleness up to the bound, and one for all that is above it.
  constexpr int kBucketsMax = wire::kStalenessMax + 2;
  const auto& reads = request.reads_by_staleness();
  Member& member = connection.job->members()[connection.rank];
  member.reads_by_staleness.assign(reads.begin(),
                                   reads.begin() + std::min(reads.size(), kBucketsMax));
  const proto::FinishedRounds& finished = request.finished();
  const auto& by_pipeline = finished.busy_ns_by_pipeline();
  const int pipelines = std::min(by_pipeline.size(), static_cast<int>(limits::kPipelinesMax));
  member.progress = {finished.rounds(),
                     finished.at_ns(),
                     finished.busy_ns(),
                     {by_pipeline.begin(), by_pipeline.begin() + pipelines}};
  proto::BoxMessage answer;
  answer.mutable_heartbeat()->set_sequence(request.sequence());
  context_.connections.send(id, std::move(answer));
}

void MemberRequests::on_barrier(const Connection& connection, const proto::Barrier& request) {
  PBOX_DCHECK(connection.rank < connection.job->members().size());
  connection.job->members()[connection.rank].barrier_sequence = request.sequence();
  release_barriers(context_, *connection.job);
}

void MemberRequests::on_learning_rate(ConnectionId id, const Connection& connection,
                                      const proto::SetLearningRate& request) {
  if (!std::isfinite(request.learning_rate()) || request.learning_rate() < 0) {
    context_.connections.refuse(
        id, {ErrorCode::kInvalidArgument, "learning_rate must be finite and >= 0"});
    return;
  }
  Job& job = *connection.job;
  Member& member = job.members()[connection.rank];
  member.learning_rates_set = std::max(member.learning_rates_set, request.sequence());
  member.learning_rate = request.learning_rate();
  const auto confirm = [this, alive = std::weak_ptr(context_.alive), id, request] {
    if (alive.expired()) return;
    proto::BoxMessage message;
    *message.mutable_learning_rate_set() = request;
    context_.connections.send(id, std::move(message));
  };
  const bool counts = job.members().learning_rate_setter() == connection.rank;
  if (!counts || !job.follow_learning_rate(host_, confirm)) confirm();
}

void MemberRequests::on_priorities(ConnectionId id, const Connection& connection,
                                   const proto::SetPriorities& request) {
  Job& job = *connection.job;
  const size_t tensors = job.spec().tensors.size();
  const auto given = static_cast<size_t>(request.by_tensor_size());
  const auto policy = static_cast<wire::PriorityPolicy>(request.policy());
  const bool may_be_given = policy != wire::PriorityPolicy::kFifo;
  const bool fits = given == 0 || (may_be_given && given == tensors);
  if (request.policy() >= wire::kPriorityPolicyCount || !fits) {
    context_.connections.refuse(
        id, {ErrorCode::kInvalidArgument,
             "priority policy " + std::to_string(request.policy()) + " with " +
                 std::to_string(given) + " priorities for " + std::to_string(tensors) +
                 " tensors; 0 explicit and 1 forward-order take one for each or none, 2 fifo "
                 "none"});
    return;
  }
  set_priorities(job, policy, {request.by_tensor().begin(), request.by_tensor().end()},
                 "rank " + std::to_string(connection.rank));
}

Status MemberRequests::set_priorities(const std::string& name, wire::PriorityPolicy policy) {
  const std::vector<Job*> parts = context_.jobs.parts_of(name);
  if (parts.empty()) return Error{ErrorCode::kNotFound, "no job '" + name + "' on this box"};
  for (Job* job : parts) set_priorities(*job, policy, {}, "the operator");
  return ok_status();
}

void MemberRequests::set_priorities(Job& job, wire::PriorityPolicy policy,
                                    std::vector<int32_t> by_tensor, const std::string& author) {
  const bool learned = policy == wire::PriorityPolicy::kForwardOrder && !by_tensor.empty();
  job.set_priorities(host_, policy, std::move(by_tensor));
  context_.note(Severity::kInfo, "priorities_set",
                job.spec().title() + ": priority policy " +
                    wire::kPriorityPolicyNames[static_cast<size_t>(policy)] +
                    (learned ? ", learned by " : ", set by ") + author,
                job.spec().name);
  if (!job.running()) return;  // the ranks are told with their sessions
  proto::BoxMessage message;
  *message.mutable_set_priorities() = *job.priorities_set();
  context_.connections.send_all(job, message);
}

void MemberRequests::on_set_sync(ConnectionId id, const Connection& connection,
                                 const proto::SetSync& request) {
  proto::BoxMessage message;
  proto::SetSync& answer = *message.mutable_sync_set();
  answer.set_sequence(request.sequence());
  const auto change = parse_change(request);
  const Status set =
      change ? set_sync(*connection.job, *change, "rank " + std::to_string(connection.rank))
             : Status(change.error());
  if (!set) answer.set_refusal(set.error().message);
  context_.connections.send(id, std::move(message));
}

Status MemberRequests::set_sync(const std::string& name, const SyncChange& change) {
  const std::vector<Job*> parts = context_.jobs.parts_of(name);
  if (parts.empty()) return Error{ErrorCode::kNotFound, "no job '" + name + "' on this box"};
  bool is_named = false;
  for (const Job* job : parts) {
    const auto& tensors = job->spec().tensors;
    is_named = is_named || std::any_of(tensors.begin(), tensors.end(),
                                       [&](const auto& tensor) { return change.names(tensor); });
    if (!job->running()) return gathers(*job);
    SyncInForce models = job->shards().models().in_force();
    if (const Status status = apply(change, job->spec(), models); !status) return status;
  }
  if (!is_named) {
    return Error{ErrorCode::kInvalidArgument, "job '" + name + "' has no tensor '" +
                                                  change.tensors +
                                                  "' on this box; the name may contain * and ?"};
  }
  for (Job* job : parts) {
    const Status set = set_sync(*job, change, "the operator");
    PBOX_CHECK(set);  // apply() has accepted it
  }
  return ok_status();
}

Status MemberRequests::set_sync(Job& job, const SyncChange& change, const std::string& author) {
  const Status set = job.running() ? job.shards().change_sync(host_, change) : gathers(job);
  const std::string what =
      job.spec().title() + ": " + author + " sets sync " + wire::sync_text(change.sync) + " for " +
      (change.tensors.empty() ? std::string("all tensors") : "tensors '" + change.tensors + "'");
  context_.note(set ? Severity::kInfo : Severity::kWarning, set ? "sync_set" : "sync_refused",
                set ? what : what + ": " + set.error().message, job.spec().name);
  return set;
}

// Offers the worker lanes of shared memory, for all pipelines of its session.
Status MemberRequests::offer_lanes(ConnectionId id, const Connection& connection,
                                   proto::QueuePairs& answer) {
  const auto& shards = connection.job->shards();
  const bool reads_results = connection.job->members()[connection.rank].is_from_start;
  const uint64_t memory_bytes_max = worker_memory_bytes_max(connection.job->spec());
  std::vector<PipelineHost::LaneSeat> seats;
  for (size_t index = 0; index < shards.all().size(); ++index) {
    const pipeline::JobShard& shard = *shards.all()[index];
    seats.push_back({shards.pipelines()[index],
                     {.spi = shard.sessions()[connection.rank].spi,
                      .memory_bytes_max = memory_bytes_max,
                      .results = reads_results ? &shard.arena() : nullptr}});
  }
  const auto offer = host_.offer_lanes(id, std::move(seats));
  if (!offer) return offer.error();
  proto::SharedMemory& shared = *answer.mutable_shared_memory();
  shared.set_socket(offer->socket);
  shared.set_token(offer->token.data(), offer->token.size());
  return ok_status();
}

// A worker with an RDMA device connects its queue pairs to those of the box, or asks for lanes of
// shared memory. Both end with the control connection.
void MemberRequests::on_queue_pairs(ConnectionId id, const Connection& connection,
                                    const proto::QueuePairs& request) {
  proto::BoxMessage message;
  proto::QueuePairs& answer = *message.mutable_queue_pairs();
  answer.set_sequence(request.sequence());
  const auto& pipelines = connection.job->shards().pipelines();
  const Status connected = request.has_shared_memory()
                               ? offer_lanes(id, connection, answer)
                               : connect_all(host_, pipelines, id, request, answer);
  if (!connected) {
    answer.clear_pairs();
    answer.set_refusal(connected.error().message);
    // A worker with the port "auto" asks every box, and works without lanes too.
    context_.note(request.has_shared_memory() ? Severity::kDebug : Severity::kWarning,
                  "queue_pairs_refused", connection.peer + ": " + connected.error().message);
  }
  context_.connections.send(id, std::move(message));
}

void MemberRequests::on_port_given_up(const Connection& connection,
                                      const proto::PortGivenUp& report) {
  ++context_.totals.ports_given_up;
  context_.note(Severity::kWarning, "port_given_up",
                connection.job->spec().title() + ": rank " + std::to_string(connection.rank) +
                    " (" + connection.peer + ") uses port '" + printable(report.next()) +
                    "' instead of '" + printable(report.port()) +
                    "': " + printable(report.reason(), kReasonBytes),
                connection.job->spec().name);
}

}  // namespace pbox::control
