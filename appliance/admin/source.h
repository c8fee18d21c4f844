// What the admin server may ask the box for, and of it. Called on the control thread only; the
// answers are values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/cluster/balance_view.h"
#include "appliance/cluster/box_record.h"
#include "appliance/control/job_view.h"
#include "appliance/control/snapshot_run.h"
#include "appliance/control/straggler_view.h"
#include "appliance/control/trace_view.h"
#include "base/result.h"
#include "nic/port_counters.h"
#include "nic/wire/schedule.h"
#include "pipeline/observe/counters.h"

namespace pbox::appliance {

struct PipelineView {
  uint32_t index = 0;
  int cpu = -1;   // -1: not pinned
  int node = -1;  // -1: any
  std::string address;
  uint16_t udp_port = 0;
  std::string port;      // "socket", "dpdk"
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
  double uptime_s = 0;
  uint64_t job_memory_bytes = 0;  // taken by jobs
  uint64_t job_memory_limit_bytes = 0;
  uint64_t joins_refused = 0, workers_lost = 0, workers_back = 0, workers_excluded = 0;
  uint64_t jobs_failed = 0, jobs_finished = 0, jobs_recovered = 0;
  uint64_t optimizer_restarts = 0;
  uint64_t backups_lost = 0;
  uint64_t ports_given_up = 0;  // by workers, for their next one
  uint64_t parts_moved = 0;
  uint64_t snapshots_taken = 0, snapshots_failed = 0;
  uint32_t control_connections = 0;
  std::vector<std::string> links_down = {};  // devices of data.port = dpdk
};

struct ClusterView {
  std::string name;
  bool store_up = false;
  std::string store_error = {};                                     // while it is down: why
  std::vector<std::pair<std::string, uint64_t>> store_errors = {};  // by operation, ever
  bool is_leader = false;                                           // this box
  std::optional<cluster::Leader> leader = {};                       // as last heard, as are the
  std::vector<cluster::BoxRecord> boxes = {};                       // boxes, by name
  std::map<std::string, cluster::BoxDuty> duties = {};              // by box; none with one box
};

class AdminSource {
 public:
  virtual ~AdminSource() = default;
  virtual BoxView box() const = 0;
  virtual std::vector<PipelineView> pipelines() const = 0;
  virtual std::vector<JobView> jobs() const = 0;
  virtual std::vector<StragglerView> stragglers() const = 0;
  virtual ClusterView cluster() const = 0;
  virtual cluster::BalancingView balancing() const = 0;
  // kNotFound: there is no such job.
  virtual Status set_priorities(const std::string& job, wire::PriorityPolicy policy) = 0;
  // For so long; trace() has it then. kNotFound: there is no such job. kUnavailable: not now, or
  // not of such a job.
  virtual Status begin_trace(const std::string& job, double seconds) = 0;
  // kNotFound: there is no such job. kUnavailable: no trace, or not yet.
  virtual Result<TraceView> trace(const std::string& job) = 0;
  // Begins it; cluster() shows how far it is. kNotFound: there is no such box.
  virtual Status set_draining(const std::string& box, bool draining) = 0;
  // Begins one; snapshot() shows how far it is. kNotFound: no part of the job is here.
  // kInvalidArgument: of such a job there is none. kUnavailable: not now.
  virtual Status begin_snapshot(const std::string& job, double timeout_s) = 0;
  // The last that this box was asked for; nothing: it was not.
  virtual std::optional<SnapshotView> snapshot(const std::string& job) const = 0;
  // What the pipelines have done last, as images of pipeline/observe/flight_record.h.
  virtual Result<std::string> flight() const = 0;
};

}  // namespace pbox::appliance
