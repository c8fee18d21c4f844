#include "nic/wire/queue_pair.h"

#include <algorithm>

namespace pbox::wire {
namespace {

constexpr uint32_t kTwentyFourBits = 1u << 24;
constexpr uint32_t kMtuMin = 256;
constexpr uint32_t kMtuMax = 4096;

Error refuse(const std::string& what) {
  return {ErrorCode::kInvalidArgument, "queue pair: " + what};
}

Result<LandingRing> parse_landing(const proto::LandingRing& message) {
  if (message.slots() < kLandingSlotsMin || message.slots() > kLandingSlotsMax) {
    return refuse("landing.slots is " + std::to_string(message.slots()) + ", not in [" +
                  std::to_string(kLandingSlotsMin) + ", " + std::to_string(kLandingSlotsMax) + "]");
  }
  if (message.slot_bytes() < limits::kPacketBytesMax) {
    return refuse("landing.slot_bytes is " + std::to_string(message.slot_bytes()) +
                  ", less than the largest packet, " + std::to_string(limits::kPacketBytesMax));
  }
  if (uint64_t{message.slots()} * message.slot_bytes() > UINT64_MAX - message.address()) {
    return refuse("landing.address and landing.slots describe memory beyond 2^64");
  }
  return LandingRing{message.address(), message.key(), message.slots(), message.slot_bytes()};
}

}  // namespace

Result<QueuePairAddress> parse_queue_pair(const proto::QueuePair& message) {
  QueuePairAddress address;
  if (message.gid().size() != address.gid.size()) {
    return refuse("gid has " + std::to_string(message.gid().size()) + " bytes instead of 16");
  }
  if (message.number() < 2 || message.number() >= kTwentyFourBits) {
    return refuse("number " + std::to_string(message.number()) + " is not in [2, 2^24)");
  }
  if (message.packet_sequence() >= kTwentyFourBits) {
    return refuse("packet_sequence " + std::to_string(message.packet_sequence()) +
                  " has more than 24 bits");
  }
  if (message.lid() > UINT16_MAX) {
    return refuse("lid " + std::to_string(message.lid()) + " has more than 16 bits");
  }
  const uint32_t mtu = message.mtu();
  if (mtu < kMtuMin || mtu > kMtuMax || (mtu & (mtu - 1)) != 0) {
    return refuse("mtu " + std::to_string(mtu) + " is none of 256, 512, 1024, 2048 and 4096");
  }
  std::copy(message.gid().begin(), message.gid().end(), address.gid.begin());
  address.number = message.number();
  address.packet_sequence = message.packet_sequence();
  address.lid = static_cast<uint16_t>(message.lid());
  address.mtu_bytes = mtu;
  address.landing_slots_wanted = message.landing_slots_wanted();
  if (message.has_landing()) {
    const auto landing = parse_landing(message.landing());
    if (!landing) return landing.error();
    address.landing = *landing;
  }
  return address;
}

void write_queue_pair(const QueuePairAddress& address, proto::QueuePair& message) {
  message.set_gid(address.gid.data(), address.gid.size());
  message.set_number(address.number);
  message.set_packet_sequence(address.packet_sequence);
  message.set_lid(address.lid);
  message.set_mtu(address.mtu_bytes);
  message.set_landing_slots_wanted(address.landing_slots_wanted);
  if (address.landing.slots == 0) return;
  proto::LandingRing& landing = *message.mutable_landing();
  landing.set_address(address.landing.address);
  landing.set_key(address.landing.key);
  landing.set_slots(address.landing.slots);
  landing.set_slot_bytes(address.landing.slot_bytes);
}

}  // namespace pbox::wire
