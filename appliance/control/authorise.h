// Which peer may send which message, where control connections have TLS: one table. Pure.
#pragma once

#include <span>

#include "base/result.h"
#include "nic/tls/identity.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

enum class Right : uint8_t {
  kNever,
  kPlain,    // always; with a report about ranks only a box that the cluster's store lists
  kOwnJob,   // for a job and, where the message names one, a rank of its keys; never as a box
  kJoined,   // once a JOIN has been accepted on this connection
  kListed,   // a box that the cluster's store lists
  kAsWorker  // as a worker of a job; for a replica a box that the cluster's store lists
};

// Facts about a peer besides its identity.
struct Standing {
  bool has_joined = false;  // the connection speaks for a member of a job
  bool is_listed = false;   // the cluster's store lists a box of its name
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
