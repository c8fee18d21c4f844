// The keys of sessions, by the control connection that they belong to. Used on the control thread.
#pragma once

#include "appliance/control/roster.h"
#include "nic/seal/session_keys.h"

namespace pbox::control {

// The settings of the keys, which are the same for all sessions of a box.
struct KeyPolicy {
  seal::Suite suite = seal::Suite::kGmac256;
  seal::KeyUpdates updates = {};
};

class ConnectionKeys {
 public:
  virtual ~ConnectionKeys() = default;
  virtual KeyPolicy policy() const = 0;
  // Returns null if `connection` is 0. For a connection that has ended it returns null, or keys
  // whose make() returns kUnavailable. The pointer is valid until the next call.
  virtual seal::SessionKeys* of(ConnectionId connection) = 0;
};

}  // namespace pbox::control
