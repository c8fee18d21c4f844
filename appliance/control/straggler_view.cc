#include "appliance/control/straggler_view.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace pbox::control {
namespace {

void add_awaited(std::vector<AwaitedView>& all, const AwaitedView& part) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const auto& view) { return view.rank == part.rank; });
  if (found == all.end()) {
    all.push_back(part);
  } else if (found->waited_s < part.waited_s) {
    *found = part;
  }
}

void add_rank(LateRankView& rank, const LateRankView& part) {
  rank.last_arrivals += part.last_arrivals;
  rank.late_s += part.late_s;
  if (part.worst_late_s <= rank.worst_late_s) return;
  rank.worst_late_s = part.worst_late_s;
  rank.worst_age_s = part.worst_age_s;
  rank.worst = part.worst;
}

void add_tensor(std::vector<LateTensorView>& all, const LateTensorView& part) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const auto& view) { return view.tensor == part.tensor; });
  if (found == all.end()) return all.push_back(part);
  found->late_s += part.late_s;
  if (part.worst_late_s <= found->worst_late_s) return;
  found->worst_late_s = part.worst_late_s;
  found->worst_rank = part.worst_rank;
  found->worst_round = part.worst_round;
}

std::vector<LateRoundView> merged(const std::vector<LateRoundView>& one,
                                  const std::vector<LateRoundView>& other) {
  std::map<uint64_t, LateRoundView, std::greater<>> rounds;
  for (const auto* list : {&one, &other}) {
    for (const LateRoundView& part : *list) {
      const auto [at, is_new] = rounds.emplace(part.round, part);
      if (is_new) continue;
      LateRoundView& round = at->second;
      round.chunks += part.chunks;
      round.age_s = std::min(round.age_s, part.age_s);
      round.seconds = std::max(round.seconds, part.seconds);
      if (part.late_s <= round.late_s) continue;
      round.late_s = part.late_s;
      round.rank = part.rank;
      round.tensor = part.tensor;
    }
  }
  std::vector<LateRoundView> views;
  for (const auto& [number, round] : rounds) {
    if (views.size() < kStragglerRoundsShown) views.push_back(round);
  }
  PBOX_DCHECK(views.size() <= kStragglerRoundsShown);
  return views;
}

}  // namespace

void sort_for_display(StragglerView& view) {
  std::stable_sort(view.awaited.begin(), view.awaited.end(),
                   [](const auto& a, const auto& b) { return a.waited_s > b.waited_s; });
  std::stable_sort(view.ranks.begin(), view.ranks.end(), [](const auto& a, const auto& b) {
    return std::pair(a.late_s, a.last_arrivals) > std::pair(b.late_s, b.last_arrivals);
  });
  std::stable_sort(view.tensors.begin(), view.tensors.end(),
                   [](const auto& a, const auto& b) { return a.late_s > b.late_s; });
  if (view.tensors.size() > kStragglerTensorsShown) view.tensors.resize(kStragglerTensorsShown);
  for (LateRankView& rank : view.ranks) {
    if (view.chunk_rounds == 0) continue;
    rank.last_share =
        static_cast<double>(rank.last_arrivals) / static_cast<double>(view.chunk_rounds);
  }
}

void add_part(StragglerView& job, const StragglerView& part) {
  if (job.state == "running") job.state = part.state;
  job.chunk_rounds += part.chunk_rounds;
  for (const AwaitedView& awaited : part.awaited) add_awaited(job.awaited, awaited);
  for (const LateRankView& rank : part.ranks) {
    const auto found = std::find_if(job.ranks.begin(), job.ranks.end(),
                                    [&](const auto& view) { return view.rank == rank.rank; });
    if (found != job.ranks.end()) add_rank(*found, rank);
  }
  for (const LateTensorView& tensor : part.tensors) add_tensor(job.tensors, tensor);
  job.rounds = merged(job.rounds, part.rounds);
  sort_for_display(job);
}

}  // namespace pbox::control
