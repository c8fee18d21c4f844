// Converts the items of dpdk.devices between text and value, and splits a device into its name and
// arguments. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace pbox::config {

struct DpdkDevicesRead {
  std::vector<DpdkDevice> devices;
  std::vector<std::string>
      faults;  // each names device, word and remedy; if there are any, `devices` is invalid
};

// Reads, for example, "0000:3b:00.0 10.0.0.1/24 gateway=10.0.0.254 vlan=100; net_ring0 fd00::1/64".
DpdkDevicesRead read_dpdk_devices(const std::string& text);
// Returns a text that reads back to the same devices.
std::string print_dpdk_devices(const std::vector<DpdkDevice>& devices);

// Returns groups of indices. Devices of one group have exactly the same addresses and serve
// together: each pipeline of the group has a queue on each of its devices. Groups are in the order
// of their first device.
std::vector<std::vector<uint32_t>> device_groups(const std::vector<DpdkDevice>& devices);

// These take DpdkDevice::device.
bool is_pci_device(const std::string& device);
std::string device_name(const std::string& device);  // "net_memif0" of "net_memif0,role=server"
bool is_device_kind(const std::string& device, const std::string& kind);  // for example "net_ring"
// Returns the value of an argument; empty if it is not given. For example, the key "iface" of
// "net_af_packet0,iface=veth0" has the value "veth0".
std::string device_argument(const std::string& device, const std::string& key);
// Returns whether the device is memory shared by processes of this host, so that its packets never
// reach a wire.
bool stays_on_host(const std::string& device);

std::string without_prefix(const std::string& address);  // "10.0.0.1" of "10.0.0.1/24"

}  // namespace pbox::config
