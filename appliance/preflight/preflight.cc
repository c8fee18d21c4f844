#include "appliance/preflight/preflight.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "appliance/preflight/checks.h"
#include "config/address.h"
#include "config/cpu_list.h"
#include "config/dpdk_device.h"
#include "config/parse.h"

namespace pbox::preflight {

namespace checks {

Check ok(std::string name, std::string finding) {
  return Check{std::move(name), CheckLevel::kOk, std::move(finding), {}};
}

Check warn(std::string name, std::string finding, std::string remedy) {
  return Check{std::move(name), CheckLevel::kWarn, std::move(finding), std::move(remedy)};
}

Check fail(std::string name, std::string finding, std::string remedy) {
  return Check{std::move(name), CheckLevel::kFail, std::move(finding), std::move(remedy)};
}

std::string mebibytes(uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

void append(std::string& list, const std::string& separator, const std::string& entry) {
  if (!list.empty()) list += separator;
  list += entry;
}

}  // namespace checks

namespace {

using checks::fail;
using checks::mebibytes;
using checks::ok;
using checks::warn;

Check check_config(const config::Config& config) {
  const auto errors = config::validate(config);
  if (errors.empty()) return ok("config", "valid");
  std::string all;
  for (const auto& error : errors) all += (all.empty() ? "" : " | ") + error;
  return fail("config", all, "correct these settings; pboxd --check-config lists all faults");
}

Check check_security(const config::Config& config) {
  const auto& devices = config.dpdk.devices;
  const bool is_http_open = config.admin.enabled && !config::admin_has_tls(config) &&
                            !config::is_loopback_address(config.admin.listen);
  const bool is_open = !config::is_loopback_address(config.box.listen) || is_http_open ||
                       config.data.port == config::PortKind::kRdma ||
                       std::any_of(devices.begin(), devices.end(), [](const auto& each) {
                         return !config::stays_on_host(each.device);
                       });
  if (!config.security.keys.empty()) {
    if (!is_http_open) return ok("security", "keys protect connections and packets");
    return warn("security",
                "keys protect connections and packets, but the HTTP server listens off loopback "
                "without TLS: any host that reaches it can read metrics and drain this box",
                "set admin.tls = auto, or admin.listen to an address of this host only");
  }
  if (!is_open) return ok("security", "no keys, but only programs on this host can connect");
  return warn("security",
              "no keys, and the box is reachable from other hosts: any of them can read and change "
              "gradients",
              "set security.keys, or keep box.listen, admin.listen and dpdk.devices on a network "
              "that only workers reach");
}

Check check_plan(const Result<topology::Topology>& topology) {
  if (!topology) {
    return fail("topology", topology.error().message,
                "pboxctl plan shows the decisions and their reasons");
  }
  return ok("topology", std::to_string(topology->pipelines.size()) + " pipelines planned");
}

Check check_listen(const config::Config& config, const host::HostFacts& facts) {
  std::string missing;
  const auto check = [&](const std::string& key, const std::string& address) {
    const auto& list = facts.addresses;
    if (config::is_wildcard_address(address) || config::is_loopback_address(address)) return;
    if (std::find(list.begin(), list.end(), address) != list.end()) return;
    missing += (missing.empty() ? "" : ", ") + key + " = " + address;
  };
  check("box.listen", config.box.listen);
  if (config.admin.enabled) check("admin.listen", config.admin.listen);
  if (missing.empty()) return ok("listen", config.box.listen);
  std::string known;
  for (const auto& address : facts.addresses) known += (known.empty() ? "" : ", ") + address;
  return fail("listen", missing + ": no interface of this host has that address",
              known.empty() ? "bring the interface up" : "choose among " + known);
}

std::string remedy_for(const PortProbe& probe) {
  switch (probe.error_number) {
    case EADDRINUSE:
      return "stop the program that has it (ss -" + std::string(probe.is_udp ? "u" : "t") +
             "lnp 'sport = :" + std::to_string(probe.port) + "' names it), or change " + probe.key;
    case EACCES: return "choose " + probe.key + " from 1024 up, or grant CAP_NET_BIND_SERVICE";
    case EADDRNOTAVAIL: return "listen on an address that this host has";
    default: return "change " + probe.key;
  }
}

Check check_ports(const std::vector<PortProbe>& probes) {
  std::string finding;
  std::string remedy;
  for (const auto& probe : probes) {
    if (probe.error_number == 0) continue;
    finding += (finding.empty() ? "" : "; ") + probe.key + ": " + (probe.is_udp ? "UDP " : "TCP ") +
               probe.address + " port " + std::to_string(probe.port) + ": " +
               std::generic_category().message(probe.error_number);
    remedy += (remedy.empty() ? "" : "; ") + remedy_for(probe);
  }
  if (finding.empty()) return ok("ports", std::to_string(probes.size()) + " ports can be bound");
  return fail("ports", finding, remedy);
}

Check check_buffer(const std::string& name, const std::string& key, const std::string& sysctl,
                   uint32_t wanted_bytes, uint64_t max_bytes, bool can_force) {
  const std::string wanted = key + " = " + std::to_string(wanted_bytes);
  if (max_bytes == 0) return ok(name, wanted + "; the kernel's limit is not known");
  if (wanted_bytes <= max_bytes) {
    return ok(name, wanted + ", " + sysctl + " = " + std::to_string(max_bytes));
  }
  if (can_force) return ok(name, wanted + ", above " + sysctl + " by CAP_NET_ADMIN");
  return warn(name,
              wanted + " but " + sysctl + " = " + std::to_string(max_bytes) +
                  " limits it: bursts of packets will be lost and sent again",
              "sysctl -w " + sysctl + "=" + std::to_string(wanted_bytes) +
                  ", or grant CAP_NET_ADMIN, or lower " + key);
}

Check check_memlock(const host::HostFacts& facts) {
  if (facts.memlock_bytes == host::kUnlimited) return ok("memlock", "unlimited");
  return ok("memlock", mebibytes(facts.memlock_bytes) + "; data.port = socket locks no memory");
}

// Ordinary pages work too, but are slower. On a shared machine that is no reason to warn.
Check check_hugepages(const config::Config& config, const Result<topology::Topology>& topology) {
  if (config.memory.hugepages == config::OnOffAuto::kOff) return ok("hugepages", "off");
  if (!topology) return ok("hugepages", "not checked: there is no plan");
  std::vector<int> without;
  for (const auto& pipeline : topology->pipelines) {
    if (!pipeline.hugepages) without.push_back(static_cast<int>(pipeline.index));
  }
  if (without.empty()) return ok("hugepages", "every pipeline's node has free 2 MiB pages");
  const std::string finding = "no free 2 MiB pages on the node of pipelines " +
                              config::print_cpu_list(without) +
                              ": their memory will be in transparent hugepages";
  if (!topology->pipelines[0].pinned) return ok("hugepages", finding);
  return warn("hugepages", finding,
              "systemctl enable --now pbox-hugepages.service, or memory.hugepages = off");
}

Check check_cpus(const config::Config& config, const host::HostFacts& facts) {
  std::vector<int> missing;
  for (const int cpu : config.pipeline.cores) {
    const auto& allowed = facts.allowed_cpus;
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu)) missing.push_back(cpu);
  }
  const std::string allowed = "may use cpus " + config::print_cpu_list(facts.allowed_cpus);
  if (!missing.empty()) {
    return fail("cpus", allowed + ", but pipeline.cores names " + config::print_cpu_list(missing),
                "name only these cpus, or widen AllowedCPUs in the unit");
  }
  if (facts.cores.size() == 1 && config.pipeline.poll == config::PollMode::kBusy) {
    return warn("cpus", allowed + ": a busy pipeline starves everything else on the only core",
                "pipeline.poll = adaptive");
  }
  return ok("cpus", allowed);
}

Check check_memory(const Result<topology::Topology>& topology, const host::HostFacts& facts) {
  if (!topology) return ok("memory", "not checked: there is no plan");
  constexpr uint64_t kReserveBytes = 256u << 20;  // control, admin, socket buffers, the kernel
  const uint64_t limit = facts.memory_limit_bytes;
  const uint64_t total = limit != 0 ? std::min(limit, facts.memory_bytes) : facts.memory_bytes;
  const uint64_t jobs = topology->job_memory_bytes;
  const std::string finding = "jobs may take " + mebibytes(jobs) + " of " + mebibytes(total);
  if (jobs + kReserveBytes <= total) return ok("memory", finding);
  return warn("memory",
              finding + ", which leaves less than " + mebibytes(kReserveBytes) +
                  " for the rest of the host",
              "lower memory.job_share");
}

Check check_mtu(const config::Config& config, const host::HostFacts& facts,
                const Result<topology::Topology>& topology) {
  std::string narrow;
  for (const auto& nic : facts.nics) {
    if (!topology || nic.mtu == 0 || nic.mtu >= config.data.mtu) continue;
    const auto& pipelines = topology->pipelines;
    const bool is_used = std::any_of(pipelines.begin(), pipelines.end(),
                                     [&](const auto& each) { return each.nic == nic.name; });
    if (!is_used) continue;
    narrow += (narrow.empty() ? "" : ", ") + nic.name + " has " + std::to_string(nic.mtu);
  }
  if (narrow.empty()) return ok("mtu", "data.mtu = " + std::to_string(config.data.mtu));
  return fail("mtu", "data.mtu = " + std::to_string(config.data.mtu) + " but " + narrow,
              "data.mtu = 0, or ip link set dev NIC mtu " + std::to_string(config.data.mtu));
}

Check check_pipeline_routes(const host::HostFacts& facts,
                            const Result<topology::Topology>& topology) {
  if (!topology) return ok("routes", "not checked: there is no plan");
  std::vector<std::string> used;
  for (const auto& pipeline : topology->pipelines) used.push_back(pipeline.address);
  return check_routes(facts, used);
}

std::vector<Check> socket_checks(const config::Config& config, const host::HostFacts& facts,
                                 const Result<topology::Topology>& topology) {
  return {
      check_buffer("receive-buffer", "data.receive_buffer_bytes", "net.core.rmem_max",
                   config.data.receive_buffer_bytes, facts.receive_buffer_max,
                   facts.can_force_buffers),
      check_buffer("send-buffer", "data.send_buffer_bytes", "net.core.wmem_max",
                   config.data.send_buffer_bytes, facts.send_buffer_max, facts.can_force_buffers),
      check_mtu(config, facts, topology), check_pipeline_routes(facts, topology)};
}

}  // namespace

const char* to_string(CheckLevel level) {
  switch (level) {
    case CheckLevel::kOk: return "ok";
    case CheckLevel::kWarn: return "warn";
    case CheckLevel::kFail: return "fail";
  }
  return "unknown";
}

std::vector<Check> preflight(const config::Config& config, const host::HostFacts& facts,
                             const std::vector<PortProbe>& probes) {
  const auto topology = topology::plan(config, facts);
  std::vector<Check> all = {check_config(config),        check_security(config),
                            check_cpus(config, facts),   check_plan(topology),
                            check_listen(config, facts), check_ports(probes)};
  const auto add = [&](const std::vector<Check>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const bool is_dpdk = config.data.port == config::PortKind::kDpdk;
  add(is_dpdk ? checks::device_checks(config, facts, topology)
              : socket_checks(config, facts, topology));
  add({check_memory(topology, facts), check_hugepages(config, topology)});
  switch (config.data.port) {
    case config::PortKind::kDpdk: add(checks::packet_memory_checks(config, facts, topology)); break;
    case config::PortKind::kRdma: add(checks::rdma_checks(facts, topology)); break;
    case config::PortKind::kSocket: add({check_memlock(facts)}); break;
  }
  return all;
}

std::string to_line(const Check& check) {
  std::string line = check.name + ": " + check.finding;
  if (!check.remedy.empty()) line.append(". Remedy: ").append(check.remedy);
  return line;
}

Status may_start(const std::vector<Check>& checks) {
  std::string failures;
  for (const Check& check : checks) {
    if (check.level != CheckLevel::kFail) continue;
    if (!failures.empty()) failures += '\n';
    failures += to_line(check);
  }
  if (!failures.empty()) return Error{ErrorCode::kInvalidArgument, failures};
  return ok_status();
}

}  // namespace pbox::preflight
