// Which peer may send which message, where control connections have TLS: one table. Pure.
#pragma once

#include <span>

#include "base/result.h"
#include "nic/tls/identity.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

enum class Right : uint8_t {
  kNever,
  kPlain,    // always; but a report about ranks only from a box that the cluster's store lists
  kOwnJob,   // if its keys cover the job and any rank that the message names; never for a replica
  kJoined,   // once a JOIN has been accepted on this connection
  kListed,   // a box that the cluster's store lists
  kAsWorker  // always; but for a replica only a box that the cluster's store lists
};

// Facts about a peer besides its identity.
struct Standing {
  bool has_joined = false;  // the connection speaks for a member of a job
  bool is_listed = false;   // the cluster's store lists a box with the peer's name
};

struct MessageRights {
  proto::WorkerMessage::KindCase kind;  // KIND_NOT_SET: a kind of a newer release
  const char* name;
  Right box, tenant, operating, viewing;  // by tls::Role
};

// The table, in the order of control.proto.
std::span<const MessageRights> message_rights();

// Returns an error that names the identity, the message and the remedy if the peer may not send it.
Status authorise(const tls::Identity& peer, const proto::WorkerMessage& message,
                 const Standing& standing);

}  // namespace pbox::control
