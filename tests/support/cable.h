// Two network namespaces joined by a cable: what loopback cannot show.
#pragma once

#include <string>

#include "tests/support/daemon.h"

namespace pbox::test {

class Cable {
 public:
  // The MTU of each end. A packet that is longer than the far end's is lost, and nobody is told.
  Cable(int box_mtu, int rack_mtu);
  ~Cable();
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  // False where namespaces cannot be made: that needs root and iproute2.
  bool works() const { return works_; }
  const std::string& box() const { return box_; }    // the namespace of kBoxAddress
  const std::string& rack() const { return rack_; }  // the other one
  // Loses what arrives at the box for a UDP port; false if this kernel cannot.
  bool block_udp(uint16_t port) const;

  static constexpr char kBoxAddress[] = "10.77.0.1";
  // A box that listens there: add a free port, as daemon_arguments does.
  static Arguments box_arguments();

 private:
  std::string box_, rack_;
  bool works_ = false;
};

}  // namespace pbox::test
