// The keys of simulated sessions. Ciphers and their keys are the product's; what TLS would export
// is drawn from the number of the connection. Every key and packet number that seals a packet is
// noted: no pair may occur twice.
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

// A second seal of one end of a session, for somebody who watches: it opens what that end opens.
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
  // Told of each session before its seals are made.
  using Watch = std::function<void(const seal::SessionName& name, const seal::SealSpec& spec)>;

  // `checks`: whether the numbers that seal packets are noted.
  SimKeys(uint64_t seed, bool checks) : seed_(seed), checks_(checks) {}
  SimKeys(const SimKeys&) = delete;
  SimKeys& operator=(const SimKeys&) = delete;

  // The keys of a connection, at one of its ends.
  std::unique_ptr<seal::SessionKeys> of(ConnectionId connection, crypto::End end, Watch watch = {});
  // Updates of sending keys so far, of all sessions; not counted without checks.
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
  NumberSet used_;  // keys with numbers that have sealed a packet
  uint64_t updates_ = 0;
};

}  // namespace pbox::sim
