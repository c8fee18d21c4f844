// State that the registry and its parts share: options, time, jobs, connections, log events and
// totals. The registry owns it; its parts refer to it. Used on the control thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/audit/record.h"
#include "appliance/control/connection_keys.h"
#include "appliance/control/control_connections.h"
#include "appliance/control/job_table.h"
#include "appliance/control/session_maker.h"
#include "appliance/control/tenants.h"
#include "base/entropy.h"
#include "base/limits.h"
#include "base/rng.h"
#include "nic/wire/control_versions.h"

namespace pbox::control {

struct RegistryOptions {
  std::string box_name = {};
  JobLimits job_limits = {};
  uint32_t jobs_max = limits::kJobsMax;
  TenantPolicy tenants = {};
  uint64_t job_memory_bytes = UINT64_MAX;  // memory of all jobs together, in bytes
  // Memory of all jobs together on each pipeline, in bytes; empty if there is no bound.
  std::vector<uint64_t> arena_bytes = {};
  uint64_t join_timeout_ns = 600'000'000'000;  // upper bound; default for a worker that states none
  uint64_t dead_after_ns = 10'000'000'000;     // silence after which a connection counts as lost
  uint64_t lost_timeout_ns = 10'000'000'000;   // default for a job that states none
  uint64_t hello_timeout_ns = 10'000'000'000;  // from connecting to JOIN
  uint32_t heartbeat_interval_ms = 1000;
  uint32_t window_bytes = 0;  // upper bound per worker and pipeline; 0 means 1 MiB
  bool payload_crc = false;
  uint64_t snapshot_every_ns = 0;  // 0 if snapshots are taken only when an operator asks
  wire::AddedFields added_fields = wire::added_fields();
  // Whether a worker whose data address is on a different host than its control connection must
  // prove that it can be reached there. Not needed where packets come through a queue pair of their
  // own (RDMA).
  bool checks_addresses = true;
  // Makes the keys of all sessions' packets; null if packets have none. Outlives the registry.
  ConnectionKeys* keys = nullptr;
  audit::Sink audit = {};  // empty if there is no audit log
  // Draws numbers that strangers must not guess: those of sessions, and names of backup copies.
  Draws draw = seeded_draws(1);
  // Returns the box's traffic in the last second, in the busier direction.
  std::function<double()> traffic_bytes_per_s = [] { return 0.0; };
};

// An event for the operator's log.
struct RegistryEvent {
  enum class Severity { kDebug, kInfo, kWarning } severity = Severity::kInfo;
  const char* name = "";  // stable: "job_started", "job_failed", ...
  std::string text;
  std::string job = {};  // name of its job; empty if it is about the box or a peer
};

// Counts since the start of the box.
struct RegistryTotals {
  uint64_t joins_refused = 0, workers_lost = 0, jobs_failed = 0, jobs_finished = 0;
  uint64_t workers_back = 0, workers_excluded = 0, jobs_recovered = 0;
  uint64_t parts_moved = 0;  // to other boxes
  uint64_t refusals = 0;     // jobs and parts that found no room here
  uint64_t optimizer_restarts = 0;
  uint64_t backups_lost = 0;    // backup boxes of parts here that were lost or drained
  uint64_t ports_given_up = 0;  // ports that workers have stopped using
  uint64_t snapshots_taken = 0, snapshots_failed = 0;
};

struct RegistryContext {
  explicit RegistryContext(RegistryOptions box_options = {}) : options(std::move(box_options)) {}

  RegistryOptions options;
  uint64_t now_ns = 0;  // time of the event that is being handled
  JobTable jobs;
  ControlConnections connections;
  std::vector<RegistryEvent> events;
  RegistryTotals totals;
  // Expires with the registry. Answers that arrive later are dropped.
  std::shared_ptr<const bool> alive = std::make_shared<const bool>(true);

  SessionMaker session_maker() const { return {options.keys, options.box_name}; }
  // Returns a number for a question whose answer comes later. Never 0, never reused.
  uint64_t next_question() { return ++questions_; }
  void note(RegistryEvent::Severity severity, const char* name, std::string text,
            std::string job = {}) {
    events.push_back({severity, name, std::move(text), std::move(job)});
  }
  // Writes a record to the audit log. `peer`: the one that the record is about; null if that is
  // this box.
  void audit(audit::Record record, const Connection* peer) const {
    if (!options.audit) return;
    if (peer != nullptr) {
      if (peer->identity) record.who = tls::to_uri(*peer->identity);
      record.address = peer->peer;
    }
    options.audit(record);
  }

 private:
  uint64_t questions_ = 0;
};

// Returns the entry of the audit log about a JOIN.
audit::Record join_record(audit::Kind kind, const proto::Join& join, std::string reason = {});

// Why and how a part gathers its ranks once more.
struct Regathering {
  RegistryEvent event;                     // for the log
  std::optional<uint32_t> kept_rank = {};  // this rank's connection stays
  // The pipeline of each group of chunks from now on (JobShards::move_groups()); empty if no group
  // moves. If groups move, the ranks are told to join again. Otherwise their connections close
  // without a message, as when a box is lost.
  std::vector<uint32_t> group_pipelines = {};
};

// The services that the parts of the registry need from it.
class JobOwner {
 public:
  virtual ~JobOwner() = default;
  // Continues the start of this part: an answer that it waits for has been recorded.
  virtual void advance(const JobKey& part) = 0;
  // Ends the part here with this error, which its ranks are told. The job is gone on return.
  virtual void fail(Job& job, const Error& error) = 0;
  // Has the ranks of a running part join once more on this box. If all of them have left, the job
  // is gone on return.
  virtual void gather_again(Job& job, Regathering how) = 0;
  // Returns the memory of all jobs, kept states and cuts together, or of those of one tenant, in
  // bytes.
  virtual uint64_t memory_taken_bytes(std::optional<std::string_view> tenant) const = 0;
};

}  // namespace pbox::control
