#include "pipeline/egress_turns.h"

#include <algorithm>

#include "nic/wire/tenant.h"

namespace pbox::pipeline {
namespace {

// Returns the element of this name; appends one if there is none.
template <typename Named>
Named& find_or_add(std::vector<Named>& list, std::string_view name) {
  const auto same =
      std::find_if(list.begin(), list.end(), [&](const Named& one) { return one.name == name; });
  if (same != list.end()) return *same;
  Named& added = list.emplace_back();
  added.name = name;
  return added;
}

}  // namespace

void EgressTurns::add(JobShard& shard) {
  PBOX_CHECK(shard.weight > 0);
  auto& tenant = find_or_add(tenants_, wire::tenant_of(shard.name));
  find_or_add(tenant.jobs, shard.name).shards.push_back(&shard);
  PBOX_DCHECK(tenant.jobs.size() <= limits::kShardsPerPipelineMax);
  shard.egress.number_from(&next_sequence_);
}

void EgressTurns::remove(JobShard& shard) {
  for (auto tenant = tenants_.begin(); tenant != tenants_.end(); ++tenant) {
    if (!remove(*tenant, shard)) continue;
    shard.egress.number_from(nullptr);
    next_tenant_ = 0;
    if (tenant->jobs.empty()) {
      tenants_.erase(tenant);
    } else {
      tenant->name = wire::tenant_of(tenant->jobs.front().name);
    }
    return;
  }
}

bool EgressTurns::remove(Tenant& tenant, const JobShard& shard) {
  for (auto job = tenant.jobs.begin(); job != tenant.jobs.end(); ++job) {
    if (std::erase(job->shards, &shard) == 0) continue;
    PBOX_DCHECK(tenant.next < tenant.jobs.size());
    tenant.next = 0;
    if (job->shards.empty()) {
      tenant.jobs.erase(job);
    } else {
      job->name = job->shards.front()->name;
    }
    return true;
  }
  return false;
}

}  // namespace pbox::pipeline
