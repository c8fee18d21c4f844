#include <algorithm>

#include "config/address.h"
#include "config/fields.h"
#include "config/parse.h"
#include "config/validate_cluster.h"
#include "config/validate_dpdk.h"
#include "config/validate_rdma.h"

namespace pbox::config {
namespace {

using Errors = std::vector<std::string>;

// A Config may also come from code, so each value is checked: its printed text must be accepted.
void check_each_key(const Config& config, Errors& errors) {
  Config scratch;
  for (const auto& field : fields()) {
    const std::string text = field.print(config);
    if (field.set(scratch, text)) continue;
    for (auto& error : refusals(field, text)) errors.push_back(std::move(error));
  }
}

bool may_share_a_socket(const std::string& left, const std::string& right) {
  return left == right || is_wildcard_address(left) || is_wildcard_address(right);
}

void check_ports(const Config& config, Errors& errors) {
  const auto& admin = config.admin;
  if (admin.enabled && admin.port != 0 && admin.port == config.control.port &&
      may_share_a_socket(admin.listen, config.box.listen)) {
    errors.push_back("admin.port = " + std::to_string(admin.port) +
                     " is control.port too; give them different ports");
  }
  const uint32_t count = config.pipeline.count != 0 ? config.pipeline.count : limits::kPipelinesMax;
  if (config.data.port_first != 0 && config.data.port_first + count - 1 > 65'535) {
    errors.push_back("data.port_first = " + std::to_string(config.data.port_first) +
                     " leaves no room for " + std::to_string(count) +
                     " ports below 65536; give at most " + std::to_string(65'536 - count));
  }
}

void check_timeouts(const Config& config, Errors& errors) {
  const auto& control = config.control;
  // One lost heartbeat must not count as the loss of a worker.
  if (control.worker_dead_after_ms < 2 * static_cast<uint64_t>(control.heartbeat_interval_ms)) {
    errors.push_back(
        "control.worker_dead_after_ms = " + std::to_string(control.worker_dead_after_ms) +
        " is less than two heartbeats; give at least " +
        std::to_string(2 * static_cast<uint64_t>(control.heartbeat_interval_ms)) +
        ", or lower control.heartbeat_interval_ms = " +
        std::to_string(control.heartbeat_interval_ms));
  }
}

void check_pipelines(const Config& config, Errors& errors) {
  const auto& pipeline = config.pipeline;
  if (!pipeline.cores.empty() && pipeline.count > pipeline.cores.size()) {
    errors.push_back("pipeline.count = " + std::to_string(pipeline.count) + " is more than the " +
                     std::to_string(pipeline.cores.size()) +
                     " cpus in pipeline.cores; name more cpus there, or lower pipeline.count");
  }
  if (pipeline.cores.size() > limits::kPipelinesMax) {
    errors.push_back("pipeline.cores names " + std::to_string(pipeline.cores.size()) +
                     " cpus; a box has at most " + std::to_string(limits::kPipelinesMax) +
                     " pipelines: name fewer");
  }
}

void check_sizes(const Config& config, Errors& errors) {
  constexpr uint32_t kMtuMin = 640;  // limits::kFragmentBytesMin with its headers
  if (config.data.mtu != 0 && config.data.mtu < kMtuMin) {
    errors.push_back("data.mtu = " + std::to_string(config.data.mtu) +
                     " is too small; give 0, or at least " + std::to_string(kMtuMin));
  }
  constexpr uint32_t kChunkAlignment = 64;  // a cache line, so that two chunks never share one
  if (config.jobs.chunk_bytes % kChunkAlignment != 0) {
    const uint32_t below = config.jobs.chunk_bytes / kChunkAlignment * kChunkAlignment;
    errors.push_back("jobs.chunk_bytes = " + std::to_string(config.jobs.chunk_bytes) +
                     " is not a multiple of " + std::to_string(kChunkAlignment) + "; give " +
                     std::to_string(std::max(below, limits::kChunkBytesMin)));
  }
}

void check_keys(const Security& security, Errors& errors) {
  if (security.insecure == OnOffAuto::kOff && security.keys.empty()) {
    errors.push_back(
        "security.insecure = false needs keys, and security.keys is empty; name the folder that "
        "pboxctl keys box made");
  }
  if (security.insecure == OnOffAuto::kOn && !security.keys.empty()) {
    errors.push_back("security.insecure = true contradicts security.keys = " + security.keys +
                     "; remove one of them");
  }
}

// Checks each address by itself, so that the message names the one that is open to the network.
void check_security(const Config& config, Errors& errors) {
  const auto& security = config.security;
  check_keys(security, errors);
  const bool has_keys = !security.keys.empty();
  const bool is_insecure = security.insecure == OnOffAuto::kOn && security.insecure_off_loopback;
  const auto is_open = [](const std::string& address) {
    return is_address(address) && !is_loopback_address(address);
  };
  if (!has_keys && !is_insecure) {
    const auto check = [&](const std::string& key, const std::string& address) {
      if (!is_open(address)) return;
      errors.push_back(key + " = " + address +
                       " is off loopback and no keys are configured: anyone there could read and "
                       "change gradients; give keys (security.keys), listen on 127.0.0.1, or on a "
                       "network you trust set both security.insecure = true and "
                       "security.insecure_off_loopback = true");
    };
    check("box.listen", config.box.listen);
    if (config.admin.enabled) check("admin.listen", config.admin.listen);
    check_dpdk_stays_on_host(config, errors);
    check_rdma_is_allowed(config, errors);
  }
  if (!has_keys && config.admin.enabled && config.admin.tls == OnOffAuto::kOn) {
    errors.push_back(
        "admin.tls = on needs keys, and security.keys is empty; name the folder that pboxctl keys "
        "box made");
  }
  if (has_keys && !security.insecure_off_loopback && config.admin.enabled &&
      is_open(config.admin.listen) && !admin_has_tls(config)) {
    errors.push_back("admin.tls = off, but admin.listen = " + config.admin.listen +
                     " is off loopback: anyone there could operate the box; set admin.tls = auto, "
                     "listen on 127.0.0.1, or on a network you trust set "
                     "security.insecure_off_loopback = true");
  }
  // Keys do not protect the connections to etcd.
  if (is_insecure || (has_keys && security.insecure_off_loopback)) return;
  check_etcd_is_private(config, errors);
}

}  // namespace

std::vector<std::string> validate(const Config& config) {
  Errors errors;
  check_each_key(config, errors);
  check_ports(config, errors);
  check_timeouts(config, errors);
  check_pipelines(config, errors);
  check_sizes(config, errors);
  check_security(config, errors);
  check_dpdk(config, errors);
  check_rdma(config, errors);
  check_cluster(config, errors);
  check_upstream(config, errors);
  return errors;
}

}  // namespace pbox::config
