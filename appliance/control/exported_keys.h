// Session keys from the secrets of TLS connections. Control thread.
#pragma once

#include <memory>

#include "appliance/control/connection_keys.h"
#include "appliance/control/secret_source.h"
#include "nic/crypto/session_keys.h"

namespace pbox::control {

class ExportedKeys : public ConnectionKeys {
 public:
  explicit ExportedKeys(const KeyPolicy& policy) : policy_(policy) {}

  // The connections' secrets come from `source`, which outlives this object. Call it once, before a
  // session begins.
  void set_source(const SecretSource& source) { source_ = &source; }
  KeyPolicy policy() const override { return policy_; }
  // Valid until the next call.
  seal::SessionKeys* of(ConnectionId connection) override;

 private:
  KeyPolicy policy_;
  const SecretSource* source_ = nullptr;
  std::shared_ptr<crypto::SecretPages> pages_ = std::make_shared<crypto::SecretPages>();
  std::unique_ptr<seal::SessionKeys> at_hand_;
};

}  // namespace pbox::control
