// Forges packets: copies of packets that have arrived, and packets that an attacker without keys
// can make of them. None of them is both authentic and new, so none may be accepted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tests/sim/network.h"

namespace pbox::sim {

// X(identifier, name)
#define PBOX_SIM_FORGERIES(X)                                                              \
  X(kReplay, "replay")                  /* an arrived packet again, from any generation */ \
  X(kFlip, "bit_flip")                  /* one bit of it is changed */                     \
  X(kTruncation, "truncation")          /* its end is missing */                           \
  X(kSplice, "splice")                  /* a header before another packet's payload */     \
  X(kForeignSession, "foreign_session") /* a packet of another session, or with its spi */ \
  X(kOtherNumber, "other_number")       /* with another packet number, near or far */      \
  X(kOtherPhase, "other_phase")         /* as if it were of another generation of keys */  \
  X(kReflection, "reflection")          /* the receiver's own packet, sent back */         \
  X(kChecksum, "checksum")              /* with the checksum of a session without keys */  \
  X(kNoise, "noise")                    /* a plausible header before random bytes */

enum class Forgery : size_t {
#define PBOX_SIM_FORGERY_ENUM(identifier, name) identifier,
  PBOX_SIM_FORGERIES(PBOX_SIM_FORGERY_ENUM)
#undef PBOX_SIM_FORGERY_ENUM
      kCount
};

inline constexpr const char* kForgeryNames[] = {
#define PBOX_SIM_FORGERY_NAME(identifier, name) name,
    PBOX_SIM_FORGERIES(PBOX_SIM_FORGERY_NAME)
#undef PBOX_SIM_FORGERY_NAME
};

using ForgeryCounts = std::array<uint64_t, static_cast<size_t>(Forgery::kCount)>;

class Forger {
 public:
  explicit Forger(uint64_t seed) : rng_(seed ^ 0x666f72676572ull) {}

  // Called when the packet has arrived at packet.to. It is whole, no copy of it has arrived there
  // before, and its receiver handles it before the next call of burst().
  void overhear(const Packet& packet);

  // Returns forgeries for the port `to`, valid until the next call; none until a packet has arrived
  // there.
  std::span<const nic::RxPacket> burst(const nic::Endpoint& to);

  const ForgeryCounts& counts() const { return counts_; }

 private:
  using Arrived = std::vector<Packet>;

  const Packet& any(const Arrived& arrived) { return arrived[rng_.below(arrived.size())]; }
  const Packet& elsewhere() { return any(*places_[rng_.below(places_.size())]); }
  Forgery draw_kind();
  // Makes a forgery of an arrived packet in `bytes`, which holds a copy of it.
  void alter(Forgery kind, std::vector<std::byte>& bytes);
  void alter_header(Forgery kind, wire::Header& header);
  void splice(std::vector<std::byte>& bytes);
  void flip(std::vector<std::byte>& bytes);

  Rng rng_;
  std::map<std::pair<HostId, uint16_t>, Arrived> arrived_;
  std::vector<const Arrived*> places_;  // values of arrived_
  std::array<std::vector<std::byte>, limits::kBurstPackets> rooms_;
  std::array<nic::RxPacket, limits::kBurstPackets> burst_;
  ForgeryCounts counts_{};
};

}  // namespace pbox::sim
