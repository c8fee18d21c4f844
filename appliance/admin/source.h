// The interface through which the admin server reads and changes the box. Called on the control
// thread only. All answers are values, so they stay valid.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/admin/history.h"
#include "appliance/cluster/balance_view.h"
#include "appliance/cluster/box_record.h"
#include "appliance/control/job_view.h"
#include "appliance/control/snapshot_run.h"
#include "appliance/control/straggler_view.h"
#include "appliance/control/sync_spec.h"
#include "appliance/control/tenants.h"
#include "appliance/control/trace_view.h"
#include "base/result.h"
#include "nic/port_counters.h"
#include "nic/wire/schedule.h"
#include "pipeline/observe/counters.h"

namespace pbox::admin {

struct PipelineView {
  uint32_t index = 0;
  int cpu = -1;   // -1: not pinned
  int node = -1;  // NUMA node; -1: any
  std::string address;
  uint16_t udp_port = 0;
  std::string port;      // "socket", "dpdk" or "rdma"
  std::string nic;       // empty: none
  std::string affinity;  // how packets find the pipeline's queue: "udp-port", "rss-hash", ...
  // Readable at any time, without locks.
  const pipeline::Counters* counters = nullptr;
  const nic::PortCounters* port_counters = nullptr;
};

struct BoxView {
  std::string name;
  std::string version;
  bool ready = false;     // pipelines run and joins are accepted
  bool draining = false;  // SIGTERM was received
  bool insecure = false;  // packets carry no keyed tag
  bool has_keys = false;  // control connections have TLS
  double uptime_s = 0;
  uint64_t job_memory_bytes = 0;  // held by all jobs together
  uint64_t job_memory_limit_bytes = 0;
  uint64_t joins_refused = 0, workers_lost = 0, workers_back = 0, workers_excluded = 0;
  uint64_t jobs_failed = 0, jobs_finished = 0, jobs_recovered = 0;
  uint64_t optimizer_restarts = 0;
  uint64_t backups_lost = 0;
  uint64_t ports_given_up = 0;  // times a worker changed to the next port of its PBOX_PORT
  uint64_t parts_moved = 0;
  uint64_t snapshots_taken = 0, snapshots_failed = 0;
  uint32_t control_connections = 0;
  uint64_t handshakes_refused = 0;                 // peers whose TLS handshake has failed
  std::optional<int64_t> keys_expire_unix_s = {};  // absent without keys
  uint64_t audit_lost = 0;                         // lines that the audit log could not write
  std::vector<std::string> links_down = {};        // devices of data.port = dpdk without a link
  std::map<std::string, control::TenantUse, std::less<>> tenants = {};
};

struct ClusterView {
  std::string name;
  std::string store = "local";  // "etcd"; "local": the box is alone
  bool store_up = false;
  std::string store_error = {};  // why the store is down; empty while it is up
  std::vector<std::pair<std::string, uint64_t>> store_errors = {};  // failed calls by operation
  bool is_leader = false;                                           // whether this box leads
  // The following are as the store last reported them.
  std::optional<cluster::Leader> leader = {};
  std::vector<cluster::BoxRecord> boxes = {};           // in the order of their names
  std::map<std::string, cluster::BoxDuty> duties = {};  // by box; empty on a single box
};

class AdminSource {
 public:
  virtual ~AdminSource() = default;
  virtual BoxView box() const = 0;
  virtual std::vector<PipelineView> pipelines() const = 0;
  virtual std::vector<control::JobView> jobs() const = 0;
  virtual std::vector<control::StragglerView> stragglers() const = 0;
  virtual HistoryView history() const = 0;
  virtual ClusterView cluster() const = 0;
  virtual cluster::BalancingView balancing() const = 0;
  // Fails with kNotFound if there is no such job.
  virtual Status set_priorities(const std::string& job, wire::PriorityPolicy policy) = 0;
  // Fails with kNotFound if there is no such job. The message of any other error says which tensor
  // cannot have the model, and why, or that the job does not run now.
  virtual Status set_sync(const std::string& job, const control::SyncChange& change) = 0;
  // Starts to trace the job for that many seconds; trace() returns the trace afterwards. Fails with
  // kNotFound if there is no such job, and with kUnavailable if it cannot be traced, or not now.
  virtual Status begin_trace(const std::string& job, double seconds) = 0;
  // Fails with kNotFound if there is no such job, and with kUnavailable if the job was not traced
  // or the trace is not complete yet.
  virtual Result<control::TraceView> trace(const std::string& job) = 0;
  // Changes the duty of the box; cluster() shows the progress. Fails with kNotFound if there is no
  // such box.
  virtual Status set_duty(const std::string& box, cluster::Duty duty) = 0;
  // Starts a snapshot; snapshot() shows the progress. Fails with kNotFound if this box has no part
  // of the job, with kInvalidArgument if jobs of this kind have no snapshots, and with kUnavailable
  // if none can start now.
  virtual Status begin_snapshot(const std::string& job, double timeout_s) = 0;
  // Returns the job's newest snapshot that this box was asked for; nullopt if there was none.
  virtual std::optional<control::SnapshotView> snapshot(const std::string& job) const = 0;
  // Returns the newest flight records of all pipelines, as images of
  // pipeline/observe/flight_record.h.
  virtual Result<std::string> flight() const = 0;
};

}  // namespace pbox::admin
