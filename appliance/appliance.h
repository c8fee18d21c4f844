// The composition root of the daemon: the only class that knows every part. Turns a checked
// configuration into a serving box, and stops the box again.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "appliance/admin/server.h"
#include "appliance/admin/source.h"
#include "appliance/audit/audit_log.h"
#include "appliance/cluster/balancer.h"
#include "appliance/cluster/box_directory.h"
#include "appliance/cluster/epoch_pool.h"
#include "appliance/cluster/part_maps.h"
#include "appliance/cluster/pipeline_balancer.h"
#include "appliance/cluster/scale_hook.h"
#include "appliance/cluster/scaler.h"
#include "appliance/control/exported_keys.h"
#include "appliance/control/server.h"
#include "appliance/log.h"
#include "appliance/pipelines/flight_recorder.h"
#include "appliance/pipelines/pipeline_set.h"
#include "appliance/relay/box_upstream.h"
#include "appliance/service_manager.h"
#include "appliance/snapshot/disk_store.h"
#include "config/parse.h"

namespace pbox::appliance {

class Appliance : public admin::AdminSource {
 public:
  // `read_again` parses the flags and the configuration file once more. It is called on SIGHUP.
  Appliance(const config::Config& config, std::function<config::ParseOutcome()> read_again);
  ~Appliance() override;

  // Runs preflight, makes the plan, starts pipelines and servers. Prints the addresses on standard
  // output: "pboxd ready control=ADDRESS:PORT admin=ADDRESS:PORT".
  Status start();
  // Serves until SIGTERM or SIGINT, then tells the workers (for at most kDrainMaxSeconds) and
  // returns.
  void run();

  admin::BoxView box() const override;
  std::vector<admin::PipelineView> pipelines() const override;
  std::vector<control::JobView> jobs() const override;
  std::vector<control::StragglerView> stragglers() const override;
  admin::HistoryView history() const override;
  admin::ClusterView cluster() const override;
  cluster::BalancingView balancing() const override;
  Status set_priorities(const std::string& job, wire::PriorityPolicy policy) override;
  Status set_sync(const std::string& job, const control::SyncChange& change) override;
  Status begin_trace(const std::string& job, double seconds) override;
  Result<control::TraceView> trace(const std::string& job) override;
  Status set_duty(const std::string& box, cluster::Duty duty) override;
  Result<std::string> flight() const override;
  Status begin_snapshot(const std::string& job, double timeout_s) override;
  std::optional<control::SnapshotView> snapshot(const std::string& job) const override;

  static constexpr int kDrainMaxSeconds = 3;
  // Limit on each stage of close_down() that waits for something outside of the process. All stages
  // together end before systemd's TimeoutStopSec.
  static constexpr int kStageMaxSeconds = 5;

 private:
  Status check_host();
  Status load_keys();
  void use_keys(std::shared_ptr<const tls::Credentials> keys);
  void reload_keys();
  void warn_of_expiry();
  Status open_recorder();
  void look_for_late_rounds();
  void record_late_rounds(uint64_t now_ns);
  Status open_state();
  Status open_store();
  cluster::BoxRecord record(uint64_t incarnation) const;
  uint64_t capacity_bytes_per_s() const;
  storage::Epochs& epochs();
  control::PartDirectory& parts();
  void open_part_maps();
  void join_cluster(uint64_t incarnation);
  std::string name_of_box(const std::string& control) const;
  void log_store(const cluster::Health& health);
  void log_cluster(cluster::BoxDirectory::Severity severity, const char* event,
                   const std::string& text);
  static std::string address_and_port(const std::string& address, uint16_t port);
  void pin_control_thread();
  Status start_admin();
  void on_admin_refused(const std::string& client, const std::string& why);
  Status open_audit();
  void audit(const audit::Record& record) const;
  audit::Sink audit_sink() const;
  control::RegistryOptions registry_options() const;
  void start_scaler();
  void look_for_port_events();
  void wait_for_step_reports();
  void wait_for_signal();
  void reload();
  void drain(const char* why);
  void finish_drain(int polls_left);
  void close_down();
  void log(EventLog::Level level, const char* name, const std::string& text,
           const std::string& job = {});
  void on_registry_event(const control::RegistryEvent& event);
  void on_second();
  void start_balancing();
  void balance_pipelines();

  config::Config config_;
  std::function<config::ParseOutcome()> read_again_;
  boost::asio::io_context context_{1};
  boost::asio::signal_set signals_{context_};
  boost::asio::steady_timer drain_timer_{context_};
  EventLog events_;
  std::unique_ptr<audit::AuditLog> audit_log_;  // null if the configuration asks for none
  boost::asio::steady_timer second_timer_{context_};
  uint32_t seconds_ = 0;  // calls of on_second()
  admin::History history_;
  host::HostFacts facts_;                                // read at start
  topology::Topology topology_;                          // made from config_ and facts_
  std::shared_ptr<const tls::Credentials> keys_;         // null if control connections have no TLS
  std::unique_ptr<control::ExportedKeys> session_keys_;  // null if packets have no keys
  uint64_t started_ns_ = 0;
  bool draining_ = false;
  std::unique_ptr<pipelines::FlightRecorder> recorder_;  // the pipelines write to it
  boost::asio::steady_timer late_timer_{context_};
  std::set<std::string> late_jobs_;  // jobs that were late at the last check
  uint64_t late_recorded_ns_ = 0;    // time of the last late-round file; 0 if there is none
  boost::asio::steady_timer port_event_timer_{context_};
  std::unique_ptr<pipelines::PipelineSet> pipelines_;
  // A duplicate of pipelines_->report_fd().
  boost::asio::posix::stream_descriptor step_reports_{context_};
  std::atomic<uint64_t> control_ticks_ = 0;  // advances while the control thread makes progress
  std::optional<Watchdog> watchdog_;
  std::unique_ptr<storage::Disk> disk_;
  std::optional<storage::EpochStore> epochs_;
  std::unique_ptr<cluster::Store> store_;
  std::optional<cluster::EpochPool> epoch_pool_;  // with store = etcd
  std::optional<cluster::BoxDirectory> box_directory_;
  control::SingleBoxDirectory single_box_directory_{0};  // with store = local
  std::optional<cluster::PartMaps> part_maps_;           // with store = etcd
  std::optional<cluster::Balancer> balancer_;            // with store = etcd and cluster.rebalance
  std::optional<cluster::PipelineBalancer> pipeline_balancer_;  // with pipeline.rebalance
  boost::asio::steady_timer balance_timer_{context_};
  std::optional<cluster::ScaleHook> scale_hook_;               // with cluster.scale_hook
  std::optional<cluster::Scaler> scaler_;                      // with store = etcd
  std::optional<snapshot::DiskSnapshotStore> snapshot_store_;  // with snapshots.directory
  std::optional<relay::BoxUpstream> upstream_;                 // with upstream.box
  std::optional<relay::BoxBackups> backups_;                   // with cluster.store = etcd
  std::unique_ptr<control::JobRegistry> registry_;
  std::unique_ptr<control::ControlServer> control_;
  std::unique_ptr<admin::AdminServer> admin_;
};

}  // namespace pbox::appliance
