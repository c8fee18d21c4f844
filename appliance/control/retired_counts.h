// Counts of parts whose shards the pipelines of this box have given back: a part that moved to
// another box, or that gathers its ranks again. A job's counters include them, because Prometheus
// takes a counter that falls for one that was reset, and adds its whole value once more. Used on
// the control thread.
#pragma once

#include <map>
#include <string>

#include "appliance/control/job_view.h"

namespace pbox::control {

class RetiredCounts {
 public:
  // Keeps a part's counts. Call it before the pipelines give the part's shards back.
  void keep(const JobView& part);
  // Adds what is kept of the job to the counts of its parts that are here.
  void add_to(JobView& job) const;
  // Forgets a job that has no part here any more. Its counters vanish.
  void forget(const std::string& job) { by_job_.erase(job); }

 private:
  std::map<std::string, JobView> by_job_;
};

}  // namespace pbox::control
