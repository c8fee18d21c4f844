#include "appliance/control/retired_counts.h"

#include "base/check.h"

namespace pbox::control {

void RetiredCounts::keep(const JobView& part) {
  const auto [kept, is_first] = by_job_.try_emplace(part.name);
  if (is_first) {
    kept->second.workers.resize(part.workers.size());
    if (part.pulls) kept->second.pulls.emplace();
    if (part.grace) kept->second.grace.emplace();
    if (part.backup) kept->second.backup.emplace();
    if (part.upstream) kept->second.upstream.emplace();
  }
  add_counts(kept->second, part);
}

void RetiredCounts::add_to(JobView& job) const {
  PBOX_CHECK(!job.name.empty());
  const auto kept = by_job_.find(job.name);
  if (kept != by_job_.end()) add_counts(job, kept->second);
}

}  // namespace pbox::control
