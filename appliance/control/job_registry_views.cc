// Views, progress and traces of the registry's jobs.
#include "appliance/control/job_registry.h"
#include "base/clock.h"

namespace pbox::control {
namespace {

Error no_job(const std::string& name) {
  return {ErrorCode::kNotFound, "no job '" + name + "' on this box"};
}

}  // namespace

std::vector<StragglerView> JobRegistry::stragglers(uint64_t now_ns) const {
  std::vector<StragglerView> views;
  for (const auto& [part, job] : context_.jobs) {
    StragglerView view = job->stragglers(now_ns);
    if (!views.empty() && views.back().job == view.job) {
      add_part(views.back(), view);
    } else {
      views.push_back(std::move(view));
    }
  }
  return views;
}

std::vector<JobView> JobRegistry::views(uint64_t now_ns) const {
  std::vector<JobView> views;
  for (const auto& [part, job] : context_.jobs) {
    JobView view = job->view(now_ns);
    if (!views.empty() && views.back().name == view.name) {
      add_part(views.back(), view);
    } else {
      views.push_back(std::move(view));
    }
  }
  for (JobView& job : views) retired_.add_to(job);
  return views;
}

Status JobRegistry::begin_trace(const std::string& name, uint64_t duration_ns, uint64_t now_ns) {
  const std::vector<Job*> parts = context_.jobs.parts_of(name);
  if (parts.empty()) return no_job(name);
  for (const auto& [key, job] : context_.jobs) {
    if (job->trace().until_ns() <= now_ns) continue;
    return Error{ErrorCode::kUnavailable, "a trace of job '" + key.first +
                                              "' is recorded for another " +
                                              in_seconds(job->trace().until_ns() - now_ns)};
  }
  for (const Job* job : parts) {
    if (!job->running()) {
      return Error{ErrorCode::kUnavailable, "job '" + name + "' does not run yet"};
    }
  }
  for (const auto& [key, job] : context_.jobs) job->trace().end(host_, job->shards());
  for (Job* job : parts) {
    job->trace().begin(host_, job->shards(), limits::kTraceEventsMax / parts.size(), now_ns,
                       now_ns + duration_ns);
  }
  return ok_status();
}

Result<TraceView> JobRegistry::trace(const std::string& name, uint64_t now_ns) {
  const std::vector<Job*> parts = context_.jobs.parts_of(name);
  if (parts.empty()) return no_job(name);
  TraceView view;
  for (Job* job : parts) {
    const uint64_t until_ns = job->trace().until_ns();
    if (until_ns == 0) {
      return Error{ErrorCode::kUnavailable,
                   "there is no trace of job '" + name +
                       "'; begin one, and fetch it within a minute of its end"};
    }
    if (until_ns > now_ns) {
      return Error{ErrorCode::kUnavailable,
                   "the trace is recorded for another " + in_seconds(until_ns - now_ns)};
    }
    job->add_trace(host_, view);
  }
  return view;
}

}  // namespace pbox::control
