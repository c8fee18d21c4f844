// Where the chunks of a job go on after its box was lost, computed from what its workers have
// consumed. All functions are pure.
//
// A round that any live worker has consumed is recovered by copying that result, never by summing
// again. A second sum could differ: its order may be different, and a restarted rank computes a
// different gradient. docs/protocol.md, "When the box is lost", has the rules of recovery.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "pipeline/job_shard.h"

namespace pbox::control {

struct ChunkStart {
  uint32_t round = 0;  // the round that opens
  // The rank that has consumed this round and gives its result back; kNoRank if no rank has
  // consumed it, so that it is summed.
  uint32_t copy_rank = pipeline::kNoRank;
  // The previous owner hands over the chunk's state, including the result of the round before.
  bool is_handed_over = false;

  // Returns whether the chunk begins with initial weights.
  bool begins() const { return round == 0 && !is_copied() && !is_handed_over; }
  bool is_copied() const { return copy_rank != pipeline::kNoRank; }
};

// The statement of one worker: the next round that it needs, for each chunk.
struct ConsumedRounds {
  uint32_t rank = 0;
  std::span<const uint32_t> rounds;
  // By chunk, whether the worker lacks the result of the round before, for example because it has
  // just taken a lost rank's place. Empty if it lacks none.
  std::vector<bool> lacks = {};

  bool holds(uint32_t chunk) const { return lacks.empty() || !lacks[chunk]; }
};

// Returns a start for each chunk. `stated` has at least one worker, and each has `chunk_count`
// rounds. kMismatch if two workers cannot have been in the same job: no worker is ever more than
// one round ahead of another.
Result<std::vector<ChunkStart>> plan_recovery(std::span<const ConsumedRounds> stated,
                                              uint32_t chunk_count);

// Adapts `starts` for workers that are new. Chunks of one tensor may be a round apart, and a new
// worker begins a tensor at the lowest of these rounds. The chunks that are ahead open at that
// round once more, so that a holder gives its result back. `chunk_counts` is by tensor. kMismatch
// if no worker holds a result that is needed.
Status open_for_newcomers(std::span<const ConsumedRounds> stated,
                          std::span<const uint32_t> chunk_counts, std::vector<ChunkStart>& starts);

// Adapts `starts` for mode optimize, where the weights were lost with the box. The worker that
// consumed a chunk's weights last gives them back, so the round before opens once more. Chunks that
// no worker has consumed begin at round 0. kBoxLost if no worker holds a chunk's weights.
Status open_for_weights(std::span<const ConsumedRounds> stated, std::vector<ChunkStart>& starts);

// Adapts `starts` to a state that the previous owner hands over. `finished` is the number of
// finished rounds by chunk; 0 if the previous owner had no weights for it. Chunks with weights go
// on with the next round. Returns false and leaves `starts` alone if the workers are not in the
// rounds in which the previous owner left them.
bool open_as_handed_over(std::span<const ConsumedRounds> stated, std::span<const uint64_t> finished,
                         std::vector<ChunkStart>& starts);

// Returns whether the worker is past a round that is summed again, so that it has no gradient for
// it. This happens to a rank that took a lost rank's place and began after a round whose result
// died with the box.
bool is_beyond(const ConsumedRounds& worker, const std::vector<ChunkStart>& starts);

// The following functions take the `starts` of a job that is open, which are empty if all chunks
// began at round 0. `open_rounds` is by chunk.

// Returns the chunks whose open round only `rank` can finish, by giving back what it consumed.
std::vector<uint32_t> copies_owed(const std::vector<ChunkStart>& starts, uint32_t rank,
                                  const std::vector<uint32_t>& open_rounds);
// Returns the rounds that a new rank begins with in mode optimize. Where another rank gives weights
// back, the new one only fetches them.
std::vector<uint32_t> rounds_for_newcomer(const std::vector<ChunkStart>& starts,
                                          std::vector<uint32_t> open_rounds);
// A new rank begins each tensor at the lowest open round of its chunks and needs the result of that
// round for the chunks that are ahead. Returns true if some of these results were lost with the
// former box, so that only other ranks have them. `chunk_counts` is by tensor.
bool lacks_for_newcomer(const std::vector<ChunkStart>& starts,
                        std::span<const uint32_t> chunk_counts,
                        const std::vector<uint32_t>& open_rounds);

}  // namespace pbox::control
