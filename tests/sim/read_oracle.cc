#include "tests/sim/read_oracle.h"

#include <algorithm>
#include <utility>

namespace pbox::sim {

using wire::SyncModel;

ReadOracle::ReadOracle(const JobOptions& options)
    : options_(options), updates_(options), bounds_(options.tensors.size(), 0) {
  begin_run();
  for (uint32_t tensor = 0; tensor < options.tensors.size(); ++tensor) {
    note_model(tensor, options.sync_of(tensor));
  }
}

void ReadOracle::begin_run() {
  begun_.assign(options_.workers, std::vector<uint32_t>(options_.tensors.size()));
  read_.clear();
  read_.resize(options_.workers);
  dropped_.assign(options_.workers, false);
  absent_.clear();
  finished_.clear();
  if (options_.rogue) finished_.insert(0);
  // Only rank 0's initial weights count, so the other ranks' round 0 counts as begun from the
  // start.
  for (uint32_t rank = 1; rank < options_.workers; ++rank) {
    std::fill(begun_[rank].begin(), begun_[rank].end(), 1);
  }
}

void ReadOracle::begin(uint32_t rank, uint32_t tensor, uint32_t round) {
  begun_[rank][tensor] = std::min(round + 1, options_.rounds);
}

bool ReadOracle::all_finished() const {
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    if (!finished_.contains(rank) && !absent_.contains(rank)) return false;
  }
  return true;
}

void ReadOracle::note_model(uint32_t tensor, const wire::SyncSpec& sync) {
  const bool has_bound = sync.model == SyncModel::kBsp || sync.model == SyncModel::kSsp ||
                         sync.model == SyncModel::kEssp;
  std::optional<uint32_t>& bound = bounds_[tensor];
  if (!has_bound) bound.reset();
  if (bound) bound = std::max(*bound, sync.staleness);
}

std::optional<std::string> ReadOracle::judge(const Part& part, uint32_t other, uint32_t found,
                                             uint32_t before) {
  const uint32_t rounds = part.round + 1;
  const auto say = [&](const char* what, uint32_t limit) {
    return std::to_string(found) + " rounds of rank " + std::to_string(other) +
           " are in the weights, " + what + " " + std::to_string(limit);
  };
  if (found < before) return say("but an earlier read had", before);
  if (found > begun_[other][part.tensor])
    return say("but that rank has begun only", begun_[other][part.tensor]);
  if (options_.sync.model == SyncModel::kDrop) {
    if (other != part.rank || part.round == 0 || part.round >= options_.rounds) return std::nullopt;
    // If late pushes count, a result may hold the rank's last push beside this one, or alone.
    if (options_.sync.counts_late) return std::nullopt;
    if (found > before + 1) return say("which is more than one operation after", before);
    if (found == before) dropped_[part.rank] = true;
    return std::nullopt;
  }
  const bool is_own = other == part.rank;
  if (is_own && found != rounds && !(part.fetches && found == rounds + 1))
    return say("but the reader itself has pushed", rounds);
  const auto bound = bounds_[part.tensor];
  if (!bound || absent_.contains(other) || found + *bound >= rounds) return std::nullopt;
  return say("which is too stale for a reader that has pushed", rounds);
}

std::optional<std::string> ReadOracle::read(const Part& part, const std::byte* weights) {
  auto& before = read_[part.rank][{part.tensor, part.first}];
  before.resize(options_.workers);
  const auto whole = updates_.whole(weights, part.count);
  if (!whole) return "the weights contain no whole number of updates of any rank";
  for (uint32_t other = 0; other < options_.workers; ++other) {
    const auto found =
        updates_.count(other, *whole, part.tensor, part.first, begun_[other][part.tensor]);
    if (!found)
      return "the weights contain no whole number of updates of rank " + std::to_string(other);
    if (auto what = judge(part, other, *found, before[other])) return what;
    before[other] = *found;
  }
  return std::nullopt;
}

bool ReadOracle::take_dropped(uint32_t rank) {
  const bool dropped = dropped_[rank];
  dropped_[rank] = false;
  return dropped;
}

std::optional<std::string> ReadOracle::lacks(uint32_t tensor, uint64_t first, uint32_t count,
                                             const std::byte* weights) const {
  const auto whole = updates_.whole(weights, count);
  for (uint32_t rank = 0; rank < options_.workers; ++rank) {
    const auto found =
        whole ? updates_.count(rank, *whole, tensor, first, options_.rounds) : std::nullopt;
    if (found == options_.rounds) continue;
    return "in the end, " + (found ? std::to_string(*found) : "no whole number of") +
           " rounds of rank " + std::to_string(rank) + " are in, instead of " +
           std::to_string(options_.rounds);
  }
  return std::nullopt;
}

}  // namespace pbox::sim
