// Where a job goes on after its box was lost: from what its workers have consumed. Pure.
//
// A round that any live worker consumed is recovered by copying that result, never by summing again
// (docs/protocol.md, "When the box is lost"): a sum in another order, or with another gradient of a
// rank that was restarted, would be another result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "pipeline/job_shard.h"

namespace pbox::appliance {

struct ChunkStart {
  uint32_t round = 0;                      // the round that opens
  uint32_t copy_rank = pipeline::kNoRank;  // who consumed it already, and gives it back; kNoRank:
                                           // nobody has, it is summed
  bool is_handed_over = false;  // the box before gives its state; what it made of the round before
                                // is here too
  // With initial weights.
  bool begins() const { return round == 0 && copy_rank == pipeline::kNoRank && !is_handed_over; }
};

// What one worker states: for each chunk the next round whose result it needs.
struct ConsumedRounds {
  uint32_t rank = 0;
  std::span<const uint32_t> rounds;
  // By chunk: the result of the round before is not there to be given back; empty: all are. So it
  // is with a rank that has just taken a lost one's place.
  std::vector<bool> lacks = {};

  bool holds(uint32_t chunk) const { return lacks.empty() || !lacks[chunk]; }
};

// By chunk. `stated` holds at least one worker, each with chunk_count rounds. An error if two
// workers cannot have been in one job: nobody is more than one round ahead of another.
Result<std::vector<ChunkStart>> plan_recovery(std::span<const ConsumedRounds> stated,
                                              uint32_t chunk_count);

// For workers that are new. Chunks of a tensor may be a round apart, and such a worker begins the
// tensor at the least: what that round gave of the others must be had from somebody, so they open
// at it once more, to be copied. `chunk_counts`: by tensor. An error if nobody holds it.
Status open_for_newcomers(std::span<const ConsumedRounds> stated,
                          std::span<const uint32_t> chunk_counts, std::vector<ChunkStart>& starts);

// Where weights were on the box too: those of every chunk are given back by who consumed them last,
// so that the round before the one to go on with opens once more, to be copied. Chunks that nobody
// has consumed any of begin at round 0. An error if nobody holds them.
Status open_for_weights(std::span<const ConsumedRounds> stated, std::vector<ChunkStart>& starts);

// Where the box before hands over what it had: `finished` says after how many rounds, by chunk; 0:
// of that it had no weights. Such chunks go on with the next round. False, and nothing is changed,
// if the workers are not where that box left them.
bool open_as_handed_over(std::span<const ConsumedRounds> stated, std::span<const uint64_t> finished,
                         std::vector<ChunkStart>& starts);

// True if a round is summed again that this worker is beyond, and has no gradient for: it began
// behind a round whose result died with the box and the rank whose place it took.
bool is_beyond(const ConsumedRounds& worker, const std::vector<ChunkStart>& starts);

}  // namespace pbox::appliance
