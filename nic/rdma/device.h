// One port of an RDMA device, opened: what queues stand on.
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
  std::string name;                        // "mlx5_0"
  std::optional<uint32_t> gid_index = {};  // else choose_gid's rule
  std::optional<Endpoint> near = {};       // for that rule
};

// Shared by the queues that stand on it. Set-up thread.
class RdmaDevice {
 public:
  // The device's first active port. Errors name the device, and what there is instead.
  static Result<std::shared_ptr<RdmaDevice>> open(const RdmaDeviceOptions& options);

  ibv_context* context() const { return context_.get(); }
  const std::string& name() const { return name_; }
  uint8_t port() const { return port_; }
  const GidChoice& gid() const { return gid_; }
  uint16_t lid() const { return attributes_.lid; }
  uint32_t mtu_bytes() const;  // of the link: RDMA's own packets, not IP's
  const ibv_device_attr& limits() const { return limits_; }
  // One that waits, acknowledged; never blocks. One thread at a time, which destroys no object of
  // the device meanwhile.
  std::optional<DeviceEvent> next_event() const;
  // "device rxe0: port 1, GID 1 (10.9.0.1), nearest to 10.9.0.1, MTU 4096"
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

// The devices that there are, by name; empty where there are none, or no support for them.
std::vector<std::string> rdma_device_names();

}  // namespace pbox::nic
