// Pairs of DPDK devices, each of which receives what the other sends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pbox::perf {

enum class WireKind { kRing, kMemif, kAfPacket, kSocket };

struct DevicePair {
  std::string box;
  std::string load;
};

// Makes what the devices stand on (rings; a veth pair in a network namespace of this process's own)
// and says how DPDK is to name them. For the process once. Throws std::runtime_error.
DevicePair make_devices(WireKind kind);

// Returns the --vdev arguments with which dpdk-testpmd forwards the same frames between the same
// kind of devices. Call after make_devices.
std::vector<std::string> forwarder_devices(WireKind kind, uint32_t mtu);

}  // namespace pbox::perf
