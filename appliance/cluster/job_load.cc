#include "appliance/cluster/job_load.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pbox::cluster {
namespace {

using control::PartProgress;
using control::RankProgress;

double seconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

// The progress of one part's ranks between two reports.
struct Span {
  // Per round: how long the rank that waits least waits for results. The other ranks may wait for
  // that rank as well.
  double busy_seconds = 0;
  double iteration_seconds = 0;  // per round, mean over the ranks
  double elapsed_seconds = 0;    // longest time between the two reports of a rank
  double rounds = 0;             // rounds that this rank has finished in that time
};

// Returns nullopt if some rank has finished no round in between, or is a different process.
std::optional<Span> span_of(const std::vector<RankProgress>& from,
                            const std::vector<RankProgress>& to) {
  if (from.size() != to.size() || to.empty()) return std::nullopt;
  Span span;
  for (size_t rank = 0; rank < to.size(); ++rank) {
    const RankProgress& a = from[rank];
    const RankProgress& b = to[rank];
    if (a.rounds == 0 || b.rounds <= a.rounds) return std::nullopt;
    if (b.at_ns <= a.at_ns || b.busy_ns < a.busy_ns) return std::nullopt;
    PBOX_DCHECK(b.rounds > a.rounds);
    const auto rounds = static_cast<double>(b.rounds - a.rounds);
    const double elapsed = seconds(b.at_ns - a.at_ns);
    const double busy = seconds(b.busy_ns - a.busy_ns) / rounds;
    span.busy_seconds = rank == 0 ? busy : std::min(span.busy_seconds, busy);
    span.iteration_seconds += elapsed / rounds / static_cast<double>(to.size());
    if (elapsed > span.elapsed_seconds) {
      span.elapsed_seconds = elapsed;
      span.rounds = rounds;
    }
  }
  return span;
}

bool is_new_process(const std::vector<RankProgress>& from, const std::vector<RankProgress>& to) {
  if (from.size() != to.size()) return true;
  for (size_t rank = 0; rank < to.size(); ++rank) {
    if (to[rank].rounds < from[rank].rounds || to[rank].at_ns < from[rank].at_ns) return true;
  }
  return false;
}

uint64_t least_rounds(const std::map<uint32_t, std::vector<RankProgress>>& parts) {
  uint64_t least = UINT64_MAX;
  for (const auto& [part, ranks] : parts) {
    for (const RankProgress& rank : ranks) least = std::min(least, rank.rounds);
  }
  return least;
}

}  // namespace

std::vector<proto::JobLoad> to_messages(const JobLoads& loads) {
  std::vector<proto::JobLoad> messages;
  for (const auto& [job, load] : loads) {
    proto::JobLoad& entry = messages.emplace_back();
    entry.set_job(job);
    entry.set_map_revision(load.map_revision);
    entry.set_rounds(load.rounds);
    entry.set_bytes(load.bytes);
    entry.set_busy_seconds(load.busy_seconds);
    entry.set_iteration_seconds(load.iteration_seconds);
    entry.set_pause_seconds(load.pause_seconds);
  }
  return messages;
}

JobLoads loads_of(const proto::BoxReport& report) {
  JobLoads loads;
  for (const proto::JobLoad& entry : report.loads()) {
    const auto is_load = [](double value) { return std::isfinite(value) && value >= 0; };
    if (!is_load(entry.bytes()) || !is_load(entry.busy_seconds()) ||
        !is_load(entry.iteration_seconds()) || !is_load(entry.pause_seconds())) {
      continue;
    }
    loads[entry.job()] = {.map_revision = entry.map_revision(),
                          .rounds = entry.rounds(),
                          .bytes = entry.bytes(),
                          .busy_seconds = entry.busy_seconds(),
                          .iteration_seconds = entry.iteration_seconds(),
                          .pause_seconds = entry.pause_seconds()};
  }
  return loads;
}

const JobLoads& LoadMeter::measure(const std::vector<PartProgress>& parts,
                                   const AssignmentOf& assignment_of) {
  std::map<std::string, std::map<uint32_t, Part>> by_job;
  std::map<std::string, double> bytes;
  for (const PartProgress& part : parts) {
    by_job[part.job][part.part] = part.ranks;
    bytes[part.job] += static_cast<double>(part.bytes);
  }
  std::erase_if(jobs_, [&](const auto& entry) { return !by_job.contains(entry.first); });
  std::erase_if(loads_, [&](const auto& entry) { return !by_job.contains(entry.first); });
  for (auto& [name, now] : by_job) {
    const auto assignment = assignment_of(name);
    if (!assignment) continue;
    Job& job = jobs_[name];
    JobLoad& load = loads_[name];
    if (load.map_revision != assignment->map_revision) {
      job.is_measured = false;
      job.transition_seconds = job.transition_rounds = 0;
      if (load.rounds > 0) job.usual_seconds = load.iteration_seconds;
      load = {.map_revision = assignment->map_revision};
    }
    if (now.size() == assignment->parts) measure(job, load, now, bytes[name]);
  }
  return loads_;
}

void LoadMeter::measure(Job& job, JobLoad& load, const std::map<uint32_t, Part>& parts,
                        double bytes) const {
  std::erase_if(job.parts, [&](const auto& entry) { return !parts.contains(entry.first); });
  std::vector<Span> spans;
  for (const auto& [part, now] : parts) {
    const auto before = job.parts.find(part);
    if (before == job.parts.end() || is_new_process(before->second, now)) {
      job.parts[part] = now;
    } else if (const auto span = span_of(before->second, now)) {
      spans.push_back(*span);
    }
  }
  // All parts are measured together: there is no result until every part has progressed.
  if (spans.size() < parts.size() || spans.empty()) {
    for (const auto& [part, now] : parts) {  // some rank had not reported yet
      if (std::any_of(job.parts[part].begin(), job.parts[part].end(),
                      [](const RankProgress& rank) { return rank.rounds == 0; })) {
        job.parts[part] = now;
      }
    }
    return;
  }
  PBOX_DCHECK(spans.size() == parts.size());
  job.parts = parts;
  Span all;
  for (const Span& span : spans) {
    all.busy_seconds = std::max(all.busy_seconds, span.busy_seconds);
    all.iteration_seconds += span.iteration_seconds / static_cast<double>(spans.size());
    if (span.elapsed_seconds < all.elapsed_seconds) continue;
    all.elapsed_seconds = span.elapsed_seconds;
    all.rounds = span.rounds;
  }
  if (!job.is_measured) {
    job.is_measured = true;
    job.transition_seconds = all.elapsed_seconds;
    job.transition_rounds = all.rounds;
    return;
  }
  if (job.usual_seconds > 0 && load.rounds == 0) {
    const double slower = std::max(job.usual_seconds, all.iteration_seconds);
    load.pause_seconds = std::max(0.0, job.transition_seconds - job.transition_rounds * slower);
  }
  load.rounds = least_rounds(parts);
  load.bytes = bytes;
  load.busy_seconds = all.busy_seconds;
  load.iteration_seconds = all.iteration_seconds;
}

}  // namespace pbox::cluster
