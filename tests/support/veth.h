// A network namespace for the test and its child processes, with a box's interface, driven by DPDK,
// and the workers' interface, driven by the kernel. Loopback is up too, for control connections.
#pragma once

#include <memory>
#include <string>

#include "tests/support/daemon.h"
#include "tests/support/wire.h"

namespace pbox::test {

// Returns why no such network can be made here; empty if it can. It needs root, ethtool, iproute2,
// a kernel with veth, and a pboxd with DPDK.
std::string veth_is_impossible();

struct VethOptions {
  uint32_t mtu = 9000;
  // If set, a process between box and workers treats frames as these options say. Otherwise there
  // is a plain cable.
  std::optional<WireOptions> wire = std::nullopt;
};

// The constructor moves the test process into the namespace and the destructor moves it back. The
// network ends with the last process in it.
class Veth {
 public:
  explicit Veth(const VethOptions& options = {});
  ~Veth();
  Veth(const Veth&) = delete;
  Veth& operator=(const Veth&) = delete;

  Wire& wire() { return *wire_; }
  // Adds one more cable, with a box's interface and a workers' interface with this address and
  // network.
  void add_network(const std::string& box_interface, const std::string& worker_interface,
                   const std::string& worker_address);

  static constexpr char kBoxInterface[] = "box0";
  static constexpr char kWorkerInterface[] = "worker0";
  static constexpr char kBoxAddress[] = "10.77.0.1";
  static constexpr char kBoxAddress6[] = "fd77::1";
  static constexpr char kWorkerAddress[] = "10.77.0.2";

  // Returns the arguments with which pboxd serves kBoxInterface. `device` holds more device
  // arguments, for example ",qpairs=1". `addresses` follows the device in dpdk.devices.
  Arguments box_arguments(uint32_t pipelines, const std::string& device = "",
                          const std::string& addresses = "10.77.0.1/24") const;

 private:
  uint32_t mtu_;
  int home_fd_;  // the namespace to return to
  std::unique_ptr<Wire> wire_;
};

}  // namespace pbox::test
