// The host that receives the frames of these tests, its peer, and the notation of frames.
#pragma once

#include <string>
#include <vector>

#include "nic/ethernet/receive.h"

namespace pbox::nic {

using Bytes = std::vector<std::byte>;

inline constexpr MacAddress kOwnMac = {2, 0, 0, 0, 0, 1};
inline constexpr MacAddress kPeerMac = {2, 0, 0, 0, 0, 2};
inline constexpr UdpPorts kPorts = {.first = 9542, .count = 2};

inline IpAddress ip(const std::string& text) {
  return ip_address(*parse_endpoint(text, 0));
}

// Returns an interface with the addresses 10.0.0.1/24 and fd00::1/64.
inline Interface make_interface(uint16_t vlan = 0) {
  return {.addresses = {*parse_interface_address("10.0.0.1/24"),
                        *parse_interface_address("fd00::1/64")},
          .gateway4 = ip("10.0.0.254"),
          .gateway6 = ip("fe80::fe"),
          .vlan = vlan};
}

struct GoldenFrame {
  const char* description;
  Verdict verdict;
  uint16_t vlan;  // the interface's VLAN; 0: none
  const char* hex;
  const char* reply;  // "": no answer
};

// Returns the bytes on the heap, in a block of exactly their size, so that the address sanitizer
// detects any read beyond them.
inline Bytes from_hex(std::string hex) {
  std::erase(hex, ' ');
  Bytes bytes;
  for (size_t at = 0; at < hex.size(); at += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

// Reference checksum: adds word by word and each carry at once (RFC 1071, section 4.1).
inline uint16_t reference_sum(const Bytes& bytes) {
  uint32_t sum = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    const auto byte = std::to_integer<uint32_t>(bytes[at]);
    sum += at % 2 == 0 ? byte << 8 : byte;
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<uint16_t>(sum);
}

inline Verdict verdict_of(const Bytes& frame, const Interface& interface, RxPacket& datagram,
                          HardwareChecks checks = {}) {
  return classify(frame, interface, kOwnMac, kPorts, checks, datagram);
}

inline Verdict verdict_of(const Bytes& frame, const Interface& interface) {
  RxPacket datagram;
  return verdict_of(frame, interface, datagram);
}

}  // namespace pbox::nic
