// Workers with an RDMA device: their queue pairs are connected to the box's over the control
// connection, and are gone with it.
#include <set>

#include "appliance/control/job_registry.h"
#include "nic/wire/queue_pair.h"

namespace pbox::appliance {
namespace {

Error of_pipeline(const proto::QueuePair& asked, const Error& error) {
  return {error.code, "pipeline " + std::to_string(asked.pipeline()) + ": " + error.message};
}

// `pipelines`: of the box, by their index in the session.
Status connect_all(PipelineHost& host, const std::vector<uint32_t>& pipelines, ConnectionId id,
                   const proto::QueuePairs& asked, proto::QueuePairs& answer) {
  std::set<uint32_t> named;
  for (const proto::QueuePair& pair : asked.pairs()) {
    if (pair.pipeline() >= pipelines.size() || !named.insert(pair.pipeline()).second) {
      return of_pipeline(
          pair, {ErrorCode::kInvalidArgument, "there is no such pipeline, or it is named twice"});
    }
    const auto peer = wire::parse_queue_pair(pair);
    if (!peer) return of_pipeline(pair, peer.error());
    const auto own = host.connect(pipelines[pair.pipeline()], id, *peer);
    if (!own) return of_pipeline(pair, own.error());
    proto::QueuePair& connected = *answer.add_pairs();
    connected.set_pipeline(pair.pipeline());
    wire::write_queue_pair(*own, connected);
  }
  return ok_status();
}

}  // namespace

void JobRegistry::on_queue_pairs(ConnectionId id, const Connection& connection,
                                 const proto::QueuePairs& asked) {
  proto::BoxMessage message;
  proto::QueuePairs& answer = *message.mutable_queue_pairs();
  answer.set_sequence(asked.sequence());
  if (const Status connected = connect_all(host_, connection.job->pipelines(), id, asked, answer);
      !connected) {
    answer.clear_pairs();
    answer.set_refusal(connected.error().message);
    note(RegistryEvent::Severity::kWarning, "queue_pairs_refused",
         connection.peer + ": " + connected.error().message);
  }
  send(id, std::move(message));
}

void JobRegistry::on_port_given_up(const Connection& connection, const proto::PortGivenUp& told) {
  constexpr size_t kTextMax = 300;  // of what a worker says
  const auto cut = [](const std::string& text) { return text.substr(0, kTextMax); };
  ++totals_.ports_given_up;
  note(RegistryEvent::Severity::kWarning, "port_given_up",
       connection.job->spec().title() + ": rank " + std::to_string(connection.rank) + " (" +
           connection.peer + ") goes on over port '" + cut(told.next()) + "' in place of '" +
           cut(told.port()) + "': " + cut(told.reason()));
}

}  // namespace pbox::appliance
