// Offsets and values of the fields of a frame: Ethernet II and 802.1Q, ARP (RFC 826), IPv4 (RFC
// 791), IPv6 (RFC 8200), UDP (RFC 768), ICMP (RFC 792), ICMPv6 (RFC 4443) and neighbour discovery
// (RFC 4861). Offsets count from the start of the named header.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pbox::nic {

static_assert(std::endian::native == std::endian::little, "load and store swap bytes");

// Read and write big-endian fields at any alignment.
inline uint16_t load16(const void* at) {
  uint16_t value;
  std::memcpy(&value, at, sizeof(value));
  return __builtin_bswap16(value);
}
inline uint32_t load32(const void* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return __builtin_bswap32(value);
}
inline uint64_t load64(const void* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof(value));
  return __builtin_bswap64(value);
}
inline void store16(void* at, uint16_t value) {
  value = __builtin_bswap16(value);
  std::memcpy(at, &value, sizeof(value));
}
inline void store32(void* at, uint32_t value) {
  value = __builtin_bswap32(value);
  std::memcpy(at, &value, sizeof(value));
}

namespace ethernet {
inline constexpr size_t kBytes = 14;
inline constexpr size_t kTagBytes = 4;        // length of an 802.1Q tag, between source and type
inline constexpr size_t kFrameBytesMin = 60;  // without check sequence; shorter frames are padded
inline constexpr size_t kDestination = 0;
inline constexpr size_t kSource = 6;
inline constexpr size_t kType = 12;
inline constexpr uint16_t kTypeIpv4 = 0x0800;
inline constexpr uint16_t kTypeArp = 0x0806;
inline constexpr uint16_t kTypeTag = 0x8100;
inline constexpr uint16_t kTypeProviderTag = 0x88a8;
inline constexpr uint16_t kTypeIpv6 = 0x86dd;
inline constexpr uint16_t kVlanMask = 0x0fff;
}  // namespace ethernet

namespace arp {
inline constexpr size_t kBytes = 28;
inline constexpr uint64_t kPrefix =
    0x0001'0800'0604;  // Ethernet with 6-byte, IPv4 with 4-byte addresses
inline constexpr size_t kOperation = 6;
inline constexpr size_t kSenderMac = 8;
inline constexpr size_t kSenderIp = 14;
inline constexpr size_t kTargetMac = 18;
inline constexpr size_t kTargetIp = 24;
inline constexpr uint16_t kRequest = 1;
inline constexpr uint16_t kReply = 2;
}  // namespace arp

namespace ipv4 {
inline constexpr size_t kBytes = 20;
inline constexpr size_t kTotalLength = 2;
inline constexpr size_t kFragment = 6;
inline constexpr size_t kTimeToLive = 8;
inline constexpr size_t kProtocol = 9;
inline constexpr size_t kChecksum = 10;
inline constexpr size_t kSource = 12;
inline constexpr size_t kDestination = 16;
inline constexpr std::byte kVersionAndLength{0x45};  // no options
inline constexpr uint16_t kReservedFlag = 0x8000;
inline constexpr uint16_t kDontFragment = 0x4000;
inline constexpr uint8_t kHops = 64;
inline constexpr uint32_t kMtuMin = 576;  // every host accepts packets of this size (RFC 1122)
}  // namespace ipv4

namespace ipv6 {
inline constexpr size_t kBytes = 40;
inline constexpr size_t kPayloadLength = 4;
inline constexpr size_t kNextHeader = 6;
inline constexpr size_t kHopLimit = 7;
inline constexpr size_t kSource = 8;
inline constexpr size_t kDestination = 24;
inline constexpr uint8_t kHops = 64;
inline constexpr uint32_t kMtuMin = 1280;
inline constexpr std::byte kHopsOnLink{255};  // proves that no router forwarded the packet
}  // namespace ipv6

namespace protocol {
inline constexpr std::byte kIcmp{1};
inline constexpr std::byte kUdp{17};
inline constexpr std::byte kIpv6Fragment{44};
inline constexpr std::byte kIcmpv6{58};
}  // namespace protocol

namespace udp {
inline constexpr size_t kBytes = 8;
inline constexpr size_t kSourcePort = 0;
inline constexpr size_t kDestinationPort = 2;
inline constexpr size_t kLength = 4;
inline constexpr size_t kChecksum = 6;
}  // namespace udp

// ICMP and ICMPv6 begin with the same fields: type, code, checksum, and four type-specific bytes.
namespace icmp {
inline constexpr size_t kBytes = 8;
inline constexpr size_t kType = 0;
inline constexpr size_t kCode = 1;
inline constexpr size_t kChecksum = 2;
inline constexpr std::byte kEchoReply{0};
inline constexpr std::byte kUnreachable{3};
inline constexpr std::byte kFragmentationNeeded{4};  // a code of kUnreachable
inline constexpr std::byte kEchoRequest{8};
inline constexpr size_t kMtu = 6;  // 16 bits
}  // namespace icmp

namespace icmpv6 {
inline constexpr std::byte kPacketTooBig{2};
inline constexpr std::byte kEchoRequest{128};
inline constexpr std::byte kEchoReply{129};
inline constexpr std::byte kNeighbourSolicitation{135};
inline constexpr std::byte kNeighbourAdvertisement{136};
inline constexpr size_t kMtu = 4;  // 32 bits
// Solicitation and advertisement: flags, target, then options, each (type, length / 8, data).
inline constexpr size_t kFlags = 4;
inline constexpr size_t kTarget = 8;
inline constexpr size_t kOptions = 24;
inline constexpr size_t kLinkLayerOptionBytes = 8;
inline constexpr std::byte kOptionSourceLinkLayer{1};
inline constexpr std::byte kOptionTargetLinkLayer{2};
inline constexpr std::byte kFlagSolicited{0x40};
inline constexpr std::byte kFlagOverride{0x20};
}  // namespace icmpv6

}  // namespace pbox::nic
