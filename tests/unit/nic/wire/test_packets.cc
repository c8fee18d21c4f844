#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "nic/wire/header.h"
#include "nic/wire/tag.h"
#include "tests/golden/packets.h"

namespace pbox::wire {
namespace {

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t at = 0; at < hex.size(); at += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

void check_fields(const Header& actual, const Header& expected) {
  CHECK(actual.version_type == expected.version_type);
  CHECK(actual.flags == expected.flags);
  CHECK(actual.payload_bytes == expected.payload_bytes);
  CHECK(actual.spi == expected.spi);
  CHECK(actual.packet_number == expected.packet_number);
  CHECK(actual.epoch == expected.epoch);
  CHECK(actual.chunk == expected.chunk);
  CHECK(actual.round == expected.round);
  CHECK(actual.fragment == expected.fragment);
  CHECK(actual.credit == expected.credit);
  CHECK(actual.timestamp_us == expected.timestamp_us);
  CHECK(actual.dtype_scale == expected.dtype_scale);
  CHECK(actual.generation == expected.generation);
}

}  // namespace

TEST_CASE(
    "each golden packet is accepted, or rejected for the expected reason, and all its fields are "
    "read") {
  for (const auto& golden : golden::kPackets) {
    INFO(golden.description);
    // A heap block of exactly the packet's size: the address sanitizer detects reads beyond it.
    const auto packet = bytes_of(golden.hex);
    Parsed parsed;
    Reject reject = parse(packet.data(), static_cast<uint32_t>(packet.size()), parsed);
    if (reject == Reject::kNone && !verify_tag({golden.payload_crc}, parsed)) reject = Reject::kTag;
    CHECK(static_cast<int>(reject) == static_cast<int>(golden.reject));
    if (golden.reject == Reject::kTooShort) continue;
    check_fields(parsed.header, golden.header);
    if (golden.reject != Reject::kNone) continue;
    CHECK(parsed.payload == packet.data() + limits::kHeaderBytes);
  }
}

TEST_CASE("a golden packet is written byte for byte from its fields and payload") {
  size_t written = 0;
  for (const auto& golden : golden::kPackets) {
    const auto packet = bytes_of(golden.hex);
    // These are damaged on purpose, so writing the fields does not reproduce them.
    if (golden.reject != Reject::kNone || std::strstr(golden.description, "flipped")) continue;
    INFO(golden.description);
    std::vector<std::byte> made(packet.size());
    const std::byte* payload = packet.data() + limits::kHeaderBytes;
    std::memcpy(made.data(), &golden.header, sizeof(Header));
    std::memcpy(made.data() + sizeof(Header), payload, golden.header.payload_bytes);
    const Tag tag = make_tag({golden.payload_crc}, golden.header, payload);
    std::memcpy(made.data() + sizeof(Header) + golden.header.payload_bytes, tag.data(), tag.size());
    CHECK(made == packet);
    ++written;
  }
  CHECK(written >= kPacketTypeCount);
}

TEST_CASE("a header states its own version and the type it was given") {
  for (uint8_t value = 0; value < kPacketTypeCount; ++value) {
    Header header;
    header.set_type(static_cast<PacketType>(value));
    CHECK(header.version() == limits::kWireVersion);
    CHECK(header.type_value() == value);
  }
}

TEST_CASE("with payload_crc every single flipped bit of header, payload or tag is detected") {
  const auto packet = bytes_of(golden::kPackets[0].hex);
  for (size_t bit = 0; bit < packet.size() * 8; ++bit) {
    auto flipped = packet;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    Parsed parsed;
    const auto reject = parse(flipped.data(), static_cast<uint32_t>(flipped.size()), parsed);
    INFO("bit " << bit);
    CHECK((reject != Reject::kNone || !verify_tag({true}, parsed)));
  }
}

}  // namespace pbox::wire
