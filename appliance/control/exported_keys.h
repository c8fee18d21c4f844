// Derives session keys from the secrets of TLS connections. Used on the control thread.
#pragma once

#include <memory>

#include "appliance/control/connection_keys.h"
#include "appliance/control/secret_source.h"
#include "nic/crypto/session_keys.h"

namespace pbox::control {

class ExportedKeys : public ConnectionKeys {
 public:
  explicit ExportedKeys(const KeyPolicy& policy) : policy_(policy) {}

  // Sets the source of the connections' secrets, which must outlive this object. Call it once,
  // before a session begins.
  void set_source(const SecretSource& source) { source_ = &source; }
  KeyPolicy policy() const override { return policy_; }
  // The pointer is valid until the next call.
  seal::SessionKeys* of(ConnectionId connection) override;

 private:
  KeyPolicy policy_;
  const SecretSource* source_ = nullptr;
  std::shared_ptr<crypto::SecretPages> pages_ = std::make_shared<crypto::SecretPages>();
  std::unique_ptr<seal::SessionKeys> at_hand_;
};

}  // namespace pbox::control
