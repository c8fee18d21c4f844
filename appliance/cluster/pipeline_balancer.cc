#include "appliance/cluster/pipeline_balancer.h"

#include <algorithm>

#include "base/check.h"

namespace pbox::cluster {
namespace {

using control::PartProgress;
using control::RankProgress;

std::string name_of(size_t pipeline) {
  return "pipeline " + std::to_string(pipeline);
}

// Returns whether each rank says how long it waits for each pipeline. Ranks of older releases do
// not.
bool reports_pipelines(const PartProgress& part) {
  return std::all_of(part.ranks.begin(), part.ranks.end(), [&](const RankProgress& rank) {
    return rank.rounds == 0 || rank.busy_ns_by_pipeline.size() >= part.pipelines.size();
  });
}

// Returns the progress of the part of which only the groups on one pipeline count.
PartProgress on_pipeline(const PartProgress& part, uint32_t pipeline) {
  const auto place = std::find(part.pipelines.begin(), part.pipelines.end(), pipeline);
  const auto& groups = part.group_pipelines;
  const auto count = static_cast<uint64_t>(std::count(groups.begin(), groups.end(), pipeline));
  PBOX_CHECK(place != part.pipelines.end() && !groups.empty());
  const auto index = static_cast<size_t>(place - part.pipelines.begin());
  PartProgress restricted{.job = part.job, .part = part.part, .part_count = part.part_count};
  restricted.bytes = part.bytes * count / groups.size();
  for (const RankProgress& rank : part.ranks) {
    const auto& busy = rank.busy_ns_by_pipeline;
    restricted.ranks.push_back({rank.rounds, rank.at_ns, index < busy.size() ? busy[index] : 0});
  }
  return restricted;
}

bool has_group_on(const PartProgress& part, uint32_t pipeline) {
  return std::find(part.group_pipelines.begin(), part.group_pipelines.end(), pipeline) !=
         part.group_pipelines.end();
}

}  // namespace

// Sorts the parts by job. The boxes of a job share the time that explorations may cost it, in
// proportion to their parts.
void PipelineBalancer::collect(const std::vector<PartProgress>& parts,
                               const std::function<bool(const std::string& job)>& is_gathering) {
  for (auto& [name, job] : jobs_) job.parts.clear();
  for (const PartProgress& part : parts) {
    const uint64_t seed = std::hash<std::string>{}(part.job);
    auto& job = jobs_.try_emplace(part.job, Job{JobBalancer(part.job, seed)}).first->second;
    job.parts.push_back(&part);
  }
  std::erase_if(jobs_, [&](const auto& entry) {
    return entry.second.parts.empty() && !is_gathering(entry.first);
  });
  for (auto& [name, job] : jobs_) {
    job.is_measured = !is_gathering(name) &&
                      std::all_of(job.parts.begin(), job.parts.end(), [](const PartProgress* part) {
                        return reports_pipelines(*part);
                      });
    if (!job.is_measured) continue;
    std::vector<std::string> boxes;
    for (const PartProgress* part : job.parts) {
      for (const uint32_t pipeline : part->group_pipelines) boxes.push_back(name_of(pipeline));
    }
    if (boxes == job.boxes) continue;
    job.boxes = std::move(boxes);
    ++job.revision;
    const auto parts_here = static_cast<double>(job.parts.size());
    job.balancer.set_explore_share(placement::RebalancerOptions().explore_share * parts_here /
                                   job.parts.front()->part_count);
  }
}

// Returns the loads by pipeline. The meters keep the state of a job that is not measured now.
std::map<std::string, JobLoads> PipelineBalancer::measure() {
  std::map<std::string, JobLoads> loads;
  for (uint32_t pipeline = 0; pipeline < meters_.size(); ++pipeline) {
    std::vector<PartProgress> here;
    std::map<std::string, size_t> counts;
    for (const auto& [name, job] : jobs_) {
      if (!job.is_measured) here.push_back({.job = name});
      for (const PartProgress* part : job.parts) {
        if (!job.is_measured || !has_group_on(*part, pipeline)) continue;
        here.push_back(on_pipeline(*part, pipeline));
        ++counts[name];
      }
    }
    loads[name_of(pipeline)] = meters_[pipeline].measure(
        here, [&](const std::string& name) -> std::optional<LoadMeter::Assignment> {
          const auto job = jobs_.find(name);
          if (job == jobs_.end() || !job->second.is_measured) return std::nullopt;
          return LoadMeter::Assignment{job->second.revision, counts[name]};
        });
  }
  return loads;
}

void PipelineBalancer::step(const std::vector<PartProgress>& parts,
                            const std::function<bool(const std::string& job)>& is_gathering,
                            const Move& move, uint64_t unix_s) {
  collect(parts, is_gathering);
  const auto loads = measure();
  for (auto& [name, job] : jobs_) {
    if (job.is_measured) step(name, job, loads, move, unix_s);
    job.parts.clear();  // they point to the caller's objects
  }
}

void PipelineBalancer::step(const std::string& name, Job& job,
                            const std::map<std::string, JobLoads>& loads, const Move& move,
                            uint64_t unix_s) {
  PartMap map{.may_move = true, .boxes = job.boxes};
  for (const PartProgress* part : job.parts) map.bytes += part->bytes;
  std::vector<BalancedBox> pipelines;
  for (size_t pipeline = 0; pipeline < meters_.size(); ++pipeline) {
    pipelines.push_back({.name = name_of(pipeline)});
  }
  const auto proposal = job.balancer.step(map, job.revision, pipelines, loads, unix_s);
  if (!proposal) return;
  Groups by_part;
  auto box = proposal->map.boxes.begin();
  for (const PartProgress* part : job.parts) {
    std::vector<uint32_t> groups;
    for (size_t group = 0; group < part->group_pipelines.size(); ++group, ++box) {
      const auto found = std::find_if(pipelines.begin(), pipelines.end(),
                                      [&](const BalancedBox& each) { return each.name == *box; });
      groups.push_back(static_cast<uint32_t>(found - pipelines.begin()));
    }
    if (groups != part->group_pipelines) by_part[part->part] = std::move(groups);
  }
  const Status moved = move(name, by_part, proposal->kind + ", " + proposal->reason);
  if (!moved) return job.balancer.refused(moved.error().message, unix_s);
  groups_moved_ += proposal->moves;
  job.balancer.committed();
}

std::vector<BalanceView> PipelineBalancer::view() const {
  std::vector<BalanceView> views;
  for (const auto& [name, job] : jobs_) views.push_back(job.balancer.view());
  return views;
}

std::vector<PipelineBalancer::Logged> PipelineBalancer::take_decisions() {
  std::vector<Logged> logged;
  for (auto& [name, job] : jobs_) {
    for (BalanceDecision& decision : job.balancer.take_decisions()) {
      logged.push_back({name, std::move(decision)});
    }
  }
  return logged;
}

}  // namespace pbox::cluster
