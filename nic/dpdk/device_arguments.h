// What a device is called, and what it is told at start. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pbox::nic {

// "net_memif0,role=server,id=0" or "0000:3b:00.0" (no arguments).
struct DeviceArguments {
  std::string name;    // "net_memif0", "0000:3b:00.0"
  std::string driver;  // of a virtual device: the name without its number, "net_memif"; else empty
  std::vector<std::string> arguments;  // "role=server"

  bool is_virtual() const { return !driver.empty(); }
  std::optional<std::string> value(const std::string& key) const;
  void set_default(const std::string& key, const std::string& value);  // unless it is given
  std::string text() const;                                            // as DPDK takes it
};
DeviceArguments parse_device(const std::string& text);

// Bytes of an Ethernet frame whose IP packet has `mtu` bytes: header, one VLAN tag, no check
// sequence.
constexpr uint32_t frame_bytes(uint32_t mtu) {
  return mtu + 18;
}

// Puts in what a virtual device needs for `queue_count` queues and `mtu` and its user left out:
// af_packet's queue pairs and ring geometry, memif's queues and buffer size.
void complete_arguments(DeviceArguments& device, uint32_t queue_count, uint32_t mtu);

// What a device may put before the frame, and wants room for: virtio, 12 bytes, or 20 with a hash.
inline constexpr uint32_t kDeviceHeaderBytes = 20;

// Bytes that a packet buffer must hold to receive from the device: af_packet wants its whole ring
// frame to fit.
uint32_t receive_buffer_bytes(const DeviceArguments& device, uint32_t mtu);

}  // namespace pbox::nic
