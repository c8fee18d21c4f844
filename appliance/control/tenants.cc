#include "appliance/control/tenants.h"

#include "appliance/control/capacity.h"
#include "appliance/control/control_connections.h"
#include "appliance/control/job_table.h"
#include "nic/wire/tenant.h"

namespace pbox::control {

const TenantBounds& TenantPolicy::of(std::string_view tenant) const {
  static const TenantBounds unbounded;
  auto found = listed_.find(tenant);
  if (found == listed_.end()) found = listed_.find("*");
  return found == listed_.end() ? unbounded : found->second;
}

TenantUses tenant_uses(const JobTable& jobs) {
  TenantUses uses;
  const std::string* newest = nullptr;  // parts of one job follow each other
  for (const auto& [part, job] : jobs) {
    TenantUse& use = uses[std::string(wire::tenant_of(part.first))];
    if (!job->spec().is_backup && (newest == nullptr || *newest != part.first)) {
      newest = &part.first;
      ++use.jobs;
    }
    use.sessions += static_cast<uint32_t>(job->members().size() * job->shards().pipelines().size());
    use.memory_bytes += memory_of(*job);
  }
  return uses;
}

uint64_t memory_in(const TenantUses& uses, std::optional<std::string_view> tenant) {
  uint64_t bytes = 0;
  for (const auto& [name, use] : uses) bytes += !tenant || name == *tenant ? use.memory_bytes : 0;
  return bytes;
}

std::optional<std::string_view> tenant_of(const Connection& connection) {
  if (connection.identity) {
    if (connection.identity->role != tls::Role::kTenant) return std::nullopt;
    return connection.identity->tenant;
  }
  if (connection.job == nullptr) return std::nullopt;
  return wire::tenant_of(connection.job->spec().name);
}

Status check_connections(std::string_view tenant, const TenantPolicy& policy,
                         const ControlConnections& connections, uint32_t more) {
  const uint32_t bound = policy.of(tenant).connections;
  if (bound == 0) return ok_status();
  uint32_t count = more;
  for (const auto& [id, connection] : connections) {
    if (tenant_of(connection) == tenant) ++count;
  }
  return check_bound(tenant, "control connections", "connections", bound, count - 1, 1);
}

Status check_bound(std::string_view tenant, const char* what, const char* key, uint64_t bound,
                   uint64_t held, uint64_t wanted) {
  if (bound == 0 || (held <= bound && wanted <= bound - held)) return ok_status();
  const std::string who =
      tenant.empty() ? "jobs without a tenant have" : "tenant " + std::string(tenant) + " has";
  return Error{ErrorCode::kResourceExhausted,
               who + " " + std::to_string(held) + " of the " + std::to_string(bound) + " " + what +
                   " that the box allows, and this needs " + std::to_string(wanted) +
                   " more; end other jobs of the tenant, or raise " + key +
                   "= in the box's [jobs] tenants"};
}

}  // namespace pbox::control
