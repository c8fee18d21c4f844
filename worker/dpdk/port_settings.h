// Parses the text after "dpdk:" in a worker's port. The words are those of a box's dpdk.devices:
//
//   DEVICE[,ARGUMENT...] ADDRESS/PREFIX... [gateway=ADDRESS] [vlan=ID] [mtu=BYTES] [no_huge]
//   [memory_mib=N]
//
// For example "0000:3b:00.0 10.0.0.7/24 mtu=9000" or "net_memif0,socket=/run/pbox.sock 10.0.0.7/24
// no_huge".
#pragma once

#include <cstdint>
#include <string>

#include "nic/dpdk/eal.h"
#include "nic/ethernet/interface.h"

namespace pbox::worker {

struct DpdkPortSettings {
  std::string device;  // PCI address, or a virtual device with its arguments
  nic::Interface interface;
  bool no_huge = false;
  uint32_t memory_mib = 0;  // 0: as needed, or kNoHugeMemoryMib with no_huge

  // Options of DPDK, which is started once per process.
  nic::EalOptions eal() const;
};

// Upper bound of `mtu`: one packet fits into one buffer of any device.
inline constexpr uint32_t kDpdkPortMtuMax = 9'216;
// Ring and packet buffers for up to 16 pipelines at that MTU. Pages that are not touched cost
// nothing.
inline constexpr uint32_t kNoHugeMemoryMib = 1'024;

// Errors name the wrong word and the remedy. Pure.
Result<DpdkPortSettings> parse_dpdk_port(const std::string& text);

}  // namespace pbox::worker
