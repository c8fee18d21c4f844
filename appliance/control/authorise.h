// One table states which peer may send which message if control connections have TLS. All functions
// are pure.
#pragma once

#include <span>

#include "base/result.h"
#include "nic/tls/identity.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

enum class Right : uint8_t {
  kNever,
  kPlain,    // always; a report about ranks, only if the cluster's store lists the box
  kOwnJob,   // if the peer's keys cover the job and any rank that is named; never for a replica
  kJoined,   // once a JOIN has been accepted on this connection
  kListed,   // if the peer is a box that the cluster's store lists
  kAsWorker  // always; for a replica, only if the cluster's store lists the box
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
