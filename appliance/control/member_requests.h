// Requests of workers that are members of a job: heartbeats, barriers, learning rates, priorities,
// consistency models, queue pairs and ports given up. Used on the control thread.
#pragma once

#include <string>
#include <vector>

#include "appliance/control/registry_context.h"

namespace pbox::control {

// Tells the ranks which barrier all of them have reached, if they do not know it yet. A process in
// a lost rank's place may come to a barrier that the others passed with its predecessor before they
// left, so ranks that have left are not waited for.
void release_barriers(RegistryContext& context, Job& job);

class MemberRequests {
 public:
  // Both arguments must outlive this object.
  MemberRequests(RegistryContext& context, PipelineHost& host) : context_(context), host_(host) {}

  // Carries the request out and answers it. Returns false if the message is none of these requests.
  bool handle(ConnectionId id, const Connection& connection, const proto::WorkerMessage& message);
  // Sets the priority policy for all parts of a job on this box, as an operator asks. Priorities
  // are then as registered (explicit), learned again (forward-order) or equal (fifo). kNotFound if
  // there is no such job.
  Status set_priorities(const std::string& job, wire::PriorityPolicy policy);
  // Changes consistency models in all parts of a job on this box, as an operator asks, or in none.
  // kNotFound: there is no such job. kInvalidArgument: none of its tensors here has such a name, or
  // some tensor cannot have the model. kUnavailable: a part gathers its ranks.
  Status set_sync(const std::string& job, const SyncChange& change);

 private:
  void on_heartbeat(ConnectionId id, const Connection& connection, const proto::Heartbeat& request);
  void on_barrier(const Connection& connection, const proto::Barrier& request);
  void on_learning_rate(ConnectionId id, const Connection& connection,
                        const proto::SetLearningRate& request);
  void on_priorities(ConnectionId id, const Connection& connection,
                     const proto::SetPriorities& request);
  void on_set_sync(ConnectionId id, const Connection& connection, const proto::SetSync& request);
  void on_queue_pairs(ConnectionId id, const Connection& connection,
                      const proto::QueuePairs& request);
  Status offer_lanes(ConnectionId id, const Connection& connection, proto::QueuePairs& answer);
  void on_port_given_up(const Connection& connection, const proto::PortGivenUp& report);
  // `author`: "rank 3" or "the operator".
  void set_priorities(Job& job, wire::PriorityPolicy policy, std::vector<int32_t> by_tensor,
                      const std::string& author);
  Status set_sync(Job& job, const SyncChange& change, const std::string& author);

  RegistryContext& context_;
  PipelineHost& host_;
};

}  // namespace pbox::control
