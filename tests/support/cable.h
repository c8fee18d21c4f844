// Two network namespaces joined by a cable, for faults that loopback cannot show.
#pragma once

#include <string>

#include "tests/support/daemon.h"

namespace pbox::test {

class Cable {
 public:
  // Sets the MTU of each end. A packet larger than the far end's MTU is lost silently.
  Cable(int box_mtu, int rack_mtu);
  ~Cable();
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  // Returns false if namespaces cannot be made, which needs root and iproute2.
  bool works() const { return works_; }
  const std::string& box() const { return box_; }    // the namespace with kBoxAddress
  const std::string& rack() const { return rack_; }  // the other namespace
  // Drops packets that arrive at the box for this UDP port; returns false if the kernel cannot.
  bool block_udp(uint16_t port) const;

  static constexpr char kBoxAddress[] = "10.77.0.1";
  // Arguments of a box that listens on that address. Add a free port, as daemon_arguments does.
  static Arguments box_arguments();

 private:
  std::string box_, rack_;
  bool works_ = false;
};

}  // namespace pbox::test
