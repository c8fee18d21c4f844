// What a chunk has in addition in a job whose consistency model is not BSP, and which replies are
// on their way. In the shard's arena; touched by the pipeline's core alone.
#pragma once

#include <cstdint>

#include "pipeline/sync/progress.h"
#include "pipeline/sync/rank_set.h"

namespace pbox::pipeline {
struct Chunk;
}

namespace pbox::sync {

// What a rank has pushed of the newest round that it has pushed anything of and that is closed.
struct Pushed {
  uint32_t round = 0;
  uint64_t mask = 0;
  uint64_t counted = 0;  // of mask: those that came before the round closed, and so are in it
};

struct ChunkSync {
  // Of models that apply on arrival.
  Progress progress;
  uint64_t* next = nullptr;     // by rank; progress's
  uint64_t* updates = nullptr;  // by fragment: how often the optimizer has stepped it
  // Of model drop: by rank.
  Pushed* pushed = nullptr;

  RankSet owed;         // ranks whose reply is to leave: the chunk as it then is
  bool queued = false;  // it waits in the egress queue for its turn

  // Of models that apply on arrival: the rank has pushed `round` and nothing after it, and may
  // read.
  bool awaits(uint32_t rank, uint32_t round) const {
    return static_cast<uint32_t>(progress.next(rank)) == round + 1 && !progress.is_parked(rank);
  }
};

// The replies at hand: of one chunk, to one rank after the other.
struct Departure {
  pipeline::Chunk* chunk = nullptr;
  RankSet ranks;  // still to be served; empty: none at hand
  uint32_t rank = 0;
  uint32_t fragment = 0;
};

}  // namespace pbox::sync
