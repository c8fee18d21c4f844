#include "config/fields_cluster.h"

#include "config/endpoint_list.h"
#include "config/field_makers.h"

namespace pbox::config {
namespace {

Field cluster_endpoints() {
  return Field{"cluster.endpoints",
               "all members of etcd; with store = etcd only",
               "HOST:PORT items separated by ',', such as 10.0.0.1:2379, 10.0.0.2:2379",
               false,
               [](const Config& config) { return print_endpoints(config.cluster.endpoints); },
               [](Config& config, const std::string& text) {
                 auto read = read_endpoints(text);
                 if (!read.faults.empty()) return false;
                 config.cluster.endpoints = std::move(read.endpoints);
                 return true;
               },
               [](const std::string& text) { return read_endpoints(text).faults; }};
}

Field cluster_name() {
  return Field{"cluster.name",
               "name of the cluster; boxes that share an etcd and this name form one cluster",
               "1 to 64 letters, digits, '-', '_' and '.'",
               false,
               [](const Config& config) { return config.cluster.name; },
               [](Config& config, const std::string& text) {
                 if (text.empty() || !is_box_name(text)) return false;
                 config.cluster.name = text;
                 return true;
               }};
}

Field cluster_user() {
  return Field{"cluster.user",
               "user name at etcd; empty: no login",
               "one line of text",
               false,
               [](const Config& config) { return config.cluster.user; },
               [](Config& config, const std::string& text) {
                 if (!is_plain(text)) return false;
                 config.cluster.user = text;
                 return true;
               }};
}

Field upstream_box() {
  return Field{"upstream.box",
               "control address of the box that adds up the sums of several boxes; empty: sums go "
               "to no other box",
               "HOST:PORT of a control connection, or nothing",
               false,
               [](const Config& config) { return config.upstream.box; },
               [](Config& config, const std::string& text) {
                 const auto read = read_endpoints(text);
                 if (!read.faults.empty() || read.endpoints.size() > 1) return false;
                 config.upstream.box = read.endpoints.empty() ? "" : read.endpoints[0];
                 return true;
               }};
}

Field upstream_port() {
  return Field{"upstream.port",
               "port that carries packets to upstream.box, written like PBOX_PORT of a worker",
               "socket, or rdma:DEVICE",
               false,
               [](const Config& config) { return config.upstream.port; },
               [](Config& config, const std::string& text) {
                 const bool is_rdma = text.starts_with("rdma:") && text.size() > 5;
                 if (!is_plain(text) || (text != "socket" && !is_rdma)) return false;
                 config.upstream.port = text;
                 return true;
               }};
}

}  // namespace

void add_cluster(std::vector<Field>& list) {
  list.push_back(folder(
      "cluster.state_directory", PBOX_MEMBER(cluster, state_directory),
      "folder for state that must survive a restart of the daemon; none: nothing is stored"));
  list.push_back(choice(
      "cluster.store", PBOX_MEMBER(cluster, store),
      {{"local", StoreKind::kLocal}, {"etcd", StoreKind::kEtcd}}, 2, Reload::kNo,
      "store of the state that boxes share: local, a file, for one box; etcd, for several boxes"));
  list.push_back(cluster_endpoints());
  list.push_back(cluster_name());
  list.push_back(number("cluster.lease_ttl_s", PBOX_MEMBER(cluster, lease_ttl_s), 2, 3'600,
                        Reload::kNo,
                        "a box that has not reached etcd for this long is considered lost"));
  list.push_back(boolean("cluster.rebalance", PBOX_MEMBER(cluster, rebalance),
                         "move parts of jobs, while they train, to boxes that finish sooner"));
  list.push_back(number("cluster.rebalance_interval_ms",
                        PBOX_MEMBER(cluster, rebalance_interval_ms), 100, 60'000, Reload::kNo,
                        "time between two reports of a box on how long its rounds take"));
  list.push_back(boolean("cluster.standby", PBOX_MEMBER(cluster, standby),
                         "this box takes no parts until the cluster needs it"));
  list.push_back(
      boolean("cluster.scale", PBOX_MEMBER(cluster, scale),
              "the leader puts standbys to use, requests more boxes and drains spare ones"));
  list.push_back(
      file_path("cluster.scale_hook", PBOX_MEMBER(cluster, scale_hook),
                "program that the leader calls when another box is needed or a box may stop"));
  list.push_back(number("cluster.scale_out_above", PBOX_MEMBER(cluster, scale_out_above), 1, 100,
                        Reload::kNo,
                        "percent of memory or links in use above which another box is needed"));
  list.push_back(number("cluster.scale_in_below", PBOX_MEMBER(cluster, scale_in_below), 0, 99,
                        Reload::kNo,
                        "percent of memory and links in use below which a box is spare"));
  list.push_back(number(
      "cluster.scale_after_s", PBOX_MEMBER(cluster, scale_after_s), 1, 86'400, Reload::kNo,
      "time for which use must stay beyond a threshold, and minimum time between two changes"));
  list.push_back(number("cluster.boxes_min", PBOX_MEMBER(cluster, boxes_min), 1,
                        limits::kPartsPerJobMax, Reload::kNo,
                        "minimum number of boxes that take parts"));
  list.push_back(cluster_user());
  list.push_back(file_path("cluster.password_file", PBOX_MEMBER(cluster, password_file),
                           "file with the password of cluster.user, in one line"));
  list.push_back(
      file_path("cluster.ca_file", PBOX_MEMBER(cluster, ca_file),
                "PEM file of the authority that signed etcd's certificates; empty: no TLS"));
  list.push_back(file_path("cluster.cert_file", PBOX_MEMBER(cluster, cert_file),
                           "PEM file of the certificate that this box shows to etcd"));
  list.push_back(file_path("cluster.key_file", PBOX_MEMBER(cluster, key_file),
                           "PEM file of that certificate's private key"));
}

void add_upstream(std::vector<Field>& list) {
  list.push_back(upstream_box());
  list.push_back(number("upstream.rank", PBOX_MEMBER(upstream, rank), 0,
                        limits::kWorkersPerJobMax - 1, Reload::kNo,
                        "rank of this box at upstream.box"));
  list.push_back(number("upstream.world_size", PBOX_MEMBER(upstream, world_size), 1,
                        limits::kWorkersPerJobMax, Reload::kNo,
                        "number of boxes whose sums go to upstream.box"));
  list.push_back(upstream_port());
}

}  // namespace pbox::config
