// The seals of both ends of a session, and packets between them.
#pragma once

#include <catch2/catch.hpp>
#include <vector>

#include "nic/crypto/session_keys.h"
#include "tests/support/packet_bytes.h"

namespace pbox::test {

struct SealPairOptions {
  crypto::Suite suite = crypto::Suite::kGmac256;
  uint32_t pipeline = 3;
  uint32_t spi = 0x81020304;
  uint8_t secret = 0;  // the exported secret is the bytes that begin with this one
  seal::KeyUpdates updates = {};
  crypto::Library library = crypto::Library::kFastest;
};

inline seal::SessionSeal make_seal(const SealPairOptions& options, crypto::End end,
                                   const std::shared_ptr<crypto::SecretPages>& pages) {
  const auto exporter = [&](std::span<const std::byte>, crypto::TrafficSecret& secret) {
    for (size_t index = 0; index < secret.bytes.size(); ++index) {
      secret.bytes[index] = std::byte(options.secret + index);
    }
    return true;
  };
  auto made =
      crypto::make_session_keys(end, exporter, pages, options.library)
          ->make({.suite = options.suite}, {options.pipeline, options.spi, options.updates});
  REQUIRE(made);
  return std::move(*made);
}

class SealPair {
 public:
  explicit SealPair(const SealPairOptions& options = {})
      : worker(make_seal(options, crypto::End::kWorker, pages)),
        box(make_seal(options, crypto::End::kBox, pages)) {}

  std::shared_ptr<crypto::SecretPages> pages = std::make_shared<crypto::SecretPages>();
  seal::SessionSeal worker, box;
};

// Returns the packet's bytes on the wire. `header` lacks only the packet number and the key flags.
inline std::vector<std::byte> sealed_bytes(seal::SessionSeal& seal, wire::Header header,
                                           std::span<const std::byte> payload) {
  header.payload_bytes = static_cast<uint16_t>(payload.size());
  std::vector<std::byte> room(limits::kFragmentBytesMax);
  nic::TxPacket packet;
  packet.header = header;
  packet.payload = payload.data();
  seal.seal({}, packet, room.data());
  return packet_bytes(packet);
}

// Returns whether the packet opens. `payload` gets what it carries.
inline bool opens(seal::SessionSeal& seal, std::span<const std::byte> bytes,
                  std::vector<std::byte>* payload = nullptr) {
  wire::Parsed parsed;
  if (wire::parse(bytes.data(), static_cast<uint32_t>(bytes.size()), parsed) !=
      wire::Reject::kNone) {
    return false;
  }
  std::vector<std::byte> room(limits::kFragmentBytesMax);
  if (!seal.open({}, parsed, room.data())) return false;
  if (payload != nullptr)
    payload->assign(parsed.payload, parsed.payload + parsed.header.payload_bytes);
  return true;
}

}  // namespace pbox::test
