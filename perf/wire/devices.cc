#include "perf/wire/devices.h"

#include <rte_eth_ring.h>
#include <rte_ring.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "nic/dpdk/device_arguments.h"

extern char** environ;

namespace pbox::perf {
namespace {

constexpr uint32_t kRingSlots = 1024;

void run(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  int status = 0;
  if (posix_spawnp(&child, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0 ||
      waitpid(child, &status, 0) != child || status != 0) {
    std::string command;
    for (const auto& word : words) command += word + ' ';
    throw std::runtime_error("failed: " + command + "(af_packet needs root, and iproute2)");
  }
}

// Creates the interfaces v0 and v1 for the box and its load, and v2 and v3 for testpmd. The kernel
// removes them with the process's namespace.
void make_veths() {
  if (unshare(CLONE_NEWNET) != 0) {
    throw std::runtime_error(std::string("cannot make a network namespace: ") + strerror(errno) +
                             "; af_packet needs root");
  }
  for (const char* pair : {"01", "23"}) {
    const std::string left = std::string("v") + pair[0];
    const std::string right = std::string("v") + pair[1];
    run({"ip", "link", "add", left, "mtu", "9000", "type", "veth", "peer", "name", right, "mtu",
         "9000"});
    for (const auto& name : {left, right}) {
      // With IPv6, the kernel would send packets of its own.
      run({"sysctl", "-qw", "net.ipv6.conf." + name + ".disable_ipv6=1"});
      run({"ip", "link", "set", name, "up"});
    }
  }
}

DevicePair make_rings() {
  rte_ring* to_box = rte_ring_create("to_box", kRingSlots, SOCKET_ID_ANY, 0);
  rte_ring* to_load = rte_ring_create("to_load", kRingSlots, SOCKET_ID_ANY, 0);
  if (to_box == nullptr || to_load == nullptr ||
      rte_eth_from_rings("box", &to_box, 1, &to_load, 1, 0) < 0 ||
      rte_eth_from_rings("load", &to_load, 1, &to_box, 1, 0) < 0) {
    throw std::runtime_error("cannot make a pair of ring devices");
  }
  return {"net_ring_box", "net_ring_load"};
}

std::string memif(uint32_t number, const char* role, const std::string& purpose) {
  return "net_memif" + std::to_string(number) + ",role=" + role + ",socket=/tmp/pbox-perf-" +
         purpose + "-" + std::to_string(getpid()) + ".sock,socket-abstract=no,id=0";
}

}  // namespace

DevicePair make_devices(WireKind kind) {
  switch (kind) {
    case WireKind::kRing: return make_rings();
    case WireKind::kMemif: return {memif(0, "server", "wire"), memif(1, "client", "wire")};
    case WireKind::kAfPacket:
      make_veths();
      return {"net_af_packet0,iface=v0", "net_af_packet1,iface=v1"};
    case WireKind::kSocket: break;
  }
  return {};
}

std::vector<std::string> forwarder_devices(WireKind kind, uint32_t mtu) {
  std::vector<std::string> devices;
  switch (kind) {
    case WireKind::kRing: return {"net_ring0"};
    case WireKind::kMemif:
      devices = {memif(0, "server", "forward"), memif(1, "client", "forward")};
      break;
    case WireKind::kAfPacket:
      devices = {"net_af_packet0,iface=v2", "net_af_packet1,iface=v3"};
      break;
    case WireKind::kSocket: break;
  }
  for (auto& text : devices) {  // the same queues and buffers as the box's device
    auto device = nic::parse_device(text);
    nic::complete_arguments(device, 1, mtu);
    text = device.text();
  }
  return devices;
}

}  // namespace pbox::perf
