// A network of its own for the test and all that it starts: a box's interface, left to DPDK, and
// the workers' interface, which is the kernel's. Loopback is up too, for control.
#pragma once

#include <memory>
#include <string>

#include "tests/support/daemon.h"
#include "tests/support/wire.h"

namespace pbox::test {

// Why no such network can be made here; empty: it can. It needs root, ethtool, iproute2, a kernel
// with veth, and a pboxd with DPDK.
std::string veth_is_impossible();

struct VethOptions {
  uint32_t mtu = 9000;
  // Between box and workers stands a process that does this to frames; without, a cable.
  std::optional<WireOptions> wire = std::nullopt;
};

// The test process is moved there, and back by the destructor. The network ends with the last
// process in it.
class Veth {
 public:
  explicit Veth(const VethOptions& options = {});
  ~Veth();
  Veth(const Veth&) = delete;
  Veth& operator=(const Veth&) = delete;

  Wire& wire() { return *wire_; }
  // One more cable, with a box's interface and a workers' one of this address and network.
  void add_network(const std::string& box_interface, const std::string& worker_interface,
                   const std::string& worker_address);

  static constexpr char kBoxInterface[] = "box0";
  static constexpr char kWorkerInterface[] = "worker0";
  static constexpr char kBoxAddress[] = "10.77.0.1";
  static constexpr char kBoxAddress6[] = "fd77::1";
  static constexpr char kWorkerAddress[] = "10.77.0.2";

  // How pboxd serves kBoxInterface. `device`: more of the device's arguments, as ",qpairs=1".
  // `addresses`: what follows the device in dpdk.devices.
  Arguments box_arguments(uint32_t pipelines, const std::string& device = "",
                          const std::string& addresses = "10.77.0.1/24") const;

 private:
  uint32_t mtu_;
  int home_fd_;  // the namespace to go back to
  std::unique_ptr<Wire> wire_;
};

}  // namespace pbox::test
