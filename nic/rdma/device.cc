#include "nic/rdma/device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace pbox::nic {
namespace {

class DeviceList {
 public:
  // A kernel without RDMA returns ENOSYS and no list. That means that there is no device.
  DeviceList() : devices_(ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) ibv_free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  std::vector<ibv_device*> all() const {
    if (devices_ == nullptr) return {};
    return {devices_, devices_ + count_};
  }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> rdma_device_names() {
  std::vector<std::string> names;
  const DeviceList list;
  for (ibv_device* device : list.all()) names.push_back(ibv_get_device_name(device));
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::shared_ptr<RdmaDevice>> RdmaDevice::open(const RdmaDeviceOptions& options) {
  std::shared_ptr<RdmaDevice> device(new RdmaDevice());
  device->name_ = options.name;
  const std::string prefix = "RDMA device " + options.name + ": ";
  {
    const DeviceList list;
    for (ibv_device* each : list.all()) {
      if (options.name != ibv_get_device_name(each)) continue;
      device->context_ = VerbsContext(ibv_open_device(each));
      if (device->context_) break;
      return system_error(
          prefix + "cannot be opened; check that this process may use /dev/infiniband", errno);
    }
  }
  if (!device->context_) {
    const std::string known = join(rdma_device_names());
    return Error{ErrorCode::kNotFound,
                 prefix + "no device has this name; " +
                     (known.empty() ? "this host has no RDMA device (rdma link lists them)"
                                    : "choose one of " + known)};
  }
  const int events_fd = device->context()->async_fd;
  fcntl(events_fd, F_SETFL, fcntl(events_fd, F_GETFL) | O_NONBLOCK);
  if (const int error = ibv_query_device(device->context(), &device->limits_); error != 0) {
    return system_error(prefix + "cannot be queried", error);
  }
  if (const Status found = device->find_port(); !found) return found.error();
  if (const Status found = device->find_gid(options); !found) return found.error();
  return device;
}

Status RdmaDevice::find_port() {
  for (uint8_t port = 1; port <= limits_.phys_port_cnt; ++port) {
    if (ibv_query_port(context(), port, &attributes_) != 0) continue;
    if (attributes_.state != IBV_PORT_ACTIVE) continue;
    port_ = port;
    return ok_status();
  }
  return Error{ErrorCode::kUnavailable,
               "RDMA device " + name_ + ": no port is active; bring its network interface up"};
}

Status RdmaDevice::find_gid(const RdmaDeviceOptions& options) {
  const bool is_infiniband = attributes_.link_layer == IBV_LINK_LAYER_INFINIBAND;
  std::vector<GidEntry> entries;
  for (int index = 0; index < attributes_.gid_tbl_len; ++index) {
    ibv_gid_entry found{};
    if (ibv_query_gid_ex(context(), port_, static_cast<uint32_t>(index), &found, 0) != 0) continue;
    GidEntry entry;
    entry.index = found.gid_index;
    std::copy_n(found.gid.raw, entry.gid.size(), entry.gid.begin());
    entry.is_usable = is_infiniband || found.gid_type == IBV_GID_TYPE_ROCE_V2;
    entries.push_back(entry);
  }
  auto chosen = choose_gid(entries, options.gid_index, options.near);
  if (!chosen) {
    return Error{chosen.error().code, "RDMA device " + name_ + ": " + chosen.error().message};
  }
  gid_ = *chosen;
  return ok_status();
}

uint32_t RdmaDevice::mtu_bytes() const {
  return 128u << attributes_.active_mtu;  // IBV_MTU_256 is 1
}

std::string RdmaDevice::describe() const {
  return "device " + name_ + ": port " + std::to_string(port_) + ", GID " +
         std::to_string(gid_.entry.index) + " (" + to_string(gid_.entry.gid) + "), " + gid_.reason +
         ", MTU " + std::to_string(mtu_bytes());
}

}  // namespace pbox::nic
