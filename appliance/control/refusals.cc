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

Error excluded_for_good(const JobSpec& spec, uint32_t rank, const std::string& why) {
  PBOX_DCHECK(spec.excludes_for_good());
  return {ErrorCode::kWorkerLost,
          "rank " + std::to_string(rank) + " of " + spec.title() + " was lost" +
              (why.empty() ? "" : " (" + why + ")") + " and excluded; a job of sync.model " +
              to_string(spec.relaxed_model) +
              " keeps no clock of such a rank: start all ranks again, or let its process return "
              "before the lost time-out"};
}

}  // namespace pbox::control
