#include "tests/support/veth.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <fstream>

namespace pbox::test {
namespace {

// Disables IPv6 on the interface, so that the kernel does not send frames of its own there.
void silence(const std::string& interface) {
  std::ofstream("/proc/sys/net/ipv6/conf/" + interface + "/disable_ipv6") << "1";
}

void add_pair(const std::string& left, const std::string& right, uint32_t mtu) {
  const std::string text = std::to_string(mtu);
  must_run(
      {"ip", "link", "add", left, "mtu", text, "type", "veth", "peer", "name", right, "mtu", text});
  for (const std::string& end : {left, right}) {
    // Offloads must be off: the kernel would leave checksums and segmentation to a NIC that does
    // not exist.
    must_run({"ethtool", "-K", end, "tx", "off", "tx-udp-segmentation", "off"});
  }
}

}  // namespace

std::string veth_is_impossible() {
#ifndef PBOX_HAS_DPDK
  return "pboxd was built without DPDK (apt-get install libdpdk-dev)";
#else
  if (geteuid() != 0) return "network namespaces and raw sockets need root";
  try {
    Veth veth;
  } catch (const std::exception& exception) {
    return exception.what();
  }
  return "";
#endif
}

Veth::Veth(const VethOptions& options)
    : mtu_(options.mtu), home_fd_(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
  if (home_fd_ < 0 || unshare(CLONE_NEWNET) != 0) {
    throw std::runtime_error("cannot make a network namespace");
  }
  must_run({"ip", "link", "set", "lo", "up"});
  if (options.wire) {
    add_pair(kBoxInterface, "wire0", mtu_);
    add_pair("wire1", kWorkerInterface, mtu_);
  } else {
    add_pair(kBoxInterface, kWorkerInterface, mtu_);
  }
  silence(kBoxInterface);
  for (const std::string end : {"wire0", "wire1"}) {
    if (!options.wire) break;
    silence(end);
    must_run({"ip", "link", "set", end, "up"});
  }
  const std::string worker = kWorkerInterface;
  must_run({"ip", "addr", "add", std::string(kWorkerAddress) + "/24", "dev", worker});
  must_run({"ip", "addr", "add", "fd77::2/64", "dev", worker, "nodad"});
  must_run({"ip", "link", "set", kBoxInterface, "up"});
  must_run({"ip", "link", "set", worker, "up"});
  if (options.wire) wire_ = std::make_unique<Wire>("wire0", "wire1", *options.wire);
}

void Veth::add_network(const std::string& box_interface, const std::string& worker_interface,
                       const std::string& worker_address) {
  add_pair(box_interface, worker_interface, mtu_);
  silence(box_interface);
  must_run({"ip", "addr", "add", worker_address, "dev", worker_interface});
  for (const auto& end : {box_interface, worker_interface}) {
    must_run({"ip", "link", "set", end, "up"});
  }
}

Veth::~Veth() {
  wire_.reset();
  setns(home_fd_, CLONE_NEWNET);
  close(home_fd_);
}

Arguments Veth::box_arguments(uint32_t pipelines, const std::string& device,
                              const std::string& addresses) const {
  return {"--box.listen=127.0.0.1", "--data.port=dpdk", "--data.port_first=9542",
          "--data.mtu=" + std::to_string(mtu_),
          "--dpdk.devices=net_af_packet0,iface=" + std::string(kBoxInterface) + device + " " +
              addresses,
          "--dpdk.no_huge=true", "--pipeline.count=" + std::to_string(pipelines),
          // Test machines have few cores.
          "--pipeline.pin=off", "--security.insecure=true",
          "--security.insecure_off_loopback=true"};
}

}  // namespace pbox::test
