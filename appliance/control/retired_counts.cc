#include "appliance/control/retired_counts.h"

#include "base/check.h"

namespace pbox::control {

void RetiredCounts::keep(const JobView& part) {
  const auto [kept, is_first] = by_job_.try_emplace(part.name);
  if (is_first) {
    kept->second.workers.resize(part.workers.size());
    kept->second.pulls = part.pulls;
    kept->second.backup = part.backup;
    if (kept->second.pulls) kept->second.pulls = PullView{};
    if (kept->second.backup) kept->second.backup = BackupView{};
  }
  add_counts(kept->second, part);
}

void RetiredCounts::add_to(JobView& job) const {
  PBOX_CHECK(!job.name.empty());
  const auto kept = by_job_.find(job.name);
  if (kept != by_job_.end()) add_counts(job, kept->second);
}

}  // namespace pbox::control
