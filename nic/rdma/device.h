// An open RDMA device and its port. Queues are created on it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/rdma/device_event.h"
#include "nic/rdma/gid.h"
#include "nic/rdma/verbs.h"

namespace pbox::nic {

struct RdmaDeviceOptions {
  std::string name;                        // for example "mlx5_0"
  std::optional<uint32_t> gid_index = {};  // empty: choose_gid() chooses
  std::optional<Endpoint> near = {};       // address that choose_gid() compares with
};

// The queues that use the device share it. It belongs to the control thread.
class RdmaDevice {
 public:
  // Opens the device's first active port. Errors name the device and the alternatives.
  static Result<std::shared_ptr<RdmaDevice>> open(const RdmaDeviceOptions& options);

  ibv_context* context() const { return context_.get(); }
  const std::string& name() const { return name_; }
  uint8_t port() const { return port_; }
  const GidChoice& gid() const { return gid_; }
  uint16_t lid() const { return attributes_.lid; }
  uint32_t mtu_bytes() const;  // MTU of RDMA packets on the link, not of IP packets
  const ibv_device_attr& limits() const { return limits_; }
  // Returns one pending event, which it has acknowledged, or nothing. Never blocks. Only one thread
  // may call it at a time, and no object of the device may be destroyed during the call.
  std::optional<DeviceEvent> next_event() const;
  // Returns a line for logs: "device rxe0: port 1, GID 1 (10.9.0.1), nearest to 10.9.0.1, MTU
  // 4096".
  std::string describe() const;

 private:
  RdmaDevice() = default;
  Status find_port();
  Status find_gid(const RdmaDeviceOptions& options);

  std::string name_;
  VerbsContext context_;
  ibv_device_attr limits_{};
  ibv_port_attr attributes_{};
  uint8_t port_ = 0;
  GidChoice gid_;
};

// Returns the names of this host's devices, sorted; empty if it has none or no support for them.
std::vector<std::string> rdma_device_names();

}  // namespace pbox::nic
