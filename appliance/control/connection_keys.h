// The keys of sessions, by the control connection that they belong to. Control thread.
#pragma once

#include "appliance/control/roster.h"
#include "nic/seal/session_keys.h"

namespace pbox::control {

// The same for all sessions of a box.
struct KeyPolicy {
  seal::Suite suite = seal::Suite::kGmac256;
  seal::KeyUpdates updates = {};
};

class ConnectionKeys {
 public:
  virtual ~ConnectionKeys() = default;
  virtual KeyPolicy policy() const = 0;
  // Null if the connection is not open any more. Valid until the next call.
  virtual seal::SessionKeys* of(ConnectionId connection) = 0;
};

}  // namespace pbox::control
