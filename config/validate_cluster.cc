#include "config/validate_cluster.h"

#include "config/address.h"
#include "config/endpoint_list.h"

namespace pbox::config {
namespace {

using Errors = std::vector<std::string>;

void need_each_other(const std::string& key, const std::string& value, const std::string& other_key,
                     const std::string& other_value, Errors& errors) {
  if (value.empty() || !other_value.empty()) return;
  errors.push_back("cluster." + key + " = " + value + " is given without cluster." + other_key +
                   "; give both or neither");
}

}  // namespace

void check_cluster(const Config& config, Errors& errors) {
  const Cluster& cluster = config.cluster;
  if (cluster.store == StoreKind::kLocal) {
    const auto refuse = [&errors](const std::string& key, const std::string& value) {
      if (value.empty()) return;
      errors.push_back("cluster." + key + " = " + value +
                       " is given, but only cluster.store = etcd uses it; set cluster.store = "
                       "etcd, or remove it");
    };
    refuse("endpoints", print_endpoints(cluster.endpoints));
    refuse("user", cluster.user);
    refuse("ca_file", cluster.ca_file);
    refuse("cert_file", cluster.cert_file);
    refuse("scale_hook", cluster.scale_hook);
    refuse("scale", cluster.scale ? "true" : "");
    refuse("standby", cluster.standby ? "true" : "");
  } else if (cluster.endpoints.empty()) {
    errors.push_back(
        "cluster.endpoints is empty, but cluster.store = etcd; name the members of etcd, such as "
        "10.0.0.1:2379, 10.0.0.2:2379, or set cluster.store = local");
  }
  if (cluster.store == StoreKind::kEtcd && is_wildcard_address(config.box.listen)) {
    errors.push_back("box.listen = " + config.box.listen +
                     " is not an address that workers and other boxes can connect to; with "
                     "cluster.store = etcd set this box's address on the data network");
  }
  if (cluster.scale_in_below >= cluster.scale_out_above) {
    errors.push_back(
        "cluster.scale_in_below = " + std::to_string(cluster.scale_in_below) +
        " is not below cluster.scale_out_above = " + std::to_string(cluster.scale_out_above) +
        ", so the cluster would drain a box and request one in turn; lower the former or raise the "
        "latter");
  }
  if (!cluster.scale_hook.empty() && !cluster.scale) {
    errors.push_back("cluster.scale_hook = " + cluster.scale_hook +
                     " is given, but cluster.scale = false never calls it; set cluster.scale = "
                     "true, or remove it");
  }
  need_each_other("user", cluster.user, "password_file", cluster.password_file, errors);
  need_each_other("password_file", cluster.password_file, "user", cluster.user, errors);
  need_each_other("cert_file", cluster.cert_file, "key_file", cluster.key_file, errors);
  need_each_other("key_file", cluster.key_file, "cert_file", cluster.cert_file, errors);
  if (!cluster.cert_file.empty() && cluster.ca_file.empty()) {
    errors.push_back("cluster.cert_file = " + cluster.cert_file +
                     " is given without cluster.ca_file, which turns TLS on; give both");
  }
}

void check_upstream(const Config& config, Errors& errors) {
  const Upstream& upstream = config.upstream;
  if (upstream.rank >= upstream.world_size) {
    errors.push_back(
        "upstream.rank = " + std::to_string(upstream.rank) +
        " is not below upstream.world_size = " + std::to_string(upstream.world_size) +
        "; give each of the boxes that send sums to upstream.box its own rank, from 0 on");
  }
  if (!upstream.box.empty() && config.cluster.store == StoreKind::kEtcd) {
    errors.push_back(
        "upstream.box = " + upstream.box +
        " is given with cluster.store = etcd, which may divide jobs between boxes, but a box can "
        "send only the sums of whole jobs upstream; set cluster.store = local");
  }
}

void check_etcd_is_private(const Config& config, Errors& errors) {
  const Cluster& cluster = config.cluster;
  const bool has_tls = !cluster.ca_file.empty();
  // Boxes with keys trust what etcd says about other boxes.
  const bool must_log_in =
      !config.security.keys.empty() && cluster.cert_file.empty() && cluster.user.empty();
  if (has_tls && !must_log_in) return;
  for (const auto& endpoint : cluster.endpoints) {
    const std::string host = host_of(endpoint);
    if (host == "localhost" || is_loopback_address(host)) continue;
    if (has_tls) {
      errors.push_back("cluster.endpoints: " + endpoint +
                       " is off loopback, and this box does not log in to etcd: anyone there could "
                       "change what the boxes agree on; give cert_file and key_file, or user and "
                       "password_file, or on a network you trust set "
                       "security.insecure_off_loopback = true");
      continue;
    }
    errors.push_back("cluster.endpoints: " + endpoint +
                     " is off loopback and cluster.ca_file is empty: anyone there could change "
                     "what the boxes agree on; give ca_file, or on a network you trust set "
                     "security.insecure_off_loopback = true, and without keys "
                     "security.insecure = true too");
  }
}

}  // namespace pbox::config
