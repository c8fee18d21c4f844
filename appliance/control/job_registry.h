// The jobs of one box, or what it has of them, as a state machine: control connections open, speak
// and close, time passes; out come messages to send and connections to close. No socket and no
// thread in here. Control thread.
//
// A job that is on several boxes is in parts, and each part is here what a job on one box is: its
// ranks join it, it starts, loses ranks and ends by itself.
//
// A job gathers until all its ranks have joined, then runs until all have left. A rank that is lost
// may come back: the same process after a broken connection, or another in its place. One that does
// not is waited for, left out, or ends the job, as the job's policy says; then everybody is told
// which it was. A job whose box was lost gathers again, and goes on from what its workers have
// consumed. Nobody waits in silence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/job.h"
#include "appliance/control/part_directory.h"
#include "appliance/control/snapshot_run.h"
#include "appliance/snapshot/store.h"
#include "appliance/storage/epoch_store.h"

namespace pbox::appliance {

struct RegistryOptions {
  std::string box_name = {};
  JobLimits job_limits = {};
  uint32_t jobs_max = limits::kJobsMax;
  uint64_t job_memory_bytes = UINT64_MAX;      // of all jobs together
  std::vector<uint64_t> arena_bytes = {};      // of all jobs on each pipeline; empty: no bound
  uint64_t join_timeout_ns = 600'000'000'000;  // at most; for a worker that states none
  uint64_t dead_after_ns = 10'000'000'000;     // without traffic on the control connection
  uint64_t lost_timeout_ns = 10'000'000'000;
  uint64_t hello_timeout_ns = 10'000'000'000;  // from connecting to JOIN
  uint32_t heartbeat_interval_ms = 1000;
  uint32_t window_bytes = 0;  // most per worker and pipeline; 0: 1 MiB
  bool payload_crc = false;
  uint64_t snapshot_every_ns = 0;  // 0: only when an operator asks
  uint64_t seed = 1;               // of the draws that tell a session from earlier ones
};

struct Action {
  enum class Kind { kSend, kClose } kind = Kind::kSend;  // kClose: after what was sent before
  ConnectionId connection = 0;
  proto::BoxMessage message;
};

// Something an operator wants to read in the log.
struct RegistryEvent {
  enum class Severity { kDebug, kInfo, kWarning } severity = Severity::kInfo;
  const char* name = "";  // stable: "job_started", "job_failed", ...
  std::string text;
};

struct RegistryTotals {
  uint64_t joins_refused = 0, workers_lost = 0, jobs_failed = 0, jobs_finished = 0;
  uint64_t workers_back = 0, workers_excluded = 0, jobs_recovered = 0;
  uint64_t parts_moved = 0;  // to other boxes
  uint64_t optimizer_restarts = 0;
  uint64_t backups_lost = 0;    // boxes that had copies of parts that ran here
  uint64_t ports_given_up = 0;  // by workers
  uint64_t snapshots_taken = 0, snapshots_failed = 0;
};

class JobRegistry {
 public:
  // All outlive the registry. `shelf`: null: no snapshots. `upstream`: null: sums stay here.
  // `backups`: null: no other box has copies.
  JobRegistry(const RegistryOptions& options, PipelineHost& host, Epochs& epochs,
              PartDirectory& parts, snapshot::SnapshotStore* shelf = nullptr,
              Upstream* upstream = nullptr, BackupBoxes* backups = nullptr);
  ~JobRegistry() { *alive_ = false; }
  JobRegistry(const JobRegistry&) = delete;
  JobRegistry& operator=(const JobRegistry&) = delete;

  void on_open(ConnectionId connection, const std::string& peer, bool ipv6, uint64_t now_ns);
  void on_message(ConnectionId connection, const std::string& body, uint64_t now_ns);
  void on_closed(ConnectionId connection, const std::string& reason, uint64_t now_ns);
  void on_tick(uint64_t now_ns);
  // Parts that other boxes have now are given up, and their workers told where to go on; such as
  // cannot move are taken back.
  void on_parts_changed();
  // The box goes away: nobody may join from now on, and it is to stay as long as states are kept,
  // for a while at most. Jobs that outlive it are left without a word: their workers look for it,
  // or for another. All others end, and their workers are told.
  void shut_down();

  // What is to be done on connections, in order; empties the list.
  std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

  // What happened since the last call, in order; empties the list.
  std::vector<RegistryEvent> take_events() { return std::exchange(events_, {}); }

  // Takes effect for what happens from now on; running jobs keep their memory and time-outs.
  void set_options(const RegistryOptions& options) { options_ = options; }

  // The operator's word, for what is on this box: tensors as registered, learned anew, or equal.
  Status set_priorities(const std::string& job, wire::PriorityPolicy policy);

  // A trace of the job's rounds from now on. kNotFound: no such job. kUnavailable: it has no rounds
  // to be traced, or another trace is being recorded: one at a time.
  Status begin_trace(const std::string& job, uint64_t duration_ns, uint64_t now_ns);
  // What it recorded. kUnavailable: there is none, or it has not ended.
  Result<TraceView> trace(const std::string& job, uint64_t now_ns);

  // A snapshot of the job, of all its parts wherever they are; snapshot() says how far it is.
  // kNotFound: no part of the job is here. kInvalidArgument: of such a job there are none.
  // kUnavailable: not now.
  Status begin_snapshot(const std::string& job, uint64_t timeout_ns, uint64_t now_ns);
  // The last that was asked for here; nothing: none was.
  std::optional<SnapshotView> snapshot(const std::string& job) const;

  // A job whose parts are on several boxes shows those of this one.
  std::vector<JobView> views(uint64_t now_ns) const;
  std::vector<StragglerView> stragglers(uint64_t now_ns) const;
  // Some part of it is here.
  bool has_job(const std::string& name) const;
  // Of the parts that run here and could go on at another box, by job and part.
  std::vector<PartProgress> progress() const;
  uint64_t memory_taken_bytes() const;
  // Parts that went elsewhere, and whose state no box has said that it has. Of copies others have
  // what they are of.
  size_t states_kept() const;
  const RegistryTotals& totals() const { return totals_; }
  size_t connection_count() const { return connections_.size(); }

 private:
  using JobKey = std::pair<std::string, uint32_t>;  // name and part
  static JobKey key(const JobSpec& spec) { return {spec.name, spec.part}; }
  struct Connection {
    std::string peer;
    bool ipv6 = false;
    uint64_t opened_ns = 0;
    uint64_t heard_ns = 0;
    Job* job = nullptr;  // null until JOIN was accepted
    uint32_t rank = 0;
  };

  // job_registry_join.cc: who may join, and what it then is.
  void on_join(ConnectionId id, Connection& connection, const proto::Join& join, uint64_t now_ns);
  static Status check_version(uint32_t protocol_version, const std::string& software);
  Result<Job*> admit(const proto::Join& join, uint64_t now_ns);
  Result<Job*> make_job(const proto::Join& join, JobSpec spec, uint64_t now_ns);
  Status check_memory(const Job& job) const;
  Status check_member(const Job& job, const JobSpec& spec, const proto::Join& join) const;
  Status check_gathering(const Job& job, const proto::Join& join) const;
  Status check_return(const Job& job, const proto::Join& join) const;
  void seat(ConnectionId id, Connection& connection, const proto::Join& join, uint64_t now_ns);
  void on_rounds(ConnectionId id, Connection& connection, const proto::RoundMap& rounds);

  // job_registry_members.cc: ranks that come, go and come back.
  void await_epoch(Job& job, const Error& error);
  void start_job(Job& job);
  void send_away(Job& job, uint32_t rank);
  void exclude_missing(Job& job);
  void send_sessions(Job& job, bool recovers);
  void send_session(Job& job, uint32_t rank, const std::vector<uint32_t>& open_rounds);
  void readmit(Job& job, uint32_t rank, uint64_t now_ns);
  bool may_do_without_missing(const Job& job) const;
  std::string no_majority(const Job& job) const;
  void exclude(Job& job, uint32_t rank, uint64_t now_ns);
  void gather_again(Job& job, uint32_t but_rank, uint64_t now_ns, const char* event,
                    std::string why);
  void tell_membership(const Job& job);
  void release_barriers(Job& job);
  void lose(Job& job, uint32_t rank, const std::string& reason, uint64_t now_ns);
  void tick_gathering(Job& job, uint64_t now_ns);
  void on_leave(ConnectionId id, Connection& connection);
  void on_barrier(Connection& connection, const proto::Barrier& barrier);
  void on_learning_rate(ConnectionId id, Connection& connection,
                        const proto::SetLearningRate& request);
  void on_heartbeat(ConnectionId id, const Connection& connection,
                    const proto::Heartbeat& heartbeat);
  void on_port_given_up(const Connection& connection, const proto::PortGivenUp& told);
  void on_queue_pairs(ConnectionId id, const Connection& connection,
                      const proto::QueuePairs& asked);
  void on_priorities(ConnectionId id, Connection& connection, const proto::SetPriorities& request);
  void set_priorities(Job& job, wire::PriorityPolicy policy, std::vector<int32_t> by_tensor,
                      const std::string& who);
  std::vector<Job*> parts_of(const std::string& name);
  void tick_job(Job& job, uint64_t now_ns);
  void refuse(ConnectionId id, const Error& error);
  void on_ask_part_map(ConnectionId id, const proto::AskPartMap& question);
  void hang_up(Job& job);
  void send_to(ConnectionId id, const proto::PartPlace& place);

  // job_registry_state.cc: parts in mode optimize that come and go with what they are.
  void keep_state(Job& job);
  void keep(const Job& job, PartState state, bool is_copy, CopyName copy);
  void on_ask_state(ConnectionId id, const proto::AskState& question);
  bool awaits_state(Job& job);
  void begin_transfer(Job& job, const Member& newest);
  void ask_state(Job& job);
  void on_state(const JobKey& part, uint64_t number, const Result<proto::PartState>& answer);
  void give_up_state(Job& job, const std::string& why);
  const PartState* state_for(const Job& job);
  bool tick_transfer(Job& job);
  void settle_source(Job& job);
  void tell_taken(const StateSource& source);
  void drop_old_states();

  // job_registry_snapshot.cc: snapshots.
  struct PartCut {
    uint64_t number = 0;  // of the snapshot
    uint32_t round = 0;
    uint64_t heard_ns = 0;  // when somebody last asked
    uint64_t bytes = 0;     // of memory that it takes
    Job::Cuts cuts;         // while the pipelines have them
    proto::CutProgress progress;
  };
  struct SnapshotEntry {
    std::shared_ptr<SnapshotRun> run;
    uint64_t begun_ns = 0;
  };
  void on_ask_cut(ConnectionId id, const proto::AskCut& question);
  Result<proto::CutProgress> take_cut(const proto::AskCut& question);
  Result<proto::CutProgress> survey(const Job& job);
  Status begin_cut(Job& job, const proto::AskCut& question);
  void look_at_cut(Job& job, PartCut& cut);
  void write_cut(const Job& job, PartCut& cut);
  void end_cut(const JobKey& part);
  void lose_cut(const JobKey& part);
  void tick_snapshots();
  void tell_end(const SnapshotRun& run);
  void begin_due_snapshots();
  bool awaits_snapshot(Job& job, const PartState* state);
  bool awaits_begin(Job& job, const PartState* state);
  bool awaits_moments(Job& job, const PartState* state);
  void on_moments(const JobKey& part, uint64_t number, Result<snapshot::Restored> loaded);
  void on_restored(const JobKey& part, uint64_t number, Result<snapshot::Restored> loaded);

  // job_registry_relay.cc: jobs whose sums go on to another box.
  bool awaits_relay(Job& job);
  void on_relay(const JobKey& part, uint64_t number, const Status& status);

  // job_registry_backup.cc: parts that other boxes have copies of, and copies that this one has.
  std::string name_of_copy(const JobSpec& spec);
  bool awaits_backup(Job& job, const PartState* state);
  bool join_backup(Job& job);
  std::unique_ptr<Relay> join_box(const Job& job, const proto::PartPlace& place,
                                  const std::string& name, uint64_t number);
  void on_backup(const JobKey& part, uint64_t number, const Status& status);
  void tick_backup(Job& job);
  void look_after_backup(Job& job);
  void look_for_backup(Job& job);
  void lose_backup(Job& job, const std::string& why);
  void on_probe(Job& job, const Status& status);
  void keep_copy(Job& job);
  void forget_copy(const CopyName& copy);

  void move_away(Job& job, const proto::PartPlace& place);
  void fail_job(Job& job, const Error& error);
  void remove_if_over(Job& job);
  // It is over, here and anywhere else; remove: only here.
  void end(Job& job);
  void remove(Job& job);
  void close(Job& job);
  void share_credit();
  uint32_t credit_on(uint32_t pipeline, const Job& job) const;
  void note(RegistryEvent::Severity severity, const char* name, std::string text) {
    events_.push_back({severity, name, std::move(text)});
  }
  std::vector<uint64_t> pipeline_loads() const;
  void send(ConnectionId id, proto::BoxMessage message);

  RegistryOptions options_;
  PipelineHost& host_;
  Epochs& epochs_;
  PartDirectory& parts_;
  SpiAllocator spis_;
  struct KeptState {
    PartState state;
    uint64_t kept_for_ns = 0;  // from the last that was heard of it
    uint64_t until_ns = 0;
    bool is_copy = false;  // of another box's part; its epoch is known to who asks
    CopyName copy;         // that another box has of it
  };
  std::map<JobKey, KeptState> kept_;
  snapshot::SnapshotStore* shelf_;
  Upstream* upstream_;
  BackupBoxes* backups_;
  uint64_t copies_named_ = 0;
  std::map<JobKey, PartCut> cuts_;
  std::map<std::string, SnapshotEntry> snapshots_;  // by job: the last that this box took
  uint64_t questions_ = 0;  // for others' states, for snapshots, relays and copies
  bool is_asking_ = false;  // an answer that comes now is taken note of, and no more
  bool shuts_down_ = false;
  std::map<JobKey, std::unique_ptr<Job>> jobs_;
  std::map<ConnectionId, Connection> connections_;
  uint64_t now_ns_ = 0;                                         // of the event at hand
  uint64_t started_ns_ = 0;                                     // the first of them
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for answers that come late
  std::vector<Action> actions_;
  std::vector<RegistryEvent> events_;
  RegistryTotals totals_;
};

// Bytes that a worker may have in flight on a pipeline for one of its job's `parts` there: for all
// of them at most `window_bytes` (0: 1 MiB), since they meet on one path; and for all of the
// `sessions` that share the receive buffer three quarters of that, so that it never overflows
// however the workers' bursts coincide.
uint32_t receivable_bytes(const PipelineInfo& info, uint32_t fragment_bytes);
uint32_t credit_share(uint32_t receive_buffer_bytes, uint32_t sessions, uint32_t window_bytes,
                      uint32_t parts);

}  // namespace pbox::appliance
