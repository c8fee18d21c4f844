#include "appliance/control/pipeline_moves.h"

#include <algorithm>
#include <utility>

#include "appliance/control/capacity.h"
#include "base/limits.h"

namespace pbox::control {
std::vector<PartProgress> PipelineMoves::progress() const {
  std::vector<PartProgress> list;
  for (const auto& [key, job] : context_.jobs) {
    const JobSpec& spec = job->spec();
    if (!job->running() || !spec.may_move() || spec.is_backup) continue;
    const JobShards& shards = job->shards();
    PartProgress part{.job = spec.name,
                      .part = spec.part,
                      .part_count = spec.parts,
                      .pipelines = shards.pipelines(),
                      .group_pipelines = shards.group_pipelines()};
    for (uint32_t index = 0; index < host_.count(); ++index) part.bytes += shards.bytes_on(index);
    for (const Member& member : job->members()) {
      if (member.state != Member::State::kExcluded) part.ranks.push_back(member.progress);
    }
    list.push_back(std::move(part));
  }
  return list;
}

bool PipelineMoves::is_gathering(const std::string& job) const {
  const std::vector<Job*> parts = context_.jobs.parts_of(job);
  return std::any_of(parts.begin(), parts.end(), [](const Job* part) { return !part->running(); });
}

Status PipelineMoves::check(const Job& job, const std::vector<uint32_t>& groups) const {
  const JobSpec& spec = job.spec();
  if (!job.running() || !spec.may_move() || spec.is_backup || spec.relayed) {
    return Error{ErrorCode::kUnavailable,
                 spec.title() + " does not run now, or must stay on its pipelines"};
  }
  for (const Member& member : job.members()) {
    if (member.state == Member::State::kJoined || member.state == Member::State::kExcluded)
      continue;
    return Error{ErrorCode::kUnavailable, spec.title() + ": a rank is away, or has left"};
  }
  const bool fits = groups.size() == job.shards().group_pipelines().size() &&
                    std::all_of(groups.begin(), groups.end(),
                                [this](uint32_t pipeline) { return pipeline < host_.count(); });
  if (fits) return ok_status();
  return Error{ErrorCode::kUnavailable, spec.title() + " has other groups of chunks now"};
}

Status PipelineMoves::check_room(
    const std::map<const Job*, const std::vector<uint32_t>*>& moves) const {
  std::vector<PipelineUse> uses = pipeline_use(context_.jobs, host_.count());
  for (const auto& [job, groups] : moves) {
    for (const uint32_t pipeline : job->shards().pipelines()) {
      uses[pipeline].memory_bytes -= job->footprint_on(pipeline);
      uses[pipeline].sessions -= static_cast<uint32_t>(job->members().size());
      --uses[pipeline].shards;
    }
  }
  for (const auto& [job, groups] : moves) {
    const JobShards& shards = job->shards();
    const std::vector<uint64_t> footprints = shards.footprints_with(job->spec(), *groups);
    for (const uint32_t pipeline : shards.pipelines().size() > 1 ? shards.pipelines() : *groups) {
      PipelineUse& use = uses[pipeline];
      use.sessions += static_cast<uint32_t>(job->members().size());
      if (footprints[pipeline] > free_on_pipeline(context_.options, pipeline, use) ||
          use.shards >= limits::kShardsPerPipelineMax ||
          use.sessions > limits::kSessionsPerPipelineMax) {
        return Error{ErrorCode::kResourceExhausted,
                     "pipeline " + std::to_string(pipeline) + " has no room for these chunks"};
      }
      use.memory_bytes += footprints[pipeline];
      ++use.shards;
    }
  }
  uint64_t copied_bytes = 0;  // bytes of the states that only the box has
  const JobSpec* spec = nullptr;
  for (const auto& [job, groups] : moves) {
    spec = &job->spec();
    if (spec->mode == pipeline::Mode::kOptimize) copied_bytes += job->shards().cut_bytes();
  }
  if (copied_bytes == 0) return ok_status();
  return check_copies(context_, owner_, spec->name,
                      "a move of the chunks of job '" + spec->name + "'", copied_bytes);
}

Status PipelineMoves::move(const std::string& job,
                           const std::map<uint32_t, std::vector<uint32_t>>& by_part,
                           const std::string& why) {
  std::map<const Job*, const std::vector<uint32_t>*> moves;
  for (const auto& [part, groups] : by_part) {
    const Job* running = context_.jobs.find({job, part});
    if (running == nullptr) {
      return Error{ErrorCode::kUnavailable, "part " + std::to_string(part) + " of job '" + job +
                                                "' is not on this box any more"};
    }
    if (const Status status = check(*running, groups); !status) return status;
    moves[running] = &groups;
  }
  if (const Status status = check_room(moves); !status) return status;
  for (const auto& [part, groups] : by_part) {
    Job* moved = context_.jobs.find({job, part});
    PBOX_CHECK(moved != nullptr);
    owner_.gather_again(
        *moved,
        {.event = {RegistryEvent::Severity::kInfo, "chunks_moved",
                   moved->spec().title() + ": chunks move to other pipelines of this box: " + why,
                   job},
         .group_pipelines = groups});
  }
  return ok_status();
}

}  // namespace pbox::control
