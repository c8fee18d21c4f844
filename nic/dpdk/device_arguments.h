// Device names and start-up arguments as DPDK takes them. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pbox::nic {

// A parsed description of a device: "net_memif0,role=server,id=0", or "0000:3b:00.0" without
// arguments.
struct DeviceArguments {
  std::string name;    // "net_memif0", "0000:3b:00.0"
  std::string driver;  // virtual devices: the name without its number, "net_memif"; otherwise empty
  std::vector<std::string> arguments;  // each "key=value", such as "role=server"

  bool is_virtual() const { return !driver.empty(); }
  std::optional<std::string> value(const std::string& key) const;
  void set_default(const std::string& key, const std::string& value);  // if the key is not given
  std::string text() const;                                            // the text for DPDK
};
DeviceArguments parse_device(const std::string& text);

// Returns the length of an Ethernet frame whose IP packet has `mtu` bytes: with header and one VLAN
// tag, without check sequence.
constexpr uint32_t frame_bytes(uint32_t mtu) {
  return mtu + 18;
}

// Adds the arguments that a virtual device needs for `queue_count` queues and `mtu`, unless the
// user has given them: queue pairs and ring geometry of af_packet, the buffer size of memif.
void complete_arguments(DeviceArguments& device, uint32_t queue_count, uint32_t mtu);

// Room for a header that a device may put in front of the frame: virtio needs 12 bytes, or 20 with
// a hash.
inline constexpr uint32_t kDeviceHeaderBytes = 20;

// Returns the bytes that a receive buffer must hold. af_packet needs room for a whole frame of its
// ring.
uint32_t receive_buffer_bytes(const DeviceArguments& device, uint32_t mtu);

}  // namespace pbox::nic
