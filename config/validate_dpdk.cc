#include "config/validate_dpdk.h"

#include <map>
#include <set>

#include "config/dpdk_device.h"

namespace pbox::config {
namespace {

using Errors = std::vector<std::string>;

void check_data(const Data& data, Errors& errors) {
  if (data.port_first == 0) {
    errors.push_back(
        "data.port_first = 0 with data.port = dpdk: only the kernel can choose free ports; give "
        "the first port, such as " +
        std::to_string(limits::kDataPortFirst));
  }
  if (data.mtu > kDpdkMtuMax) {
    errors.push_back("data.mtu = " + std::to_string(data.mtu) + " is more than data.port = dpdk " +
                     "can send; give at most " + std::to_string(kDpdkMtuMax) + ", or 0 for " +
                     std::to_string(kDpdkMtuDefault));
  }
}

void check_distinct(const std::vector<DpdkDevice>& devices, Errors& errors) {
  std::set<std::string> names;
  for (const auto& device : devices) {
    const std::string name = device_name(device.device);
    if (names.insert(name).second) continue;
    errors.push_back("dpdk.devices names " + name + " twice; remove one of the items");
  }
  std::map<std::string, uint32_t> owners;  // address -> first device of the group that has it
  for (const auto& group : device_groups(devices)) {
    const auto& first = devices[group[0]];
    for (const auto& address : first.addresses) {
      const auto [owner, is_new] = owners.emplace(without_prefix(address), group[0]);
      if (is_new) continue;
      errors.push_back(
          "dpdk.devices gives " + without_prefix(address) + " to " +
          device_name(devices[owner->second].device) + " and to " + device_name(first.device) +
          "; two devices must have either all addresses in common, to serve together, or none");
    }
  }
}

}  // namespace

void check_dpdk(const Config& config, Errors& errors) {
  const auto& devices = config.dpdk.devices;
  if (config.data.port != PortKind::kDpdk) {
    if (devices.empty()) return;
    errors.push_back("dpdk.devices = " + print_dpdk_devices(devices) +
                     " is given, but only data.port = dpdk uses it; set data.port = dpdk, or "
                     "remove the devices");
    return;
  }
  check_data(config.data, errors);
  if (devices.empty()) {
    errors.push_back(
        "dpdk.devices is empty, but data.port = dpdk; name at least one device, such as "
        "0000:3b:00.0 "
        "10.0.0.1/24, or set data.port = socket");
  }
  if (devices.size() > kDpdkDevicesMax) {
    errors.push_back("dpdk.devices names " + std::to_string(devices.size()) +
                     " devices; DPDK opens at most " + std::to_string(kDpdkDevicesMax) +
                     ": name fewer");
  }
  check_distinct(devices, errors);
}

void check_dpdk_stays_on_host(const Config& config, Errors& errors) {
  if (config.data.port != PortKind::kDpdk) return;
  std::string open;
  for (const auto& device : config.dpdk.devices) {
    if (stays_on_host(device.device)) continue;
    open += (open.empty() ? "" : ", ") + device_name(device.device);
  }
  if (open.empty()) return;
  errors.push_back("dpdk.devices: " + open +
                   " carry data off loopback and no keys are configured: anyone there could read "
                   "and change gradients; give keys (security.keys), or on a network you trust set "
                   "both security.insecure = true and security.insecure_off_loopback = true");
}

}  // namespace pbox::config
