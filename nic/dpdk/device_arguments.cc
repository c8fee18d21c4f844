#include "nic/dpdk/device_arguments.h"

#include <algorithm>
#include <bit>
#include <charconv>

namespace pbox::nic {
namespace {

constexpr uint32_t kRingFrames = 1024;  // per af_packet queue and direction
constexpr uint32_t kBlockFrames = 4;
constexpr uint32_t kPacketRingOverheadBytes = 256;  // more than TPACKET2's header and reserve

uint32_t ring_frame_bytes(uint32_t mtu) {
  return std::bit_ceil(frame_bytes(mtu) + kPacketRingOverheadBytes);
}

uint32_t number_or(const std::optional<std::string>& text, uint32_t otherwise) {
  uint32_t value = 0;
  if (!text) return otherwise;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  return error == std::errc() && end == text->data() + text->size() ? value : otherwise;
}

}  // namespace

std::optional<std::string> DeviceArguments::value(const std::string& key) const {
  for (const auto& argument : arguments) {
    if (argument.rfind(key + "=", 0) == 0) return argument.substr(key.size() + 1);
  }
  return std::nullopt;
}

void DeviceArguments::set_default(const std::string& key, const std::string& value_text) {
  if (!value(key)) arguments.push_back(key + "=" + value_text);
}

std::string DeviceArguments::text() const {
  std::string joined = name;
  for (const auto& argument : arguments) joined += "," + argument;
  return joined;
}

DeviceArguments parse_device(const std::string& text) {
  DeviceArguments device;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (begin == 0) {
      device.name = word;
    } else if (!word.empty()) {
      device.arguments.push_back(word);
    }
    begin = end + 1;
  }
  if (device.name.find(':') == std::string::npos) {
    const size_t last = device.name.find_last_not_of("0123456789");
    device.driver = device.name.substr(0, last + 1);
  }
  return device;
}

void complete_arguments(DeviceArguments& device, uint32_t queue_count, uint32_t mtu) {
  if (device.driver == "net_af_packet") {
    const uint32_t frame = number_or(device.value("framesz"), ring_frame_bytes(mtu));
    device.set_default("qpairs", std::to_string(queue_count));
    device.set_default("framesz", std::to_string(frame));
    device.set_default("blocksz", std::to_string(kBlockFrames * frame));
    device.set_default("framecnt", std::to_string(kRingFrames));
  }
  if (device.driver == "net_memif" && device.value("role").value_or("client") == "client") {
    // The client owns the shared memory. One buffer holds a whole frame, so no frame is split.
    device.set_default("bsize", std::to_string(std::bit_ceil(frame_bytes(mtu))));
  }
}

uint32_t receive_buffer_bytes(const DeviceArguments& device, uint32_t mtu) {
  if (device.driver == "net_af_packet") {
    return number_or(device.value("framesz"), ring_frame_bytes(mtu));
  }
  return frame_bytes(mtu) + kDeviceHeaderBytes;
}

}  // namespace pbox::nic
