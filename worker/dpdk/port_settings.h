// What follows "dpdk:" in a worker's port, in the words that a box's dpdk.devices uses too:
//
//   DEVICE[,ARGUMENT...] ADDRESS/PREFIX... [gateway=ADDRESS] [vlan=ID] [mtu=BYTES] [no_huge]
//   [memory_mib=N]
//
// as in "0000:3b:00.0 10.0.0.7/24 mtu=9000" or "net_memif0,socket=/run/pbox.sock 10.0.0.7/24
// no_huge".
#pragma once

#include <cstdint>
#include <string>

#include "nic/dpdk/eal.h"
#include "nic/ethernet/interface.h"

namespace pbox::worker {

struct DpdkPortSettings {
  std::string device;  // PCI address, or virtual device with its arguments
  nic::Interface interface;
  bool no_huge = false;
  uint32_t memory_mib = 0;  // 0: as it is needed; with no_huge kNoHugeMemoryMib

  // Of the process's one DPDK.
  nic::EalOptions eal() const;
};

// The most that `mtu` may be: one packet fits into one buffer of any device.
inline constexpr uint32_t kDpdkPortMtuMax = 9'216;
// Ring and packet buffers of up to 16 pipelines at that MTU; untouched pages cost nothing.
inline constexpr uint32_t kNoHugeMemoryMib = 1'024;

// Errors name the word and what to write instead. Pure.
Result<DpdkPortSettings> parse_dpdk_port(const std::string& text);

}  // namespace pbox::worker
