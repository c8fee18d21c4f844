// The keys of simulated sessions. Ciphers and their keys are the product's; what TLS would export
// is drawn from the number of the connection. Every key and packet number that seals a packet is
// noted: no pair may occur twice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_set>

#include "nic/crypto/session_keys.h"
#include "tests/sim/control_link.h"

namespace pbox::sim {

class SimKeys {
 public:
  explicit SimKeys(uint64_t seed) : seed_(seed) {}
  SimKeys(const SimKeys&) = delete;
  SimKeys& operator=(const SimKeys&) = delete;

  // The keys of a connection, at one of its ends.
  std::unique_ptr<seal::SessionKeys> of(ConnectionId connection, crypto::End end);
  // The same keys for somebody who only opens packets, as the end would.
  seal::SessionSeal mirror(ConnectionId connection, crypto::End end, const seal::SessionName& name,
                           const seal::SealSpec& spec);

 private:
  class OfConnection;
  class Witness;

  seal::SessionSeal make(ConnectionId connection, crypto::End end, const seal::SessionName& name,
                         const seal::SealSpec& spec, bool seals);

  uint64_t seed_;
  std::shared_ptr<crypto::SecretPages> pages_ = std::make_shared<crypto::SecretPages>();
  std::unordered_set<uint64_t> used_;  // keys with numbers that have sealed a packet
};

}  // namespace pbox::sim
