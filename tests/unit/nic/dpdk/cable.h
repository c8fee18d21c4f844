// An Ethernet cable in memory: two ring devices, each of which receives what the other sends.
#pragma once

#include <rte_ring.h>

#include <memory>
#include <string>
#include <vector>

#include "nic/dpdk/interface.h"
#include "nic/dpdk/port.h"

namespace pbox::test {

// Starts DPDK without hugepages, once per process.
void start_dpdk();

class Cable {
 public:
  // Creates `queue_count` rings in each direction, of `slots` packets each. `slots` is a power of
  // two; one slot always stays free.
  explicit Cable(uint32_t queue_count, uint32_t slots = 256);
  ~Cable();

  // Returns the names of the devices at the ends.
  std::string left() const { return "net_ring_" + name_ + "l"; }
  std::string right() const { return "net_ring_" + name_ + "r"; }

 private:
  std::string name_;
  std::vector<rte_ring*> to_right_;
  std::vector<rte_ring*> to_left_;
};

// Returns interface options with these addresses, separated by spaces, and the default ports.
nic::DpdkInterfaceOptions options_for(const std::string& device, const std::string& addresses,
                                      uint32_t pipelines);

// Opens the interface. If that fails, aborts the test with the error's text.
std::unique_ptr<nic::DpdkInterface> open_interface(const nic::DpdkInterfaceOptions& options);

}  // namespace pbox::test
