#include "appliance/appliance.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "appliance/host/core_dumps.h"
#include "appliance/preflight/preflight.h"
#include "base/clock.h"
#include "base/cpu_set.h"
#include "base/entropy.h"
#include "base/version.h"
#include "nic/endpoint.h"

namespace pbox::appliance {
namespace {

constexpr int kDrainPollMs = 20;
constexpr uint32_t kKeysWarningSeconds = 24 * 3600;
// Exit status of a process whose shutdown hangs.
constexpr int kHungStatus = 1;

EventLog::Level level_of(control::RegistryEvent::Severity severity) {
  switch (severity) {
    case control::RegistryEvent::Severity::kDebug: return EventLog::Level::kDebug;
    case control::RegistryEvent::Severity::kInfo: return EventLog::Level::kInfo;
    case control::RegistryEvent::Severity::kWarning: return EventLog::Level::kWarning;
  }
  return EventLog::Level::kInfo;
}

// Returns the name of the box, and the name of the host with and without its domain.
std::vector<std::string> own_names(const std::string& box) {
  std::array<char, HOST_NAME_MAX + 1> buffer{};
  std::vector<std::string> names = {box};
  if (gethostname(buffer.data(), buffer.size() - 1) == 0) {
    const std::string host = buffer.data();
    names.push_back(host);
    names.push_back(host.substr(0, host.find('.')));
  }
  return names;
}

}  // namespace

Appliance::Appliance(const config::Config& config, std::function<config::ParseOutcome()> read_again)
    : config_(config), read_again_(std::move(read_again)), started_ns_(monotonic_ns()) {
  configure_log(config_.log);
}

Appliance::~Appliance() {
  close_down();
}

// Destroys the daemon's parts, each before those that it uses. Each stage joins threads, and a
// thread that waits for another machine may wait forever.
void Appliance::close_down() {
  ExitGuard guard(std::chrono::seconds(kStageMaxSeconds), [](const std::string& stage) {
    EventLog::write_now(EventLog::Level::kError, "exit_forced",
                        stage + " did not end within " + std::to_string(kStageMaxSeconds) +
                            " s; the process ends without it");
    std::_Exit(kHungStatus);
  });
  guard.enter("the HTTP server");
  admin_.reset();
  control_.reset();
  guard.enter(
      "a session at another box ([upstream] box, or a replica), whose name may not resolve");
  registry_.reset();
  backups_.reset();
  upstream_.reset();
  guard.enter("the disk of the snapshots ([snapshots] directory = " + config_.snapshots.directory +
              ")");
  snapshot_store_.reset();
  guard.enter("the cluster's store ([cluster] endpoints)");
  scaler_.reset();
  scale_hook_.reset();
  balancer_.reset();
  part_maps_.reset();
  box_directory_.reset();
  epoch_pool_.reset();
  store_.reset();
  guard.enter("");  // no limit from here on: freeing the memory takes its time
}

std::string Appliance::address_and_port(const std::string& address, uint16_t port) {
  const auto endpoint = nic::parse_endpoint(address, port);
  return endpoint ? nic::to_string(*endpoint) : address + ":" + std::to_string(port);
}

void Appliance::log(EventLog::Level level, const char* name, const std::string& text,
                    const std::string& job) {
  events_.write(level, name, text, monotonic_ns(), job);
}

void Appliance::on_registry_event(const control::RegistryEvent& event) {
  using Severity = control::RegistryEvent::Severity;
  log(level_of(event.severity), event.name, event.text, event.job);
  if (event.job.empty() || event.severity == Severity::kDebug) return;
  const bool warns = event.severity == Severity::kWarning;
  history_.add_event(event.job, {.name = event.name, .warns = warns, .text = event.text},
                     monotonic_ns());
}

// Does the work that is due about once a second.
void Appliance::on_second() {
  const uint64_t now_ns = monotonic_ns();
  events_.end_windows(now_ns);
  if (audit_log_) audit_log_->on_second(now_ns);
  history_.add_second(pipelines_->views(), now_ns);
  if (box_directory_) box_directory_->set_capacity(capacity_bytes_per_s());
  if (seconds_ > 0 && seconds_ % kKeysWarningSeconds == 0) warn_of_expiry();
  if (seconds_++ % admin::History::kJobIntervalSeconds == 0) {
    history_.add_interval(registry_->views(now_ns), now_ns);
  }
  second_timer_.expires_after(std::chrono::seconds(1));
  second_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) on_second();
  });
}

Status Appliance::check_host() {
  auto facts = host::read_host_facts();
  if (!facts) return facts.error();
  facts_ = std::move(*facts);
  auto planned = topology::plan(config_, facts_);
  if (!planned) return planned.error();
  topology_ = std::move(*planned);
  const auto probes =
      preflight::probe_ports(config_, static_cast<uint32_t>(topology_.pipelines.size()));
  const auto checks = preflight::preflight(config_, facts_, probes);
  for (const preflight::Check& check : checks) {
    if (check.level == preflight::CheckLevel::kWarn) {
      log(EventLog::Level::kWarning, "preflight", preflight::to_line(check));
    }
  }
  return preflight::may_start(checks);
}

Status Appliance::start() {
  if (const Status status = check_host(); !status) return status.error();
  if (!config_.security.keys.empty()) {
    if (const Status status = host::keep_memory_out_of_dumps(); !status) return status.error();
  }
  if (const Status status = open_audit(); !status) return status.error();
  if (const Status status = load_keys(); !status) return status.error();
  for (const std::string& reason : topology_.reasons) {
    log(EventLog::Level::kInfo, "topology", reason);
  }
  if (const Status status = open_recorder(); !status) return status.error();
  auto pipelines = pipelines::PipelineSet::start(topology_, config_, recorder_.get());
  if (!pipelines) return pipelines.error();
  pipelines_ = std::move(*pipelines);
  for (const std::string& line : pipelines_->ports().describe()) {
    log(EventLog::Level::kInfo, "port", line);
  }
  if (config_.data.port == config::PortKind::kSocket && config_.data.shm) {
    if (const Status status = pipelines_->share_memory(context_); !status) return status.error();
  }
  pin_control_thread();  // after the pipelines' start: their threads would inherit the affinity

  if (const Status status = open_state(); !status) return status.error();
  open_part_maps();
  if (!config_.snapshots.directory.empty()) {
    snapshot_store_.emplace(context_, config_.snapshots.directory, [this] { control_->flush(); });
  }
  if (!config_.upstream.box.empty()) {
    upstream_.emplace(context_, config_.upstream, config_.security.keys,
                      [this] { control_->flush(); });
  }
  if (config_.cluster.store == config::StoreKind::kEtcd) {
    backups_.emplace(context_, config_.security.keys, [this] { control_->flush(); });
  }
  registry_ = std::make_unique<control::JobRegistry>(
      registry_options(), *pipelines_, epochs(), parts(),
      snapshot_store_ ? &*snapshot_store_ : nullptr, upstream_ ? &*upstream_ : nullptr,
      backups_ ? &*backups_ : nullptr);
  auto control = control::ControlServer::start(
      context_,
      {.listen = config_.box.listen,
       .port = config_.control.port,
       .connections_max = config_.control.connections_max,
       .on_event = [this](const control::RegistryEvent& event) { on_registry_event(event); },
       .credentials = keys_,
       .audit = audit_sink()},
      *registry_);
  if (!control) return control.error();
  control_ = std::move(*control);
  if (session_keys_) session_keys_->set_source(*control_);
  join_cluster(system_entropy());  // the incarnation, which other boxes see
  if (const Status status = start_admin(); !status) return status.error();
  wait_for_signal();
  look_for_late_rounds();
  step_reports_.assign(dup(pipelines_->report_fd()));
  wait_for_step_reports();
  on_second();
  start_balancing();
  if (config_.data.port == config::PortKind::kRdma) look_for_port_events();

  std::string where = "control=" + address_and_port(config_.box.listen, control_->port());
  if (admin_) where += " admin=" + address_and_port(config_.admin.listen, admin_->port());
  if (admin_ && !config_.admin.socket.empty()) where += " socket=" + config_.admin.socket;
  log(EventLog::Level::kInfo, "ready", where);
  std::printf("pboxd ready %s\n", where.c_str());
  std::fflush(stdout);
  watchdog_.emplace(pipelines_->views(), control_ticks_);
  notify_ready("serving, " + where);
  return ok_status();
}

Status Appliance::open_state() {
  auto disk = storage::open_state_folder(config_.cluster.state_directory);
  if (!disk) return disk.error();
  disk_ = std::move(*disk);
  auto epochs = storage::EpochStore::open(*disk_);
  if (!epochs) return epochs.error();
  epochs_ = *epochs;
  log(EventLog::Level::kInfo, "state",
      config_.cluster.state_directory + ": newest epoch " + std::to_string(epochs_->newest()));
  return open_store();
}

// The admin server runs on the control thread too.
void Appliance::pin_control_thread() {
  if (topology_.control_cpus.empty()) return;
  const Status pinned = pin_current_thread({topology_.control_cpus});
  if (!pinned) log(EventLog::Level::kWarning, "control_cpus", pinned.error().message);
}

Status Appliance::start_admin() {
  if (!config_.admin.enabled) return ok_status();
  std::vector<std::string> names = own_names(config_.box.name);
  names.insert(names.end(), config_.admin.hosts.begin(), config_.admin.hosts.end());
  auto admin = admin::AdminServer::start(
      context_,
      {.listen = config_.admin.listen,
       .port = config_.admin.port,
       .names = std::move(names),
       .socket = config_.admin.socket,
       .credentials = config::admin_has_tls(config_) ? keys_ : nullptr,
       .on_refused = [this](const std::string& client,
                            const std::string& why) { on_admin_refused(client, why); },
       .audit = audit_sink()},
      *this);
  if (!admin) return admin.error();
  admin_ = std::move(*admin);
  return ok_status();
}

void Appliance::on_admin_refused(const std::string& client, const std::string& why) {
  log(EventLog::Level::kWarning, "handshake_refused", "HTTP: " + client + ": " + why);
  audit({.kind = audit::Kind::kHandshakeRefused, .address = client, .reason = "HTTP: " + why});
}

Status Appliance::open_audit() {
  if (config_.log.audit.empty()) return ok_status();
  auto opened =
      audit::AuditLog::open(config_.log.audit, [this](bool is_lost, const std::string& text) {
        log(is_lost ? EventLog::Level::kWarning : EventLog::Level::kInfo, "audit_lost", text);
      });
  if (!opened) return opened.error();
  audit_log_ = std::move(*opened);
  return ok_status();
}

void Appliance::audit(const audit::Record& record) const {
  if (audit_log_) audit_log_->write(record, monotonic_ns());
}

audit::Sink Appliance::audit_sink() const {
  if (!audit_log_) return {};
  return [this](const audit::Record& record) { audit(record); };
}

control::RegistryOptions Appliance::registry_options() const {
  std::vector<uint64_t> arena_bytes;
  for (const topology::PipelinePlan& pipeline : topology_.pipelines) {
    arena_bytes.push_back(pipeline.arena_bytes);
  }
  control::TenantPolicy tenants;
  for (const config::Tenant& tenant : config_.jobs.tenants) {
    tenants.set(tenant.name, {.weight = tenant.weight,
                              .jobs = tenant.jobs,
                              .sessions = tenant.sessions,
                              .connections = tenant.connections,
                              .memory_bytes = tenant.memory_mib << 20});
  }
  return {.box_name = config_.box.name,
          .job_limits = {.workers_max = config_.jobs.workers_max,
                         .chunks_max = config_.jobs.chunks_max,
                         .chunk_bytes_default = config_.jobs.chunk_bytes},
          .jobs_max = config_.jobs.max,
          .tenants = std::move(tenants),
          .job_memory_bytes = topology_.job_memory_bytes,
          .arena_bytes = arena_bytes,
          .join_timeout_ns = config_.control.join_timeout_s * kNanosPerSecond,
          .dead_after_ns = config_.control.worker_dead_after_ms * kNanosPerMilli,
          .lost_timeout_ns = config_.control.worker_lost_timeout_ms * kNanosPerMilli,
          .heartbeat_interval_ms = config_.control.heartbeat_interval_ms,
          .window_bytes = static_cast<uint32_t>(config_.pipeline.window_bytes),
          .payload_crc = config_.data.payload_crc,
          .snapshot_every_ns = config_.snapshots.every_s * kNanosPerSecond,
          .checks_addresses = config_.data.port != config::PortKind::kRdma,
          .keys = session_keys_.get(),
          .audit = audit_sink(),
          .draw = system_entropy,
          .traffic_bytes_per_s = [this] { return history_.newest_traffic_bytes_per_s(); }};
}

void Appliance::wait_for_signal() {
  if (signals_.cancel(); !draining_) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
      boost::system::error_code ignored;
      signals_.add(signal, ignored);
    }
  }
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    if (signal == SIGHUP) {
      reload();
      wait_for_signal();
    } else {
      drain(signal == SIGTERM ? "SIGTERM" : "SIGINT");
    }
  });
}

void Appliance::reload() {
  reload_keys();
  if (audit_log_) audit_log_->reopen();
  auto outcome = config::reload(config_, read_again_());
  if (outcome.config) {
    // Settings that can be reloaded change only memory in the plan; cores, ports and pipelines
    // stay.
    auto planned = topology::plan(*outcome.config, facts_);
    if (planned) {
      topology_ = std::move(*planned);
    } else {
      outcome.errors.push_back(planned.error().message);
    }
  }
  for (const auto& error : outcome.errors) {
    log(EventLog::Level::kError, "reload", error + " (nothing was changed)");
  }
  if (!outcome.errors.empty()) return;
  config_ = *outcome.config;
  configure_log(config_.log);
  single_box_directory_.set_chunk_bytes(config_.jobs.chunk_bytes);
  registry_->set_options(registry_options());
  if (box_directory_) box_directory_->set_job_memory(topology_.job_memory_bytes);
  control_->set_connections_max(config_.control.connections_max);
  for (const auto& change : outcome.applied) log(EventLog::Level::kInfo, "reload", change);
  for (const auto& change : outcome.needs_restart) {
    log(EventLog::Level::kWarning, "reload", change + " takes effect after a restart");
  }
  log(EventLog::Level::kDebug, "reload",
      std::to_string(outcome.applied.size()) + " keys were applied; jobs may take " +
          std::to_string(topology_.job_memory_bytes) + " bytes and hold " +
          std::to_string(registry_->memory_taken_bytes()));
}

void Appliance::drain(const char* why) {
  draining_ = true;
  notify_stopping(std::string(why) + ": telling the workers");
  log(EventLog::Level::kInfo, "draining", std::string(why) + ": telling the workers");
  audit({.kind = audit::Kind::kDrain, .box = config_.box.name, .outcome = "stops", .reason = why});
  registry_->shut_down();
  // Other boxes may still have to fetch the states of parts that moved to them.
  if (registry_->states_kept() == 0) control_->stop_accepting();
  control_->flush();
  finish_drain(kDrainMaxSeconds * 1000 / kDrainPollMs);
}

void Appliance::finish_drain(int polls_left) {
  const bool is_done = control_->drained() && registry_->states_kept() == 0;
  if (is_done || polls_left == 0) {
    context_.stop();
    return;
  }
  drain_timer_.expires_after(std::chrono::milliseconds(kDrainPollMs));
  drain_timer_.async_wait([this, polls_left](const boost::system::error_code& error) {
    if (!error) finish_drain(polls_left - 1);
  });
}

void Appliance::run() {
  context_.run();
  if (admin_) admin_->stop();
  events_.finish();
  log(EventLog::Level::kInfo, "stopped", "the box has stopped");
}

admin::BoxView Appliance::box() const {
  const control::RegistryTotals& totals = registry_->totals();
  return {.name = config_.box.name,
          .version = kVersion,
          .ready = !draining_,
          .draining = draining_,
          .insecure = keys_ == nullptr,
          .has_keys = keys_ != nullptr,
          .uptime_s = static_cast<double>(monotonic_ns() - started_ns_) / 1e9,
          .job_memory_bytes = registry_->memory_taken_bytes(),
          .job_memory_limit_bytes = topology_.job_memory_bytes,
          .joins_refused = totals.joins_refused,
          .workers_lost = totals.workers_lost,
          .workers_back = totals.workers_back,
          .workers_excluded = totals.workers_excluded,
          .jobs_failed = totals.jobs_failed,
          .jobs_finished = totals.jobs_finished,
          .jobs_recovered = totals.jobs_recovered,
          .optimizer_restarts = totals.optimizer_restarts,
          .backups_lost = totals.backups_lost,
          .ports_given_up = totals.ports_given_up,
          .parts_moved = totals.parts_moved,
          .snapshots_taken = totals.snapshots_taken,
          .snapshots_failed = totals.snapshots_failed,
          .control_connections = static_cast<uint32_t>(registry_->connection_count()),
          .handshakes_refused = control_->handshakes_refused() + (admin_ ? admin_->refused() : 0),
          .keys_expire_unix_s =
              keys_ == nullptr ? std::nullopt : std::optional(keys_->expires_unix_s()),
          .audit_lost = audit_log_ ? audit_log_->lost() : 0,
          .links_down = pipelines_->ports().links_down(),
          .tenants = registry_->tenants()};
}

std::vector<admin::PipelineView> Appliance::pipelines() const {
  return pipelines_->views();
}
std::vector<control::JobView> Appliance::jobs() const {
  return registry_->views(monotonic_ns());
}
std::vector<control::StragglerView> Appliance::stragglers() const {
  return registry_->stragglers(monotonic_ns());
}
admin::HistoryView Appliance::history() const {
  return history_.view(monotonic_ns());
}
Status Appliance::set_priorities(const std::string& job, wire::PriorityPolicy policy) {
  Status set = registry_->requests().set_priorities(job, policy);
  control_->flush();
  return set;
}
Status Appliance::set_sync(const std::string& job, const control::SyncChange& change) {
  return registry_->requests().set_sync(job, change);
}
Status Appliance::begin_trace(const std::string& job, double seconds) {
  return registry_->begin_trace(job, static_cast<uint64_t>(seconds * 1e9), monotonic_ns());
}
Result<control::TraceView> Appliance::trace(const std::string& job) {
  return registry_->trace(job, monotonic_ns());
}

Status Appliance::begin_snapshot(const std::string& job, double timeout_s) {
  Status begun =
      registry_->begin_snapshot(job, static_cast<uint64_t>(timeout_s * 1e9), monotonic_ns());
  control_->flush();
  return begun;
}
std::optional<control::SnapshotView> Appliance::snapshot(const std::string& job) const {
  return registry_->snapshot(job);
}

}  // namespace pbox::appliance
