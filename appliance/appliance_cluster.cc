// What the daemon has to do with its cluster: the store, this box's record, and what is shown.
#include <set>

#include "appliance/appliance.h"
#include "appliance/cluster/open_store.h"
#include "appliance/version.h"
#include "nic/wire/control_frame.h"

namespace pbox::appliance {

Status Appliance::open_store() {
  auto store = cluster::open_store(context_, config_.cluster, *disk_);
  if (!store) return store.error();
  store_ = std::move(*store);
  store_->start({.on_session =
                     [this](int64_t) {
                       if (membership_) membership_->on_session();
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
                            .incarnation = std::to_string(incarnation)};
  std::set<std::string> nics;
  for (const PipelineView& pipeline : pipelines_->views()) {
    record.data.push_back(address_and_port(pipeline.address, pipeline.udp_port));
    nics.insert(pipeline.nic);
  }
  for (const Nic& nic : facts_.nics) {
    constexpr uint64_t kBytesPerMegabit = 125'000;
    if (nics.contains(nic.name)) record.capacity_bytes_per_s += nic.link_mbps * kBytesPerMegabit;
  }
  return record;
}

Epochs& Appliance::epochs() {
  if (epoch_pool_) return *epoch_pool_;
  return *epochs_;
}

void Appliance::join_cluster(uint64_t incarnation) {
  const auto log_event = [this](cluster::Membership::Severity severity, const char* event,
                                const std::string& text) {
    const bool warns = severity == cluster::Membership::Severity::kWarning;
    log(warns ? EventLog::Level::kWarning : EventLog::Level::kInfo, event, text);
  };
  membership_.emplace(context_, *store_, record(incarnation), log_event);
}

void Appliance::log_store(const cluster::Health& health) {
  if (health.up) {
    log(EventLog::Level::kInfo, "cluster_store", "the cluster store answers");
  } else {
    log(EventLog::Level::kWarning, "cluster_store",
        "the cluster store is down: " + health.error +
            ". Jobs go on; which boxes there are and which one leads is not known until it is "
            "back");
  }
}

ClusterView Appliance::cluster() const {
  const cluster::Health& health = store_->health();
  ClusterView view{.name = config_.cluster.name,
                   .store_up = health.up,
                   .store_error = health.error,
                   .is_leader = membership_->leads(),
                   .leader = membership_->leader(),
                   .boxes = membership_->boxes()};
  for (size_t index = 0; index < health.errors.size(); ++index) {
    view.store_errors.emplace_back(cluster::kOperationNames[index], health.errors[index]);
  }
  return view;
}

}  // namespace pbox::appliance
