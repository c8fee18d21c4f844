// Which peer may send which message, where control connections have TLS: one table. Pure.
#pragma once

#include <span>

#include "base/result.h"
#include "nic/tls/identity.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

enum class Right : uint8_t {
  kNever,
  kAlways,
  kOwnJob,  // for a job and, where the message names one, a rank of its keys; never as a box
  kJoined   // once a JOIN has been accepted on this connection
};

struct MessageRights {
  proto::WorkerMessage::KindCase kind;  // KIND_NOT_SET: a kind of a newer release
  const char* name;
  Right box, tenant, operating, viewing;  // by tls::Role
};

// The table, in the order of control.proto.
std::span<const MessageRights> message_rights();

// Returns an error that names the identity, the message and the remedy if the peer may not send
// it. `has_joined`: the connection speaks for a member of a job.
Status authorise(const tls::Identity& peer, const proto::WorkerMessage& message, bool has_joined);

}  // namespace pbox::control
