#include "appliance/control/refusals.h"

namespace pbox::control {

void refuse_join(RegistryContext& context, ConnectionId id, const Connection& peer,
                 const Error& why, const proto::Join* join) {
  constexpr auto kRefused = audit::Kind::kJoinRefused;
  ++context.totals.joins_refused;
  context.note(RegistryEvent::Severity::kWarning, "join_refused", peer.peer + ": " + why.message);
  context.audit(join != nullptr ? join_record(kRefused, *join, why.message)
                                : audit::Record{.kind = kRefused, .reason = why.message},
                &peer);
  context.connections.refuse(id, why);
}

}  // namespace pbox::control
