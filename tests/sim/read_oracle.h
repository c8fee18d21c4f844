// The permitted reads of a rank in a job whose model is not BSP. The weights must contain each of
// the rank's own updates once. They must contain no more updates of another rank than it has
// pushed, no fewer than at the reader's previous read (even by an earlier process), and no fewer
// than the bound on staleness demands. If rounds are dropped, every missing update must have been
// reported.
#pragma once

#include <map>
#include <set>
#include <string>

#include "tests/sim/updates.h"

namespace pbox::sim {

class ReadOracle {
 public:
  explicit ReadOracle(const JobOptions& options);

  // Called when the job has begun anew: no rank has pushed or read anything.
  void begin_run();

  // Called when a rank begins a round of a tensor. From now on any rank may read its update.
  void begin(uint32_t rank, uint32_t tensor, uint32_t round);
  // Called when the box has excluded this rank, so that the bound no longer applies to it.
  void exclude(uint32_t rank) { absent_.insert(rank); }
  // Called when the rank has completed all rounds of all tensors.
  void finish(uint32_t rank) { finished_.insert(rank); }
  bool all_finished() const;

  // One part of a chunk, which is stepped as a whole.
  struct Part {
    uint32_t rank = 0;  // the reader
    uint32_t tensor = 0;
    uint32_t round = 0;
    // True if the reader has taken a lost rank's place and has pushed nothing itself. The weights
    // may contain a part of what the lost process pushed in the next round.
    bool fetches = false;
    uint64_t first = 0;  // first element, within the tensor
    uint32_t count = 0;
  };
  // Returns what is wrong with the read; nothing if it is right.
  std::optional<std::string> read(const Part& part, const std::byte* weights);
  // Returns whether some part of an operation of this rank was dropped since the last call.
  bool take_dropped(uint32_t rank);
  // Checks that all updates of all ranks are in weights that no rank steps any more; returns what
  // is missing.
  std::optional<std::string> lacks(uint32_t tensor, uint64_t first, uint32_t count,
                                   const std::byte* weights) const;

  const Updates& updates() const { return updates_; }
  // Called when the tensor may have this model from now on.
  void note_model(uint32_t tensor, const wire::SyncSpec& sync);
  // Returns how many rounds a read may be behind under any model that the tensor has had; nothing
  // if there is no bound.
  std::optional<uint32_t> bound(uint32_t tensor) const { return bounds_[tensor]; }

 private:
  std::optional<std::string> judge(const Part& part, uint32_t other, uint32_t found,
                                   uint32_t before);

  const JobOptions& options_;
  Updates updates_;
  std::vector<std::optional<uint32_t>> bounds_;  // by tensor
  std::vector<std::vector<uint32_t>> begun_;     // begun rounds, by rank and tensor
  // By reader, then by tensor and the part's first element: the updates read, by rank.
  std::vector<std::map<std::pair<uint32_t, uint64_t>, std::vector<uint32_t>>> read_;
  std::vector<bool> dropped_;
  std::set<uint32_t> absent_, finished_;
};

}  // namespace pbox::sim
