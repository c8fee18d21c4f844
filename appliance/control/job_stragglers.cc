// Combines what a part's pipelines have recorded about stragglers and about each rank's values.
#include <algorithm>
#include <map>

#include "appliance/control/job.h"
#include "appliance/control/tensors_by_chunk.h"
#include "base/check.h"

namespace pbox::control {
namespace {

double seconds(uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e9;
}

double age(uint64_t now_ns, uint64_t then_ns) {
  return now_ns > then_ns ? seconds(now_ns - then_ns) : 0;
}

using Shards = JobShards::Shards;

void add_awaited(const Shards& shards, const WorkerView& worker, const TensorsByChunk& tensors,
                 StragglerView& view) {
  uint64_t longest_ns = 0;
  uint64_t where = 0;
  for (const auto& shard : shards) {
    PBOX_DCHECK(worker.rank < shard->sessions().size());
    const pipeline::Session& session = shard->sessions()[worker.rank];
    if (session.awaited_ns.get() <= longest_ns) continue;
    longest_ns = session.awaited_ns.get();
    where = session.awaited_chunk_round.get();
  }
  if (longest_ns == 0) return;
  view.awaited.push_back({.rank = worker.rank,
                          .peer = worker.peer,
                          .state = worker.state,
                          .waited_s = seconds(longest_ns),
                          .last_packet_age_s = worker.last_packet_age_s,
                          .place = place_of(where, tensors)});
}

LateRankView rank_view(const Shards& shards, const WorkerView& worker,
                       const TensorsByChunk& tensors, uint64_t now_ns) {
  LateRankView late{.rank = worker.rank,
                    .peer = worker.peer,
                    .state = worker.state,
                    .last_arrivals = worker.last_arrivals,
                    .late_s = worker.late_s};
  uint64_t worst_ns = 0;
  for (const auto& shard : shards) {
    PBOX_DCHECK(worker.rank < shard->sessions().size());
    const pipeline::Session& session = shard->sessions()[worker.rank];
    if (session.worst_late_ns.get() <= worst_ns) continue;
    worst_ns = session.worst_late_ns.get();
    late.worst_late_s = seconds(worst_ns);
    late.worst_age_s = age(now_ns, session.worst_at_ns.get());
    late.worst = place_of(session.worst_chunk_round.get(), tensors);
  }
  return late;
}

std::vector<LateTensorView> tensor_views(const Shards& shards, const JobSpec& spec,
                                         const TensorsByChunk& tensors) {
  std::vector<LateTensorView> views(spec.tensors.size());
  for (size_t index = 0; index < views.size(); ++index)
    views[index].tensor = spec.tensors[index].name;
  for (const auto& shard : shards) {
    const pipeline::StragglerLedger& ledger = shard->stragglers;
    for (uint32_t index = 0; index < ledger.chunk_count(); ++index) {
      PBOX_DCHECK(tensors.index(shard->chunk_id(index)) < views.size());
      LateTensorView& view = views[tensors.index(shard->chunk_id(index))];
      view.late_s += seconds(ledger.late_ns(index));
      const auto& worst = ledger.worst(index);
      const double worst_s = seconds(worst.late_ns.get());
      if (worst_s <= view.worst_late_s) continue;
      view.worst_late_s = worst_s;
      view.worst_rank = static_cast<uint32_t>(worst.rank.get());
      view.worst_round = worst.round.get();
    }
  }
  std::erase_if(views, [](const LateTensorView& view) { return view.late_s == 0; });
  return views;
}

struct RoundTimes {
  uint64_t begun_ns = UINT64_MAX;
  uint64_t finished_ns = 0;
  LateRoundView view;
};

void add_round(const pipeline::JobShard& shard, const pipeline::StragglerLedger::Round& kept,
               const TensorsByChunk& tensors, std::map<uint64_t, RoundTimes>& rounds) {
  const uint64_t number = kept.round.get();
  if (number == 0) return;
  const uint64_t begun_ns = kept.begun_ns.get();
  const uint64_t finished_ns = kept.finished_ns.get();
  const uint64_t chunks = kept.chunks.get();
  const double late_s = seconds(kept.late_ns.get());
  const auto rank = static_cast<uint32_t>(kept.rank.get());
  const auto chunk = static_cast<uint32_t>(kept.chunk.get());
  if (kept.round.get() != number) return;  // the pipeline has just reused the entry
  RoundTimes& round = rounds[number - 1];
  round.begun_ns = std::min(round.begun_ns, begun_ns);
  round.finished_ns = std::max(round.finished_ns, finished_ns);
  round.view.round = number - 1;
  round.view.chunks += chunks;
  if (late_s < round.view.late_s || chunks == 0) return;
  round.view.late_s = late_s;
  round.view.rank = rank;
  round.view.tensor = tensors.name(shard.chunk_id(chunk));
}

std::vector<LateRoundView> round_views(const Shards& shards, const TensorsByChunk& tensors,
                                       uint64_t now_ns) {
  std::map<uint64_t, RoundTimes> rounds;
  for (const auto& shard : shards) {
    for (const auto& kept : shard->stragglers.rounds()) add_round(*shard, kept, tensors, rounds);
  }
  std::vector<LateRoundView> views;
  for (auto at = rounds.rbegin(); at != rounds.rend(); ++at) {
    if (views.size() == kStragglerRoundsShown) break;
    RoundTimes& round = at->second;
    round.view.age_s = age(now_ns, round.finished_ns);
    round.view.seconds = age(round.finished_ns, round.begun_ns);
    views.push_back(std::move(round.view));
  }
  return views;
}

HistogramView sum(const Shards& shards,
                  const pipeline::DurationHistogram& (pipeline::StragglerLedger::*which)() const) {
  HistogramView view;
  view.counts.resize(pipeline::DurationHistogram::kBucketCount);
  for (const auto& shard : shards) {
    const pipeline::DurationHistogram& histogram = (shard->stragglers.*which)();
    for (size_t bucket = 0; bucket < view.counts.size(); ++bucket) {
      view.counts[bucket] += histogram.count(bucket);
    }
    view.sum_s += seconds(histogram.sum_ns());
  }
  return view;
}

}  // namespace

void Job::view_values(JobView& view, uint64_t now_ns) const {
  for (WorkerView& worker : view.workers) {
    uint64_t newest_ns = 0, where = 0;
    for (const auto& shard : shards_.all()) {
      const pipeline::Session& session = shard->sessions()[worker.rank];
      worker.nonfinite_fragments += session.nonfinite.get();
      if (const auto squares = session.squares.newest()) {
        worker.gradient_squares = worker.gradient_squares.value_or(0) + *squares;
      }
      if (session.nonfinite_at_ns.get() <= newest_ns) continue;
      newest_ns = session.nonfinite_at_ns.get();
      where = session.nonfinite_chunk_round.get();
    }
    if (newest_ns == 0) continue;
    worker.newest_nonfinite = {place_of(where, TensorsByChunk(spec_)), age(now_ns, newest_ns)};
  }
}

void Job::view_stragglers(JobView& view) const {
  view.arrival_skew = sum(shards_.all(), &pipeline::StragglerLedger::skews);
  view.round_times = sum(shards_.all(), &pipeline::StragglerLedger::round_times);
  for (WorkerView& worker : view.workers) {
    for (const auto& shard : shards_.all()) {
      const pipeline::Session& session = shard->sessions()[worker.rank];
      worker.late_s += seconds(session.late_ns.get());
      worker.awaited_s = std::max(worker.awaited_s, seconds(session.awaited_ns.get()));
    }
  }
}

StragglerView Job::stragglers(uint64_t now_ns) const {
  const JobView job = this->view(now_ns);
  const TensorsByChunk tensors(spec_);
  StragglerView view{.job = job.name,
                     .state = job.state,
                     .world_size = job.world_size,
                     .chunk_rounds = job.chunk_rounds};
  for (const WorkerView& worker : job.workers) {
    add_awaited(shards_.all(), worker, tensors, view);
    view.ranks.push_back(rank_view(shards_.all(), worker, tensors, now_ns));
  }
  view.tensors = tensor_views(shards_.all(), spec_, tensors);
  view.rounds = round_views(shards_.all(), tensors, now_ns);
  sort_for_display(view);
  return view;
}

}  // namespace pbox::control
