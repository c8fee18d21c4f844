// The keys of simulated sessions. The ciphers are the product's, and so is the derivation of keys.
// The secret that TLS would export is drawn from the number of the connection. Each pair of key and
// packet number that seals a packet is recorded, and none may occur twice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "nic/crypto/session_keys.h"
#include "tests/sim/control_link.h"
#include "tests/sim/number_set.h"

namespace pbox::sim {

// A second seal of one end of a session, for checks. It opens what that end opens.
class SealMirror {
 public:
  SealMirror() = default;  // without keys
  explicit SealMirror(seal::SessionSeal seal) : seal_(std::move(seal)) {}

  bool open(const wire::TagPolicy& policy, wire::Parsed& parsed, std::byte* room) {
    return seal_.open(policy, parsed, room);
  }
  // Forgets the keys before the present ones if `watched` has forgotten them.
  void follow(const seal::SessionSeal& watched) {
    while (seal_.opens_before() && !watched.opens_before()) seal_.tick(now_ns_ += kNanosPerSecond);
  }

 private:
  seal::SessionSeal seal_;
  uint64_t now_ns_ = 0;  // time of its ticks
};

class SimKeys {
 public:
  // Called with each session before its seals are made.
  using Watch = std::function<void(const seal::SessionName& name, const seal::SealSpec& spec)>;

  // `checks`: whether the packet numbers that seal packets are recorded.
  SimKeys(uint64_t seed, bool checks) : seed_(seed), checks_(checks) {}
  SimKeys(const SimKeys&) = delete;
  SimKeys& operator=(const SimKeys&) = delete;

  // Returns the keys of a connection at one of its ends.
  std::unique_ptr<seal::SessionKeys> of(ConnectionId connection, crypto::End end, Watch watch = {});
  // Returns the number of updates of sending keys in all sessions; 0 without checks.
  uint64_t updates() const { return updates_; }
  SealMirror mirror(ConnectionId connection, crypto::End end, const seal::SessionName& name,
                    const seal::SealSpec& spec);

 private:
  class OfConnection;
  class Witness;

  seal::SessionSeal make(ConnectionId connection, crypto::End end, const seal::SessionName& name,
                         const seal::SealSpec& spec, bool seals);

  uint64_t seed_;
  bool checks_;
  std::shared_ptr<crypto::SecretPages> pages_ = std::make_shared<crypto::SecretPages>();
  NumberSet used_;  // pairs of key and packet number that have sealed a packet
  uint64_t updates_ = 0;
};

}  // namespace pbox::sim
