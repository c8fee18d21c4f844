// The order in which jobs send. Tenants take turns in proportion to their weights, and the jobs of
// a tenant take turns among themselves (deficit round robin: Shreedhar and Varghese, SIGCOMM 1995).
// A tenant with many jobs gets no more than one with a single job, and a job with many parts no
// more than one with a single part. The pipeline's own core calls everything here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {

// The shards of one job, which are its parts on this pipeline.
struct EgressJob {
  std::string_view name;  // points into the first shard's name
  std::vector<JobShard*> shards;
  int64_t deficit_bytes = 0;  // bytes left in this turn
};

// The room for packets in a burst and in the turn of a job.
struct EgressRoom {
  size_t filled = 0;  // packets in the burst
  size_t limit = 0;   // bound on `filled`
  int64_t bytes = 0;  // left in the turn; the last packet may exceed it

  bool is_used_up() const { return filled == limit || bytes <= 0; }
  void take(uint32_t payload_bytes) {
    PBOX_DCHECK(!is_used_up());
    ++filled;
    bytes -= payload_bytes;
  }
  // Returns how many of `count` successive packets there is room for. All have payloads of this
  // length, except that the last one may be shorter.
  size_t fits(size_t count, uint32_t payload_bytes) const {
    PBOX_DCHECK(!is_used_up() && payload_bytes > 0);
    const size_t most = std::min(count, limit - filled);
    const auto left = static_cast<uint64_t>(bytes);
    return most * payload_bytes <= left ? most : (left + payload_bytes - 1) / payload_bytes;
  }
  // Takes `count` packets, whose payloads have `payload_bytes` in total.
  void take_run(size_t count, uint64_t payload_bytes) {
    PBOX_DCHECK(!is_used_up() && count > 0 && count <= limit - filled);
    filled += count;
    bytes -= static_cast<int64_t>(payload_bytes);
  }
};

class EgressTurns {
 public:
  // Bytes that a job may send before the next job of its tenant, and a tenant of weight 1 before
  // the next tenant: two of the largest packets, so that every turn sends something.
  static constexpr int64_t kQuantumBytes = 2 * int64_t{limits::kPacketBytesMax};

  EgressTurns() { tenants_.reserve(limits::kShardsPerPipelineMax); }
  EgressTurns(const EgressTurns&) = delete;
  EgressTurns& operator=(const EgressTurns&) = delete;

  void add(JobShard& shard);
  // Has no effect if the shard was not added.
  void remove(JobShard& shard);

  // Fills a burst that has `filled` packets up to `limit`, and returns the new number of packets.
  // `fill(job, room)` adds packets of the job until it has none or the room is used up. A turn that
  // the limit has cut short goes on in the next burst.
  template <typename Fill>
  size_t fill_burst(size_t filled, size_t limit, const Fill& fill) {
    size_t idle_tenants = 0;
    while (filled < limit && idle_tenants < tenants_.size()) {
      PBOX_DCHECK(next_tenant_ < tenants_.size());
      Tenant& tenant = tenants_[next_tenant_];
      if (tenant.deficit_bytes <= 0) {
        tenant.deficit_bytes += kQuantumBytes * int64_t{tenant.weight()};
      }
      const bool is_in_debt = tenant.deficit_bytes <= 0;  // it misses this turn, but is not idle
      const size_t before = filled;
      filled = fill_turn(tenant, filled, limit, fill);
      idle_tenants = filled == before && !is_in_debt ? idle_tenants + 1 : 0;
      const bool has_more_of_turn = filled == limit && tenant.deficit_bytes > 0;
      if (!has_more_of_turn) next_tenant_ = (next_tenant_ + 1) % tenants_.size();
    }
    return filled;
  }

 private:
  struct Tenant {
    std::string_view name;  // points into the first job's name
    std::vector<EgressJob> jobs;
    size_t next = 0;            // the job whose turn it is
    int64_t deficit_bytes = 0;  // bytes left in this turn

    uint32_t weight() const { return jobs.front().shards.front()->weight; }
  };

  template <typename Fill>
  static size_t fill_turn(Tenant& tenant, size_t filled, size_t limit, const Fill& fill) {
    PBOX_DCHECK(!tenant.jobs.empty());
    PBOX_DCHECK(tenant.weight() > 0);
    size_t idle_jobs = 0;
    while (filled < limit && tenant.deficit_bytes > 0) {
      PBOX_DCHECK(tenant.next < tenant.jobs.size());
      EgressJob& job = tenant.jobs[tenant.next];
      if (job.deficit_bytes <= 0) job.deficit_bytes += kQuantumBytes;
      EgressRoom room{.filled = filled, .limit = limit, .bytes = job.deficit_bytes};
      fill(job, room);
      PBOX_DCHECK(filled <= room.filled && room.filled <= limit);
      tenant.deficit_bytes -= job.deficit_bytes - room.bytes;
      const bool is_idle = room.filled == filled;
      idle_jobs = is_idle ? idle_jobs + 1 : 0;
      job.deficit_bytes = is_idle ? 0 : room.bytes;
      filled = room.filled;
      if (filled == limit && job.deficit_bytes > 0) break;
      tenant.next = (tenant.next + 1) % tenant.jobs.size();
      if (idle_jobs == tenant.jobs.size()) {
        tenant.deficit_bytes = 0;  // no job of the tenant has anything to send
        break;
      }
    }
    return filled;
  }

  static bool remove(Tenant& tenant, const JobShard& shard);

  std::vector<Tenant> tenants_;
  size_t next_tenant_ = 0;
  uint64_t next_sequence_ = 0;  // see EgressPlace
};

}  // namespace pbox::pipeline
