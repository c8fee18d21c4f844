// How a box shares itself out among tenants ([jobs] tenants): the bounds, the weight and the use of
// each. A job counts towards the tenant that its name begins with, TENANT/NAME; with keys only that
// tenant can have sent it. Used on the control thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pbox::control {

class ControlConnections;
class JobTable;
struct Connection;

// A bound of 0 means that there is none.
struct TenantBounds {
  uint32_t weight = 1;  // share of turns and buffers while others want them
  uint32_t jobs = 0;
  uint32_t sessions = 0;  // one for each rank, part and pipeline
  uint32_t connections = 0;
  uint64_t memory_bytes = 0;
  bool operator==(const TenantBounds&) const = default;
};

class TenantPolicy {
 public:
  // Each tenant that is not listed has the bounds of "*".
  void set(const std::string& tenant, const TenantBounds& bounds) { listed_[tenant] = bounds; }
  const TenantBounds& of(std::string_view tenant) const;

 private:
  std::map<std::string, TenantBounds, std::less<>> listed_;
};

struct TenantUse {
  uint32_t jobs = 0;  // as job_slots_taken() counts them
  uint32_t sessions = 0;
  uint32_t connections = 0;
  uint64_t memory_bytes = 0;  // jobs, kept states, and cuts that snapshots write
  bool operator==(const TenantUse&) const = default;
};

using TenantUses = std::map<std::string, TenantUse, std::less<>>;  // by name of the tenant

// Returns what each tenant that has a job here uses. Connections, kept states and cuts are not
// included.
TenantUses tenant_uses(const JobTable& jobs);

// Returns the memory of all tenants together, or of one of them, in bytes.
uint64_t memory_in(const TenantUses& uses, std::optional<std::string_view> tenant);

// Returns the tenant whose keys the connection's peer has; without keys, that of the job that it
// has joined. Nothing if there is none: a box, an operator, or a peer that has not joined yet.
std::optional<std::string_view> tenant_of(const Connection& connection);
// Returns an error if the tenant would exceed its bound of connections. `more`: number of
// connections that it is about to have beside those that count already.
Status check_connections(std::string_view tenant, const TenantPolicy& policy,
                         const ControlConnections& connections, uint32_t more);

// Returns kResourceExhausted, with the tenant, the bound and the remedy, if `held` and `wanted`
// together exceed the bound. `what`: "bytes of memory"; `key`: as in [jobs] tenants.
Status check_bound(std::string_view tenant, const char* what, const char* key, uint64_t bound,
                   uint64_t held, uint64_t wanted);

}  // namespace pbox::control
