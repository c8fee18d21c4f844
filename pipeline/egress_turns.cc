#include "pipeline/egress_turns.h"

#include <algorithm>

#include "nic/wire/tenant.h"

namespace pbox::pipeline {

void EgressTurns::add(JobShard& shard) {
  PBOX_CHECK(shard.weight > 0);
  const std::string_view name = wire::tenant_of(shard.name);
  const auto same = std::find_if(tenants_.begin(), tenants_.end(),
                                 [&](const Tenant& tenant) { return tenant.name == name; });
  if (same != tenants_.end()) {
    same->shards.push_back(&shard);
  } else {
    tenants_.push_back({.name = name, .shards = {&shard}});
  }
}

void EgressTurns::remove(JobShard& shard) {
  for (auto tenant = tenants_.begin(); tenant != tenants_.end(); ++tenant) {
    if (std::erase(tenant->shards, &shard) == 0) continue;
    tenant->next = 0;
    next_tenant_ = 0;
    if (tenant->shards.empty()) {
      tenants_.erase(tenant);
    } else {
      tenant->name = wire::tenant_of(tenant->shards.front()->name);
    }
    return;
  }
}

}  // namespace pbox::pipeline
