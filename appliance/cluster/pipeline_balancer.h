// Moves chunks of jobs between the pipelines of this box. It uses the classes that move parts
// between boxes (job_balancer.h): a pipeline takes the place of a box, and a group of chunks that
// of a part. Each box does this for its own parts, whether it belongs to a cluster or not. Pure;
// one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "appliance/cluster/balance_view.h"
#include "appliance/cluster/job_balancer.h"
#include "appliance/cluster/job_load.h"
#include "appliance/control/pipeline_moves.h"
#include "base/result.h"

namespace pbox::cluster {

class PipelineBalancer {
 public:
  // By part that changes: the new pipeline of each of its groups.
  using Groups = std::map<uint32_t, std::vector<uint32_t>>;
  // Carries out a move; an error says why it was not carried out.
  using Move =
      std::function<Status(const std::string& job, const Groups& by_part, const std::string& why)>;

  // `pipelines`: number of pipelines of the box, at least 1.
  explicit PipelineBalancer(uint32_t pipelines) : meters_(pipelines) {}

  // Must be called once per interval with the progress of all parts that run here and could move,
  // by job and part. `is_gathering` returns whether some part of the job is here but does not run.
  void step(const std::vector<control::PartProgress>& parts,
            const std::function<bool(const std::string& job)>& is_gathering, const Move& move,
            uint64_t unix_s);

  // In these views a box is a pipeline, and a part is a group of chunks.
  std::vector<BalanceView> view() const;
  uint64_t groups_moved() const { return groups_moved_; }
  struct Logged {
    std::string job;
    BalanceDecision decision;
  };
  // Returns the decisions made since the last call, oldest first.
  std::vector<Logged> take_decisions();

 private:
  struct Job {
    JobBalancer balancer;
    std::vector<const control::PartProgress*> parts = {};  // valid during step() only
    std::vector<std::string> boxes = {};                   // by group: the name of its pipeline
    int64_t revision = 0;                                  // changes with `boxes`
    bool is_measured = false;  // all its parts run, and their ranks report each pipeline
  };

  void collect(const std::vector<control::PartProgress>& parts,
               const std::function<bool(const std::string& job)>& is_gathering);
  std::map<std::string, JobLoads> measure();
  void step(const std::string& name, Job& job, const std::map<std::string, JobLoads>& loads,
            const Move& move, uint64_t unix_s);

  std::vector<LoadMeter> meters_;  // by pipeline
  std::map<std::string, Job> jobs_;
  uint64_t groups_moved_ = 0;
};

}  // namespace pbox::cluster
