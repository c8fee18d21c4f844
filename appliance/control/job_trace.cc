// Traces of rounds: begun for an operator, kept by the pipelines, had back when their time is up.
#include <algorithm>

#include "appliance/control/job_registry.h"
#include "appliance/control/tensors_by_chunk.h"
#include "base/clock.h"

namespace pbox::appliance {
namespace {

using pipeline::CommandKind;

// Nobody has come for it: its memory is wanted more elsewhere.
constexpr uint64_t kKeptNs = 60 * kNanosPerSecond;

}  // namespace

void Job::begin_trace(PipelineHost& host, size_t events_max, uint64_t now_ns, uint64_t until_ns) {
  end_trace(host);
  traces_begun_ns_ = now_ns;
  traces_until_ns_ = until_ns;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    traces_.push_back(std::make_unique<pipeline::RoundTrace>(events_max / shards_.size(), until_ns,
                                                             &monotonic_ns));
    traces_.back()->first_rounds().resize(shards_[index]->chunks().size());
    host.execute(pipelines_[index], {.kind = CommandKind::kTrace,
                                     .shard = shards_[index].get(),
                                     .trace = traces_.back().get()});
  }
}

void Job::hand_back_traces(PipelineHost& host) {
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    host.execute(pipelines_[index], {.kind = CommandKind::kTrace, .shard = shards_[index].get()});
  }
}

void Job::end_trace(PipelineHost& host) {
  if (traces_.empty()) return;
  hand_back_traces(host);
  traces_.clear();
}

void Job::tick_trace(PipelineHost& host, uint64_t now_ns) {
  if (now_ns >= traces_until_ns_ + kKeptNs) end_trace(host);
}

void Job::add_trace(PipelineHost& host, TraceView& view) {
  hand_back_traces(host);
  view.job = spec_.name;
  view.world_size = spec_.world_size;
  view.begun_ns = traces_begun_ns_;
  view.ended_ns = traces_until_ns_;
  const TensorsByChunk tensors(spec_);
  const std::vector<int32_t> priorities = chunk_priorities();
  std::vector<uint32_t> index_of(chunk_pipeline_.size(), UINT32_MAX);
  for (uint32_t index = 0; index < traces_.size(); ++index) {
    const pipeline::RoundTrace& trace = *traces_[index];
    view.lost_events += trace.lost();
    for (const pipeline::TraceEvent& event : trace.events()) {
      uint32_t& chunk = index_of[event.chunk];
      if (chunk == UINT32_MAX) {
        chunk = static_cast<uint32_t>(view.chunks.size());
        view.chunks.push_back({.part = spec_.part,
                               .chunk = event.chunk,
                               .pipeline = pipelines_[index],
                               .tensor = tensors.name(event.chunk),
                               .priority = priorities[event.chunk]});
      }
      view.events.push_back({event, chunk});
    }
  }
}

std::vector<Job*> JobRegistry::parts_of(const std::string& name) {
  std::vector<Job*> parts;
  for (auto& [key, job] : jobs_) {
    if (key.first == name) parts.push_back(job.get());
  }
  return parts;
}

Status JobRegistry::begin_trace(const std::string& name, uint64_t duration_ns, uint64_t now_ns) {
  const std::vector<Job*> parts = parts_of(name);
  if (parts.empty()) return Error{ErrorCode::kNotFound, "no job '" + name + "' here"};
  for (const auto& [key, job] : jobs_) {
    if (job->traced_until_ns() <= now_ns) continue;
    return Error{ErrorCode::kUnavailable, "a trace of job '" + key.first +
                                              "' is recorded for another " +
                                              in_seconds(job->traced_until_ns() - now_ns)};
  }
  for (const Job* job : parts) {
    if (job->spec().sync.model != wire::SyncModel::kBsp) {
      return Error{ErrorCode::kUnavailable,
                   "a trace is of rounds that wait for all ranks: "
                   "of jobs whose model is bsp"};
    }
    if (!job->running()) {
      return Error{ErrorCode::kUnavailable, "job '" + name + "' does not run yet"};
    }
  }
  for (auto& [key, job] : jobs_) job->end_trace(host_);
  for (Job* job : parts) {
    job->begin_trace(host_, limits::kTraceEventsMax / parts.size(), now_ns, now_ns + duration_ns);
  }
  return ok_status();
}

Result<TraceView> JobRegistry::trace(const std::string& name, uint64_t now_ns) {
  const std::vector<Job*> parts = parts_of(name);
  if (parts.empty()) return Error{ErrorCode::kNotFound, "no job '" + name + "' here"};
  TraceView view;
  for (Job* job : parts) {
    const uint64_t until_ns = job->traced_until_ns();
    if (until_ns == 0) {
      return Error{ErrorCode::kUnavailable, "there is no trace of job '" + name +
                                                "': begin one, and ask within a minute of its end"};
    }
    if (until_ns > now_ns) {
      return Error{ErrorCode::kUnavailable,
                   "the trace is recorded for another " + in_seconds(until_ns - now_ns)};
    }
    job->add_trace(host_, view);
  }
  return view;
}

}  // namespace pbox::appliance
