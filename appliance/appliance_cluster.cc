// The daemon's side of the cluster: the keys that prove which box it is, the store, this box's
// record, and the views for admin.
#include <algorithm>
#include <ctime>
#include <set>

#include "appliance/appliance.h"
#include "appliance/cluster/environment.h"
#include "appliance/cluster/open_store.h"
#include "appliance/host/kernel.h"
#include "appliance/preflight/keys.h"
#include "base/version.h"
#include "nic/wire/control_versions.h"

namespace pbox::appliance {

Status Appliance::load_keys() {
  auto keys = preflight::load_keys(config_);
  if (!keys) return keys.error();
  if (*keys == nullptr) return ok_status();
  session_keys_ = std::make_unique<control::ExportedKeys>(control::KeyPolicy{
      .suite = config_.security.encrypt ? seal::Suite::kGcm256 : seal::Suite::kGmac256,
      .updates = {.packets = config_.security.key_packets}});
  use_keys(std::move(*keys));
  return ok_status();
}

void Appliance::use_keys(std::shared_ptr<const tls::Credentials> keys) {
  PBOX_CHECK(keys != nullptr);
  keys_ = std::move(keys);
  cluster::Environment::of(context_).set_keys(
      keys_, [this](const std::string& control) { return name_of_box(control); });
  log(EventLog::Level::kInfo, "keys",
      tls::to_uri(keys_->identity()) + ", until " + tls::utc_text(keys_->expires_unix_s()) +
          "; packets are " + (config_.security.encrypt ? "encrypted" : "authenticated"));
  warn_of_expiry();
}

// Does not depend on the rest of the configuration: a mistake there must not keep revoked keys
// valid. The sessions at other boxes belong to libpbox, which reads the folder of keys by itself.
void Appliance::reload_keys() {
  if (keys_ == nullptr) return;
  auto keys = preflight::reload_keys(config_, *keys_);
  if (!keys) {
    return log(EventLog::Level::kError, "reload", keys.error().message + " (the former keys stay)");
  }
  use_keys(std::move(*keys));
  control_->set_credentials(keys_);
  if (admin_) admin_->set_credentials(keys_);
}

void Appliance::warn_of_expiry() {
  if (keys_ == nullptr) return;
  const std::string warning =
      preflight::expiry_warning(keys_->expires_unix_s(), std::time(nullptr));
  if (!warning.empty()) log(EventLog::Level::kWarning, "keys_expire", warning);
}

Status Appliance::open_store() {
  auto store = cluster::open_store(context_, config_.cluster, *disk_);
  if (!store) return store.error();
  store_ = std::move(*store);
  store_->start({.on_session =
                     [this](int64_t) {
                       if (box_directory_) box_directory_->on_session();
                     },
                 .on_health = [this](const cluster::Health& health) { log_store(health); }});
  if (config_.cluster.store == config::StoreKind::kEtcd) {
    epoch_pool_.emplace(context_, *store_, *disk_, *epochs_,
                        config_.cluster.name + "/" + config_.box.name);
  }
  return ok_status();
}

cluster::BoxRecord Appliance::record(uint64_t incarnation) const {
  cluster::BoxRecord record{.name = config_.box.name,
                            .control = address_and_port(config_.box.listen, control_->port()),
                            .job_memory_bytes = topology_.job_memory_bytes,
                            .version = kVersion,
                            .protocol_version = wire::kControlProtocolVersion,
                            .protocol_version_min = wire::kControlProtocolVersionMin,
                            .incarnation = std::to_string(incarnation)};
  for (const admin::PipelineView& pipeline : pipelines_->views()) {
    record.data.push_back(address_and_port(pipeline.address, pipeline.udp_port));
  }
  record.capacity_bytes_per_s = capacity_bytes_per_s();
  return record;
}

// Links may come up, or change their speed, while the box runs.
uint64_t Appliance::capacity_bytes_per_s() const {
  std::set<std::string> nics;
  for (const admin::PipelineView& pipeline : pipelines_->views()) nics.insert(pipeline.nic);
  // The devices of data.port = dpdk are not among the kernel's network interfaces (facts_.nics).
  uint64_t mbps = pipelines_->ports().device_mbps();
  for (const host::Nic& nic : facts_.nics) {
    if (nics.contains(nic.name)) mbps += host::link_mbps(nic.name);
  }
  constexpr uint64_t kBytesPerMegabit = 125'000;
  return mbps * kBytesPerMegabit;
}

storage::Epochs& Appliance::epochs() {
  if (epoch_pool_) return *epoch_pool_;
  return *epochs_;
}

control::PartDirectory& Appliance::parts() {
  if (part_maps_) return *part_maps_;
  return single_box_directory_;
}

// The callbacks use objects that start() makes later. None is called before the io_context runs.
void Appliance::open_part_maps() {
  single_box_directory_.set_chunk_bytes(config_.jobs.chunk_bytes);
  single_box_directory_.set_pipelines(pipelines_->count());
  if (config_.cluster.store != config::StoreKind::kEtcd) return;
  part_maps_.emplace(
      context_, *store_,
      cluster::PartMaps::Options{
          .self = config_.box.name,
          .chunk_bytes = [this] { return static_cast<uint32_t>(config_.jobs.chunk_bytes); },
          .box_directory = [this]() -> const cluster::BoxDirectory& { return *box_directory_; },
          .has_job = [this](const std::string& job) { return registry_->has_job(job); },
          .running = [this](const std::string& job) { return registry_->running(job); },
          .report = [this] { return registry_->report(); },
          .on_change =
              [this] {
                registry_->on_parts_changed();
                control_->flush();
              },
          .on_answers = [this] { control_->flush(); },
          .log = [this](cluster::BoxDirectory::Severity severity, const char* event,
                        const std::string& text) { log_cluster(severity, event, text); },
          .loads =
              [this] {
                return cluster::to_messages(balancer_ ? balancer_->loads() : cluster::JobLoads());
              },
          .needs_majority = keys_ != nullptr});
}

void Appliance::log_cluster(cluster::BoxDirectory::Severity severity, const char* event,
                            const std::string& text) {
  const bool warns = severity == cluster::BoxDirectory::Severity::kWarning;
  log(warns ? EventLog::Level::kWarning : EventLog::Level::kInfo, event, text);
}

void Appliance::join_cluster(uint64_t incarnation) {
  box_directory_.emplace(
      context_, *store_, record(incarnation),
      [this](cluster::BoxDirectory::Severity severity, const char* event, const std::string& text) {
        log_cluster(severity, event, text);
      },
      [this] {
        if (part_maps_) part_maps_->on_boxes_changed();
      });
  if (!part_maps_) return;
  start_scaler();
  if (!config_.cluster.rebalance) return;
  balancer_.emplace(
      context_, *store_, *box_directory_, *part_maps_,
      cluster::Balancer::Options{
          .self = config_.box.name,
          .interval_ms = config_.cluster.rebalance_interval_ms,
          .progress = [this] { return registry_->pipeline_moves().progress(); },
          .log = [this](cluster::BoxDirectory::Severity severity, const char* event,
                        const std::string& text) { log_cluster(severity, event, text); }});
}

// Returns the name of the box that the store lists with this control address; "" if there is none.
std::string Appliance::name_of_box(const std::string& control) const {
  if (!box_directory_) return "";
  for (const cluster::BoxRecord& box : box_directory_->boxes()) {
    if (box.control == control) return box.name;
  }
  return "";
}

void Appliance::start_scaler() {
  const config::Cluster& cluster = config_.cluster;
  constexpr double kPercent = 0.01;
  cluster::Scaler::Hook hook;
  if (!cluster.scale_hook.empty()) {
    scale_hook_.emplace(context_, cluster.scale_hook);
    hook = [this](const std::string& line, std::function<void(Status)> done) {
      scale_hook_->call(line, std::move(done));
    };
  }
  scaler_.emplace(
      context_, *store_, *box_directory_, *part_maps_,
      cluster::Scaler::Options{
          .self = config_.box.name,
          .cluster = cluster.name,
          .begins_as_standby = cluster.standby,
          .scales = cluster.scale,
          .rules = {.out_above = kPercent * cluster.scale_out_above,
                    .in_below = kPercent * cluster.scale_in_below,
                    .boxes_min = cluster.boxes_min,
                    .after_s = static_cast<double>(cluster.scale_after_s)},
          .report = [this] { return registry_->report(); },
          .hook = std::move(hook),
          .log = [this](cluster::BoxDirectory::Severity severity, const char* event,
                        const std::string& text) { log_cluster(severity, event, text); }});
}

void Appliance::start_balancing() {
  const auto pipelines = static_cast<uint32_t>(topology_.pipelines.size());
  if (!config_.pipeline.rebalance || pipelines < 2) return;
  pipeline_balancer_.emplace(pipelines);
  balance_pipelines();
}

void Appliance::balance_pipelines() {
  control::PipelineMoves& moves = registry_->pipeline_moves();
  pipeline_balancer_->step(
      moves.progress(), [&](const std::string& job) { return moves.is_gathering(job); },
      [&](const std::string& job, const auto& by_part, const std::string& why) {
        return moves.move(job, by_part, why);
      },
      cluster::Environment::of(context_).unix_seconds());
  for (const auto& [job, decision] : pipeline_balancer_->take_decisions()) {
    if (decision.repeats) continue;
    log(EventLog::Level::kInfo, "rebalance_pipelines",
        "job '" + job + "': " + placement::to_string(decision.kind) + ": " + decision.reason, job);
  }
  control_->flush();
  balance_timer_.expires_after(std::chrono::milliseconds(config_.cluster.rebalance_interval_ms));
  balance_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) balance_pipelines();
  });
}

cluster::BalancingView Appliance::balancing() const {
  cluster::BalancingView view = balancer_ ? balancer_->view() : cluster::BalancingView{};
  if (scaler_) view.scaling = scaler_->view();
  if (pipeline_balancer_) {
    view.inside = {true, pipeline_balancer_->groups_moved(), pipeline_balancer_->view()};
  }
  return view;
}

void Appliance::log_store(const cluster::Health& health) {
  if (health.up) {
    log(EventLog::Level::kInfo, "cluster_store", "the cluster store answers");
  } else {
    log(EventLog::Level::kWarning, "cluster_store",
        "the cluster store is down: " + health.error +
            ". Running jobs go on; until it is back no job can begin, no part can move, and which "
            "boxes there are and which one leads may be out of date");
  }
}

Status Appliance::set_duty(const std::string& box, cluster::Duty duty) {
  if (!part_maps_) {
    return Error{
        ErrorCode::kUnavailable,
        "this box is alone (cluster.store = local): its parts have no other box to go to; stop "
        "it when its jobs have ended"};
  }
  const auto boxes = box_directory_->boxes();
  const bool is_there = std::any_of(boxes.begin(), boxes.end(),
                                    [&](const auto& record) { return record.name == box; });
  if (!is_there) return Error{ErrorCode::kNotFound, "no box '" + box + "'"};
  part_maps_->set_duty(box, duty, [this, box, duty](const Status& set) {
    const std::string what = cluster::to_string(duty);
    const std::string refusal = set ? "" : "not done: " + set.error().message;
    log(set ? EventLog::Level::kInfo : EventLog::Level::kWarning, "drain",
        "box '" + box + "' " + what + (set ? "" : ": " + refusal));
    audit({.kind = audit::Kind::kDrain, .box = box, .outcome = what, .reason = refusal});
  });
  return ok_status();
}

admin::ClusterView Appliance::cluster() const {
  const cluster::Health& health = store_->health();
  const bool is_alone = config_.cluster.store != config::StoreKind::kEtcd;
  admin::ClusterView view{.name = config_.cluster.name,
                          .store = is_alone ? "local" : "etcd",
                          .store_up = health.up,
                          .store_error = health.error,
                          .is_leader = box_directory_->leads(),
                          .leader = box_directory_->leader(),
                          .boxes = box_directory_->boxes()};
  for (size_t index = 0; index < health.errors.size(); ++index) {
    view.store_errors.emplace_back(cluster::kOperationNames[index], health.errors[index]);
  }
  for (const cluster::BoxRecord& box : view.boxes) {
    if (!part_maps_) break;
    view.duties[box.name] = {.parts = part_maps_->parts_of(box.name),
                             .duty = part_maps_->duty_of(box.name),
                             .drain_obstacle = part_maps_->drain_obstacle(box.name)};
  }
  return view;
}

}  // namespace pbox::appliance
