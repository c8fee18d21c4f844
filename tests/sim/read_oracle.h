// What a rank of a job whose model is not bsp may read: its own updates all, each once; of the
// others no more than they have pushed, never less than before, and no less than the bound on
// staleness says. Where rounds are dropped: what is not in was reported.
#pragma once

#include <map>
#include <set>
#include <string>

#include "tests/sim/updates.h"

namespace pbox::sim {

class ReadOracle {
 public:
  explicit ReadOracle(const JobOptions& options);

  // A rank begins a round of a tensor: from now on its update may be read by anybody.
  void begin(uint32_t rank, uint32_t tensor, uint32_t round);
  // The bound says nothing any more of a rank that the box has given up.
  void exclude(uint32_t rank) { absent_.insert(rank); }
  // The rank has all its rounds of all tensors behind it.
  void finish(uint32_t rank) { finished_.insert(rank); }
  bool all_finished() const;

  // One part of a chunk, all of which steps at once.
  struct Part {
    uint32_t rank = 0;  // that reads
    uint32_t tensor = 0;
    uint32_t round = 0;
    uint64_t first = 0;  // element of the tensor
    uint32_t count = 0;
  };
  // What is wrong with it; nothing if it is right.
  std::optional<std::string> read(const Part& part, const std::byte* weights);
  // Since the last call, of the rank: operations of which some part was dropped.
  bool take_dropped(uint32_t rank);
  // Each update of each rank is in: of weights that nobody steps any more.
  std::optional<std::string> lacks(uint64_t first, uint32_t count, const std::byte* weights) const;

  const Updates& updates() const { return updates_; }
  bool has_bound() const;

 private:
  std::optional<std::string> judge(const Part& part, uint32_t other, uint32_t found,
                                   uint32_t before);

  const JobOptions& options_;
  Updates updates_;
  std::vector<std::vector<uint32_t>> begun_;  // by rank and tensor, rounds
  // By reader, then by tensor and the part's first element: what it has read, by rank.
  std::vector<std::map<std::pair<uint32_t, uint64_t>, std::vector<uint32_t>>> read_;
  std::vector<bool> dropped_;
  std::set<uint32_t> absent_, finished_;
};

}  // namespace pbox::sim
