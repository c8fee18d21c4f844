#include "tools/pboxctl/doctor_host.h"

#include <poll.h>

#include <algorithm>
#include <optional>

#include "appliance/topology/plan.h"
#include "config/address.h"
#include "config/dpdk_device.h"
#include "nic/ethernet/address.h"
#include "tools/pboxctl/doctor_checks.h"
#include "tools/pboxctl/doctor_daemon.h"
#include "worker/transport/control_channel.h"

namespace pboxctl {
namespace {

using pbox::config::Config;

// Returns the address at which this host reaches a server that listens at `listen`.
std::string reachable(const std::string& listen) {
  if (!pbox::config::is_wildcard_address(listen)) return listen;
  return listen.find(':') == std::string::npos ? "127.0.0.1" : "::1";
}

// Returns whether a pboxd listens at this address. Only a pboxd answers FAILURE to a first message
// that is not a JOIN.
bool is_box(const std::string& host, uint16_t port) {
  constexpr uint32_t kTimeoutMs = 1'000;
  const auto endpoint = pbox::nic::parse_endpoint(host, port);
  if (!endpoint || port == 0) return false;
  pbox::worker::BoxAddresses addresses;
  auto channel =
      pbox::worker::ControlChannel::connect({.box = to_string(*endpoint)}, addresses, kTimeoutMs);
  if (!channel) return false;
  pbox::proto::WorkerMessage message;
  message.mutable_heartbeat();
  if (!channel->send(message)) return false;
  pollfd wait{channel->fd(), POLLIN, 0};
  poll(&wait, 1, kTimeoutMs);
  const auto answers = channel->receive();
  return answers && !answers->empty() && answers->front().has_failure();
}

// Reports the state of the machine. Returns false if pboxd would refuse to start.
bool check_machine(const Config& config, bool runs, Report& report) {
  const auto facts = pbox::host::read_host_facts();
  if (!facts) {
    report.fail("host", facts.error().message,
                "check that /sys is mounted and readable; lstopo reads the same files");
    return false;
  }
  std::vector<pbox::preflight::PortProbe> probes;
  const auto topology = pbox::topology::plan(config, *facts);
  if (topology && !runs) {
    probes =
        pbox::preflight::probe_ports(config, static_cast<uint32_t>(topology->pipelines.size()));
  }
  const auto checks = preflight(config, *facts, probes);
  for (const Check& check : checks) {
    if (check.name != "ports" || !runs) report.add(check);
  }
  return may_start(checks).ok();
}

uint32_t dpdk_mtu(const Config& config) {
  return config.data.mtu == 0 ? pbox::config::kDpdkMtuDefault : config.data.mtu;
}

// Returns whether this host's kernel has an interface in a network of the box's devices. An example
// is a veth pair with one end at the box and the other at the kernel.
bool is_peer_of_devices(const Config& config, const pbox::host::HostFacts& facts) {
  for (const auto& device : config.dpdk.devices) {
    for (const auto& text : device.addresses) {
      const auto network = pbox::nic::parse_interface_address(text);
      for (const auto& address : facts.addresses) {
        const auto own = pbox::nic::parse_endpoint(address, 0);
        if (network && own && network->contains(pbox::nic::ip_address(*own))) return true;
      }
    }
  }
  return false;
}

// Returns an address in the network of the box's device that neither the device nor a gateway has.
std::optional<pbox::nic::InterfaceAddress> free_address(const pbox::config::DpdkDevice& device) {
  const auto own = pbox::nic::parse_interface_address(device.addresses[0]);
  if (!own) return std::nullopt;
  const auto& all = device.addresses;
  const auto& routers = device.gateways;
  const size_t last = own->address.ipv6 ? 15 : 3;
  for (uint8_t value = 254; value > 0; --value) {
    pbox::nic::InterfaceAddress candidate = *own;
    candidate.address.bytes[last] = value;
    const std::string text = to_string(candidate);
    if (own->contains(candidate.address) && pbox::nic::parse_interface_address(text) &&
        std::find(all.begin(), all.end(), text) == all.end() &&
        std::find(routers.begin(), routers.end(), to_string(candidate.address)) == routers.end()) {
      return candidate;
    }
  }
  return std::nullopt;
}

// Returns the port of a worker at the other end of the box's first device, if that device is shared
// memory of this host (memif) and all pipelines use it; otherwise an empty string.
std::string worker_end(const Config& config) {
  const auto& device = config.dpdk.devices[0];
  if (!pbox::config::is_device_kind(device.device, "net_memif") ||
      pbox::config::device_argument(device.device, "role") != "server" ||
      pbox::config::device_groups(config.dpdk.devices).size() != 1) {
    return "";
  }
  const auto address = free_address(device);
  if (!address) return "";
  std::string port = "dpdk:net_memif0";
  for (const char* key : {"id", "socket", "socket-abstract", "secret"}) {
    const std::string value = pbox::config::device_argument(device.device, key);
    if (!value.empty()) port.append(",").append(key).append("=").append(value);
  }
  port.append(" ").append(to_string(*address));
  port.append(" no_huge mtu=").append(std::to_string(dpdk_mtu(config)));
  if (device.vlan != 0) port.append(" vlan=").append(std::to_string(device.vlan));
  return port;
}

// Exchanges data with the box over the same devices as its workers. `is_ours` is true if this
// process started the box, so that no worker is at the other end of its devices.
void exchange(const Config& config, uint16_t control_port, uint32_t seconds, bool is_ours,
              Report& report) {
  BoxPath path;
  path.host = reachable(config.box.listen);
  path.port = control_port;
  path.seconds = seconds;
  if (!use_keys(config.security.keys, path, report)) return;
  const auto facts = pbox::host::read_host_facts();
  if (config.data.port != pbox::config::PortKind::kDpdk ||
      (facts && is_peer_of_devices(config, *facts))) {
    check_box(path, report);
    return;
  }
  if (const std::string port = is_ours ? worker_end(config) : ""; !port.empty()) {
    path.worker_port = port;
    path.interface = pbox::config::device_name(config.dpdk.devices[0].device);
    path.interface_mtu = dpdk_mtu(config);
    check_box(path, report);
    return;
  }
  report.warn("exchange", "DPDK owns the devices, so this host cannot act as a worker",
              "start pboxd, and run pboxctl doctor --to BOX on a worker host");
}

}  // namespace

void check_host(const Config& config, uint32_t seconds, Report& report) {
  constexpr uint32_t kStartTimeoutMs = 30'000;  // the kernel clears hugepages at allocation
  const bool runs = is_box(reachable(config.box.listen), config.control.port);
  report.say("The machine:");
  const bool may_start = check_machine(config, runs, report);
  if (stop_requested) return;
  if (runs) {
    report.ok("pboxd", "is running; the checks below use the running pboxd");
    report.say("The running box, as a worker on this host sees it:");
    exchange(config, config.control.port, seconds, false, report);
    return;
  }
  if (!may_start) {
    report.say(
        "No pboxd was started, because it would refuse to start. Fix what failed, and run this "
        "again.");
    return;
  }
  report.progress("starting a pboxd for the checks");
  const auto box = PrivateBox::start(config, kStartTimeoutMs);
  if (!box) {
    if (!stop_requested) {
      report.fail("pboxd", box.error().message,
                  "run pboxd --check-config, then pboxd in a terminal to see its log");
    }
    return;
  }
  report.ok("pboxd", "starts; control at TCP " + std::to_string((*box)->control_port()) +
                         " for this test only");
  report.say("The box just started, as a worker on this host sees it:");
  exchange(config, (*box)->control_port(), seconds, true, report);
}

}  // namespace pboxctl
