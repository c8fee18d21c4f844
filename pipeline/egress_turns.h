// The order in which jobs send: tenants in turns, each in proportion to its weight, and the jobs of
// a tenant in turns among themselves (deficit round robin: Shreedhar and Varghese, SIGCOMM 1995).
// A tenant with many jobs gets no more than one with a single job. The pipeline's own core calls
// everything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {

class EgressTurns {
 public:
  // Bytes that a job may send before the next job of its tenant, and a tenant of weight 1 before
  // the next tenant. Two of the largest packets, so that every turn sends something.
  static constexpr int64_t kQuantumBytes = 2 * int64_t{limits::kPacketBytesMax};

  EgressTurns() { tenants_.reserve(limits::kShardsPerPipelineMax); }

  void add(JobShard& shard);
  // No effect if it was not added.
  void remove(JobShard& shard);

  // Fills a burst up to `limit`, from `filled` packets on, and returns the new number of packets.
  // `fill(shard, filled)` adds packets of the shard, within its `egress_deficit_bytes`, and returns
  // their new number. A turn that the limit has cut short goes on with the next burst.
  template <typename Fill>
  size_t fill_burst(size_t filled, size_t limit, const Fill& fill) {
    size_t idle_tenants = 0;
    while (filled < limit && idle_tenants < tenants_.size()) {
      PBOX_DCHECK(next_tenant_ < tenants_.size());
      Tenant& tenant = tenants_[next_tenant_];
      const size_t before = filled;
      filled = fill_turn(tenant, filled, limit, fill);
      idle_tenants = filled == before ? idle_tenants + 1 : 0;
      const bool has_more_of_turn = filled == limit && tenant.deficit_bytes > 0;
      if (!has_more_of_turn) next_tenant_ = (next_tenant_ + 1) % tenants_.size();
    }
    return filled;
  }

 private:
  struct Tenant {
    std::string_view name;  // lies in the first shard's name
    std::vector<JobShard*> shards;
    size_t next = 0;            // the shard whose turn it is
    int64_t deficit_bytes = 0;  // bytes left in this turn
  };

  template <typename Fill>
  static size_t fill_turn(Tenant& tenant, size_t filled, size_t limit, const Fill& fill) {
    PBOX_DCHECK(!tenant.shards.empty());
    PBOX_DCHECK(tenant.shards.front()->weight > 0);
    if (tenant.deficit_bytes <= 0) {
      tenant.deficit_bytes += kQuantumBytes * int64_t{tenant.shards.front()->weight};
    }
    size_t idle_shards = 0;
    while (filled < limit && tenant.deficit_bytes > 0) {
      PBOX_DCHECK(tenant.next < tenant.shards.size());
      JobShard& shard = *tenant.shards[tenant.next];
      if (shard.egress_deficit_bytes <= 0) shard.egress_deficit_bytes += kQuantumBytes;
      const int64_t budget_bytes = shard.egress_deficit_bytes;
      const size_t before = filled;
      filled = fill(shard, filled);
      PBOX_DCHECK(before <= filled && filled <= limit);
      tenant.deficit_bytes -= budget_bytes - shard.egress_deficit_bytes;
      idle_shards = filled == before ? idle_shards + 1 : 0;
      if (filled == before) shard.egress_deficit_bytes = 0;
      if (filled == limit && shard.egress_deficit_bytes > 0) break;
      tenant.next = (tenant.next + 1) % tenant.shards.size();
      if (idle_shards == tenant.shards.size()) {
        tenant.deficit_bytes = 0;  // no job of the tenant has anything to send
        break;
      }
    }
    return filled;
  }

  std::vector<Tenant> tenants_;
  size_t next_tenant_ = 0;
};

}  // namespace pbox::pipeline
