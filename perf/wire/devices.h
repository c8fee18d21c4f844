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

// Creates what the devices need: rings, or veth pairs in a new network namespace of this process.
// Returns the names under which DPDK opens the devices. Call it once per process. Throws
// std::runtime_error.
DevicePair make_devices(WireKind kind);

// Returns the --vdev arguments with which dpdk-testpmd forwards the same frames between the same
// kind of devices. Call it after make_devices.
std::vector<std::string> forwarder_devices(WireKind kind, uint32_t mtu);

}  // namespace pbox::perf
