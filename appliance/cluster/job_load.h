// How long the rounds of jobs take at one box, as its workers see it: what a box tells the leader
// of the cluster, its key loads/NAME, and how that is measured. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/job.h"

namespace pbox::cluster {

// Of the parts of one job that a box has, over the newest rounds that all its ranks have finished.
struct JobLoad {
  int64_t plan_revision = 0;  // of the plan that the box goes by
  uint64_t rounds = 0;        // finished ever, by the rank that is furthest behind; 0: not measured
  double bytes = 0;           // a round's
  double busy_seconds = 0;    // a round's: some rank that is waited for least waited for the box
  double iteration_seconds = 0;
  double pause_seconds = 0;  // what the change to this plan cost; 0: not known
  bool operator==(const JobLoad&) const = default;
};
using JobLoads = std::map<std::string, JobLoad>;  // by job

// JSON in one line. from_text: what is no load is left out.
std::string to_text(const JobLoads& loads);
JobLoads loads_from_text(const std::string& text);

// Turns what ranks have finished into loads, which are of one plan each: what lies between two
// plans counts as pause.
class LoadMeter {
 public:
  // What the plan of a job has for this box.
  struct Duty {
    int64_t plan_revision = 0;
    size_t parts = 0;
  };
  using DutyOf = std::function<std::optional<Duty>(const std::string& job)>;

  // `parts`: all that run here, by job and part. Jobs of which the box has other parts than planned
  // are measured once it has them. A load stays until there is a newer one of the same plan.
  const JobLoads& measure(const std::vector<appliance::PartProgress>& parts, const DutyOf& duty_of);

 private:
  using Part = std::vector<appliance::RankProgress>;
  struct Job {
    std::map<uint32_t, Part> parts;  // as they were when they were measured last
    bool is_settled = false;         // that was under this plan
    double usual_seconds = 0;        // of an iteration, before this plan
    double crossing_seconds = 0;     // from before this plan until it was settled
    double crossing_rounds = 0;      // meanwhile
  };

  void measure(Job& job, JobLoad& load, const std::map<uint32_t, Part>& parts, double bytes) const;

  std::map<std::string, Job> jobs_;
  JobLoads loads_;
};

}  // namespace pbox::cluster
