#include "appliance/control/capacity.h"

#include <algorithm>

#include "nic/wire/tenant.h"

namespace pbox::control {
namespace {

uint64_t bytes_of(const std::optional<snapshot::Restored>& restored) {
  uint64_t bytes = 0;
  if (!restored) return bytes;
  for (const auto& chunk : restored->chunks) bytes += chunk.values.size() * sizeof(float);
  return bytes;
}

uint64_t less(uint64_t limit, uint64_t taken) {
  return limit - std::min(limit, taken);
}

}  // namespace

uint64_t memory_of(const Job& job) {
  return job.footprint() + bytes_of(job.restored()) + bytes_of(job.optimizer_state());
}

std::vector<PipelineUse> pipeline_use(const JobTable& jobs, uint32_t pipelines) {
  std::vector<PipelineUse> uses(pipelines);
  for (const auto& [part, job] : jobs) {
    for (const uint32_t pipeline : job->shards().pipelines()) {
      PBOX_CHECK(pipeline < pipelines);
      PipelineUse& use = uses[pipeline];
      use.round_bytes += job->shards().bytes_on(pipeline);
      use.memory_bytes += job->footprint_on(pipeline);
      use.sessions += job->members().size();
      ++use.shards;
    }
  }
  return uses;
}

uint32_t job_slots_taken(const JobTable& jobs) {
  uint32_t taken = 0;
  const std::string* newest = nullptr;  // parts of one job follow each other
  for (const auto& [part, job] : jobs) {
    if (job->spec().is_backup || (newest != nullptr && *newest == part.first)) continue;
    newest = &part.first;
    ++taken;
  }
  return taken;
}

uint64_t free_on_pipeline(const RegistryOptions& options, uint32_t pipeline,
                          const PipelineUse& use) {
  if (pipeline >= options.arena_bytes.size()) return UINT64_MAX;
  return less(options.arena_bytes[pipeline], use.memory_bytes);
}

Status check_copies(const RegistryContext& context, const JobOwner& owner, const std::string& job,
                    const std::string& what, uint64_t bytes) {
  const uint64_t taken = owner.memory_taken_bytes({});
  const uint64_t limit = context.options.job_memory_bytes;
  if (bytes > less(limit, taken)) {
    return Error{ErrorCode::kResourceExhausted,
                 what + " needs " + std::to_string(bytes) + " bytes for a while, but jobs hold " +
                     std::to_string(taken) + " of the " + std::to_string(limit) +
                     " bytes that they may take ([memory] job_share)"};
  }
  const std::string_view tenant = wire::tenant_of(job);
  return check_bound(tenant, "bytes of memory", "memory_mib",
                     context.options.tenants.of(tenant).memory_bytes,
                     owner.memory_taken_bytes(tenant), bytes);
}

FreeCapacity free_capacity(const RegistryContext& context, uint32_t pipelines,
                           uint64_t memory_taken_bytes) {
  const RegistryOptions& options = context.options;
  FreeCapacity free;
  free.job_slots = static_cast<uint32_t>(less(options.jobs_max, job_slots_taken(context.jobs)));
  free.memory_bytes = less(options.job_memory_bytes, memory_taken_bytes);
  const std::vector<PipelineUse> uses = pipeline_use(context.jobs, pipelines);
  for (uint32_t pipeline = 0; pipeline < uses.size(); ++pipeline) {
    const PipelineUse& use = uses[pipeline];
    const uint64_t shards = less(limits::kShardsPerPipelineMax, use.shards);
    free.shards += static_cast<uint32_t>(shards);
    if (shards == 0 || use.sessions >= limits::kSessionsPerPipelineMax) continue;
    free.part_memory_bytes =
        std::max(free.part_memory_bytes, free_on_pipeline(options, pipeline, use));
  }
  free.part_memory_bytes = std::min(free.part_memory_bytes, free.memory_bytes);
  PBOX_CHECK(free.job_slots <= options.jobs_max);
  PBOX_CHECK(free.shards <= uint64_t{pipelines} * limits::kShardsPerPipelineMax);
  return free;
}

}  // namespace pbox::control
