// Moves chunks of the parts that run here between the pipelines of this box, and reports how fast
// the parts progress. A part whose chunks move is closed for a moment: its ranks join again at
// once, and go on from what they have and from the state that the box keeps. Used on the control
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "appliance/control/pipeline_host.h"
#include "appliance/control/registry_context.h"

namespace pbox::control {

// The progress of a part that runs on this box and could move to another one.
struct PartProgress {
  std::string job;
  uint32_t part = 0;
  uint32_t part_count = 1;
  uint64_t bytes = 0;                          // bytes that one rank pushes in a round
  std::vector<RankProgress> ranks = {};        // all ranks that are not excluded
  std::vector<uint32_t> pipelines = {};        // by index in its sessions
  std::vector<uint32_t> group_pipelines = {};  // as JobShards::group_pipelines()
};

class PipelineMoves {
 public:
  // All arguments must outlive this object.
  PipelineMoves(RegistryContext& context, const PipelineHost& host, JobOwner& owner)
      : context_(context), host_(host), owner_(owner) {}

  // Returns the progress of the parts that run here and could move to another box, by job and part.
  std::vector<PartProgress> progress() const;
  // Returns whether a part of the job is here that does not run. It gathers its ranks, perhaps
  // because its chunks move.
  bool is_gathering(const std::string& job) const;

  // Moves all of these groups of chunks, or none. `by_part`: for each part to be changed, the
  // pipeline of each of its groups. `why` is logged. kUnavailable: one of these parts does not run
  // here, must stay as it is, or lacks a rank, for which it would have to wait. kResourceExhausted:
  // a pipeline has no room, or the box has none for the copy of the weights and the optimizer state
  // that it holds meanwhile.
  Status move(const std::string& job, const std::map<uint32_t, std::vector<uint32_t>>& by_part,
              const std::string& why);

 private:
  Status check(const Job& job, const std::vector<uint32_t>& groups) const;
  Status check_room(const std::map<const Job*, const std::vector<uint32_t>*>& moves) const;

  RegistryContext& context_;
  const PipelineHost& host_;
  JobOwner& owner_;
};

}  // namespace pbox::control
