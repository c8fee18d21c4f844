#include <catch2/catch.hpp>

#include "nic/wire/queue_pair.h"

namespace pbox::wire {
namespace {

using Catch::Contains;

QueuePairAddress sound() {
  QueuePairAddress address;
  address.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1};
  address.number = 0xabcdef;
  address.packet_sequence = 0xffffff;
  address.lid = 0xffff;
  address.mtu_bytes = 4096;
  return address;
}

proto::QueuePair message_of(const QueuePairAddress& address) {
  proto::QueuePair message;
  write_queue_pair(address, message);
  return message;
}

}  // namespace

TEST_CASE("a queue pair's address survives encoding and decoding") {
  for (const uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u}) {
    QueuePairAddress address = sound();
    address.mtu_bytes = mtu;
    const auto read = parse_queue_pair(message_of(address));
    REQUIRE(read);
    CHECK(*read == address);
  }
}

TEST_CASE("landing slots that are asked for, granted or absent survive encoding and decoding") {
  QueuePairAddress address = sound();
  CHECK(!message_of(address).has_landing());
  address.landing_slots_wanted = 241;
  CHECK(*parse_queue_pair(message_of(address)) == address);
  address.landing = {.address = 0x7f00'1234'5678'0000,
                     .key = 0xfedc'ba98,
                     .slots = kLandingSlotsMax,
                     .slot_bytes = limits::kPacketBytesMax};
  CHECK(*parse_queue_pair(message_of(address)) == address);
}

TEST_CASE("an address that no device can have is refused with the name of the field") {
  const auto refusal = [](const auto& change) {
    proto::QueuePair message = message_of(sound());
    change(message);
    const auto read = parse_queue_pair(message);
    return read ? std::string("accepted") : read.error().message;
  };
  CHECK_THAT(refusal([](auto& m) { m.set_gid("short"); }), Contains("gid has 5 bytes"));
  CHECK_THAT(refusal([](auto& m) { m.clear_gid(); }), Contains("gid has 0 bytes"));
  CHECK_THAT(refusal([](auto& m) { m.set_number(0); }), Contains("number 0"));
  CHECK_THAT(refusal([](auto& m) { m.set_number(1); }), Contains("number 1 "));
  CHECK_THAT(refusal([](auto& m) { m.set_number(1u << 24); }), Contains("number 16777216"));
  CHECK_THAT(refusal([](auto& m) { m.set_packet_sequence(1u << 24); }),
             Contains("packet_sequence 16777216"));
  CHECK_THAT(refusal([](auto& m) { m.set_lid(65'536); }), Contains("lid 65536"));
  for (const uint32_t mtu : {0u, 128u, 255u, 1500u, 8192u}) {
    CHECK_THAT(refusal([&](auto& m) { m.set_mtu(mtu); }), Contains("mtu " + std::to_string(mtu)));
  }
  const auto ring = [](uint64_t address, uint32_t slots, uint32_t slot_bytes) {
    return [=](proto::QueuePair& message) {
      message.mutable_landing()->set_address(address);
      message.mutable_landing()->set_slots(slots);
      message.mutable_landing()->set_slot_bytes(slot_bytes);
    };
  };
  CHECK(refusal(ring(0, 2, limits::kPacketBytesMax)) == "accepted");
  for (const uint32_t slots : {0u, 1u, kLandingSlotsMax + 1, UINT32_MAX}) {
    CHECK_THAT(refusal(ring(0, slots, UINT32_MAX)),
               Contains("landing.slots is " + std::to_string(slots) + ","));
  }
  CHECK_THAT(refusal(ring(0, 2, limits::kPacketBytesMax - 1)), Contains("landing.slot_bytes is"));
  CHECK_THAT(refusal(ring(UINT64_MAX - 65'535, 2, limits::kPacketBytesMax)),
             Contains("memory beyond 2^64"));
}

}  // namespace pbox::wire
