// A burst of packets whose tags are verified, and different ways to use Intel's ipsec-mb for that.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/numa_arena.h"
#include "nic/crypto/keys.h"
#include "nic/wire/tag.h"

namespace pbox::perf {

// Packets of a few sessions, in turns, as a pipeline receives them. The constructor neither
// encrypts them nor sets their tags: the caller seals them.
struct Burst {
  static constexpr size_t kPackets = 32;
  static constexpr size_t kSessions = 4;

  struct Packet {
    wire::HeaderWords header{};
    std::byte* payload = nullptr;  // a copy of the header follows, for calls that need one piece
    std::byte* room = nullptr;     // room for the decrypted payload
    wire::Tag tag{};
    size_t session = 0;
  };

  Burst(crypto::Suite suite, size_t payload_bytes);
  // Returns the payload and the header behind it.
  static std::span<const std::byte> message(const Packet& packet, size_t payload_bytes) {
    return {packet.payload, payload_bytes + sizeof(packet.header)};
  }

  crypto::Suite suite;
  size_t payload_bytes;
  std::array<crypto::Keys, kSessions> keys;
  std::vector<Packet> packets;
  NumaArena memory;
};

// The ways to use ipsec-mb. Each computes the tags of all packets of a burst, and with GCM decrypts
// them.
class IpsecMbWays {
 public:
  virtual ~IpsecMbWays() = default;
  // Makes direct calls for one packet after the other, as nic/crypto does. Sets the tags.
  virtual void call() = 0;
  // Uses the job manager, one packet per call. Returns whether all tags are those of the packets.
  virtual bool submit_jobs() = 0;
  // Uses the job manager, all packets in one call. Returns whether all tags are those of the
  // packets.
  virtual bool submit_burst() = 0;
};

// Returns null where nic/crypto does not use ipsec-mb. `burst` must outlive the ways.
std::unique_ptr<IpsecMbWays> make_ipsec_mb_ways(Burst& burst);

}  // namespace pbox::perf
