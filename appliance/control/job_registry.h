// A state machine of the jobs of one box, or of the parts of jobs that the box has. Its inputs are
// control connections that open, send messages and close, and the time. Its outputs are messages to
// send and connections to close. It has no sockets and no threads, and runs on the control thread.
//
// A job on several boxes consists of parts. Each part is treated like a job on one box: its ranks
// join it, and it starts, loses ranks and ends by itself.
//
// A job gathers until all its ranks have joined (JobStarter), then runs until all have left. A lost
// rank may come back, as the same process after a broken connection or as a new process in its
// place. If it does not, the job waits for it, goes on without it or ends, by the job's policy, and
// all ranks are told. A job whose box was lost gathers again and goes on from what its workers have
// consumed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/backup_keeper.h"
#include "appliance/control/capacity.h"
#include "appliance/control/guard_watch.h"
#include "appliance/control/job_admission.h"
#include "appliance/control/job_starter.h"
#include "appliance/control/member_requests.h"
#include "appliance/control/part_directory.h"
#include "appliance/control/pipeline_moves.h"
#include "appliance/control/registry_context.h"
#include "appliance/control/relay_connector.h"
#include "appliance/control/retired_counts.h"
#include "appliance/control/session_sender.h"
#include "appliance/control/slot_mismatches.h"
#include "appliance/control/snapshot_coordinator.h"
#include "appliance/control/state_handover.h"
#include "appliance/control/step_verdicts.h"
#include "base/standstill.h"

namespace pbox::control {

class JobRegistry : private JobOwner {
 public:
  // All references and pointers must outlive the registry. `store` is null if this box keeps no
  // snapshots, `upstream` if its sums stay here, `backups` if no other box can have backup copies.
  JobRegistry(const RegistryOptions& options, PipelineHost& host, storage::Epochs& epochs,
              PartDirectory& parts, snapshot::SnapshotStore* store = nullptr,
              Upstream* upstream = nullptr, BackupBoxes* backups = nullptr);
  ~JobRegistry() override { context_.alive.reset(); }

  // `identity`: what the peer has proved to be; absent without TLS.
  void on_open(ConnectionId connection, const nic::Endpoint& peer, uint64_t now_ns,
               std::optional<tls::Identity> identity = {});
  void on_message(ConnectionId connection, const std::string& body, uint64_t now_ns);
  void on_closed(ConnectionId connection, const std::string& reason, uint64_t now_ns);
  // Does what is due. Call it several times a second, and when a pipeline has written to
  // PipelineHost::report_fd().
  void on_tick(uint64_t now_ns);
  // Gives up the parts that other boxes have now, and redirects their workers. Takes back parts
  // that cannot move.
  void on_parts_changed();
  // Shuts the box down. No rank can join from now on. Jobs that survive the loss of their box lose
  // their connections without a message, so that their workers look for this box or for another
  // one. All other jobs end, and their workers are told. The process should stay for a while, as
  // long as states_kept() is not 0.
  void shut_down();

  // Returns what has to be done on connections, in order, and empties the list.
  std::vector<Action> take_actions() { return context_.connections.take_actions(); }
  // Returns the log events since the last call, in order, and empties the list.
  std::vector<RegistryEvent> take_events() { return std::exchange(context_.events, {}); }

  // Call it instead of on_tick() if this thread has had no turn for longer than kStandstillNs.
  // Messages that arrived meanwhile have not been read yet, so this call ends no wait, and the gap
  // does not count as silence.
  void on_standstill(const TurnClock::Turn& turn, uint64_t now_ns);

  // Takes effect for what happens from now on. Running jobs keep their memory and time-outs. The
  // keys stay. The source of random numbers stays too, since a new one could draw the same numbers.
  void set_options(RegistryOptions options) {
    options.draw = std::move(context_.options.draw);
    options.keys = context_.options.keys;
    context_.options = std::move(options);
    sessions_.share_credit();  // weights of tenants may have changed
  }
  // Carries out the changes that an operator makes to jobs.
  MemberRequests& requests() { return requests_; }

  // Begins a trace of the job's rounds. kNotFound if there is no such job. kUnavailable if the job
  // does not run yet, or if another trace is being recorded: there is one at a time.
  Status begin_trace(const std::string& job, uint64_t duration_ns, uint64_t now_ns);
  // Returns what the trace has recorded. kUnavailable if there is none, or if it has not ended.
  Result<TraceView> trace(const std::string& job, uint64_t now_ns);

  // Like SnapshotCoordinator::begin() and SnapshotCoordinator::view().
  Status begin_snapshot(const std::string& job, uint64_t timeout_ns, uint64_t now_ns);
  std::optional<SnapshotView> snapshot(const std::string& job) const {
    return snapshots_.view(job);
  }

  // Returns one view for each job, which combines the job's parts on this box.
  std::vector<JobView> views(uint64_t now_ns) const;
  std::vector<StragglerView> stragglers(uint64_t now_ns) const;
  // Returns whether some part of the job is on this box.
  bool has_job(const std::string& name) const { return context_.jobs.has_job(name); }
  // Returns the job's parts that run here; nullopt if there are none.
  std::optional<RunningParts> running(const std::string& name) const;
  // Moves of chunks between the pipelines of this box.
  PipelineMoves& pipeline_moves() { return moves_; }
  uint64_t memory_taken_bytes(std::optional<std::string_view> tenant = {}) const override;
  // Returns the use of each tenant that has a job, a kept state or a connection here.
  TenantUses tenants() const;
  // Like control::free_capacity(); kept states and cuts count too.
  FreeCapacity free_capacity() const {
    return control::free_capacity(context_, host_.count(), memory_taken_bytes());
  }
  // Returns this box's report to the other boxes of the cluster.
  proto::BoxReport report() const;
  // Like StateHandover::states_kept().
  size_t states_kept() const { return handover_.states_kept(); }
  size_t connection_count() const { return context_.connections.size(); }
  const RegistryTotals& totals() const { return context_.totals; }

 private:
  // job_registry.cc: messages, time, and the end of jobs.
  bool answer_box(ConnectionId id, const proto::WorkerMessage& message);
  void on_ask_part_map(ConnectionId id, const proto::AskPartMap& question);
  void on_ask_state(ConnectionId id, const proto::AskState& question);
  void on_ask_cut(ConnectionId id, const proto::AskCut& question);
  void close_silent_connections();
  void advance(const JobKey& part) override { starter_.advance(part); }
  void fail(Job& job, const Error& error) override;
  // Removes the part because its job is over, on this box and on all others.
  void end(Job& job);
  // Removes the part from this box.
  void remove(Job& job);
  void close(Job& job);
  void abandon(Job& job);
  void move_away(Job& job, const proto::PartPlace& place);
  void keep_state(Job& job);
  void keep_copy(Job& job);

  // job_registry_members.cc: ranks that join, leave, are lost and come back.
  void on_join(ConnectionId id, Connection& connection, const proto::WorkerMessage& message);
  Result<std::optional<proto::PartPlace>> other_owner(const proto::Join& join) const;
  void admit_member(ConnectionId id, const Connection& connection,
                    const proto::WorkerMessage& message);
  void on_rounds(ConnectionId id, const Connection& connection, const proto::RoundMap& rounds);
  void readmit(Job& job, uint32_t rank);
  bool can_go_on_without_missing(const Job& job) const;
  std::string no_majority(const Job& job) const;
  void exclude(Job& job, uint32_t rank);
  void go_on_without(Job& job, uint32_t rank);
  void lose(Job& job, uint32_t rank, const std::string& reason);
  void on_leave(ConnectionId id, Connection& connection, const proto::Leave& leave);
  void tick_job(Job& job);
  void tick_lost(Job& job);
  void remove_if_over(Job& job);

  // job_registry_gathering.cc: parts whose ranks have not all joined.
  void gather_again(Job& job, Regathering how) override;
  void tick_gathering(Job& job);
  void tick_recovering(Job& job);

  RegistryContext context_;
  PipelineHost& host_;
  PartDirectory& parts_;
  SpiAllocator spis_;
  StateHandover handover_;
  SnapshotCoordinator snapshots_;
  RelayConnector relays_;
  BackupKeeper backups_;
  SessionSender sessions_;
  JobStarter starter_;
  JobAdmission admission_;
  MemberRequests requests_;
  PipelineMoves moves_;
  StepVerdicts verdicts_;
  GuardWatch guards_;
  SlotMismatches mismatches_;
  RetiredCounts retired_;
  bool is_shutting_down_ = false;
  uint64_t started_ns_ = 0;  // time of the first event; 0 before
};

}  // namespace pbox::control
