#include "pipeline/shard_memory.h"

#include "base/check.h"
#include "base/numa_arena.h"

namespace pbox::pipeline {
namespace {

// Memory that an allocator takes beside a shard's tables, for headers and pages that are not full.
constexpr uint64_t kTablesPerOverhead = 32;
constexpr uint64_t kOverheadBytes = 1024;

}  // namespace

uint64_t ShardMemory::bytes() const {
  PBOX_DCHECK(chunks_ <= job_.job_chunk_count);
  uint64_t tables = sizeof(JobShard) + job_.sessions.size() * sizeof(Session) +
                    chunks_ * sizeof(Chunk) + uint64_t{job_.job_chunk_count} * sizeof(uint32_t) +
                    StragglerLedger::reserved_bytes(chunks_) +
                    EgressQueue::reserved_bytes(limits::kSlotRing * chunks_,
                                                job_.delivery == wire::Delivery::kPull);
  if (job_.replicated) tables += sizeof(Uplink) + Uplink::ring_bytes(chunks_);
  if (job_.relayed) tables += Uplink::kLanesMax * sizeof(Uplink) + Uplink::rings_bytes(chunks_);
  if (job_.sync.model == wire::SyncModel::kDrop) {
    tables += sync::RoundGrace::reserved_bytes(chunks_);
  }
  if (job_.gated) tables += sizeof(StepGate) + StepGate::table_bytes(chunks_);
  tables += tables / kTablesPerOverhead + kOverheadBytes;
  return NumaArena::mapped_bytes(arena_bytes_) + tables;
}

}  // namespace pbox::pipeline
