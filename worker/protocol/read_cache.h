// A worker's own copy of the model, for jobs in which it reads this copy instead of asking the box
// each time (SSP with a process cache, Ho et al., NIPS 2013; ESSP, Dai et al., AAAI 2015).
//
// A fragment from the box says which iterations it includes: those of all workers below its
// `clock`, and this worker's own below `applied`, which is never less than the clock. A worker's
// reads always include its own iterations (read my writes). The gradients that a fragment lacks are
// applied here just as the box will apply them, w -= rate * (scale * g), which is plain SGD. With
// guard `zero` their unsound values count as 0, as on the box. The bound on staleness bounds the
// number of these gradients: in iteration r the clock is at least r + 1 - staleness, so the
// gradients of the last staleness - 1 iterations are kept.
//
// Not thread-safe. No allocation after construction, except in set_fragment_bytes(): all memory
// except the records of chunks and fragments is taken from an arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/numa_arena.h"
#include "nic/wire/dtype.h"
#include "nic/wire/guard.h"
#include "nic/wire/sync.h"

namespace pbox::worker {

struct CachedChunk {
  uint32_t bytes = 0;           // size of the chunk on the wire
  uint32_t fragment_bytes = 0;  // size of each fragment except the last
  wire::Dtype dtype = wire::Dtype::kF32;
  float lr_scale = 1;
};

class ReadCache {
 public:
  struct Version {
    uint32_t clock = 0;    // iterations of all workers that are included; 0: no data yet
    uint32_t applied = 0;  // own iterations that are included: those below this one
  };

  static uint64_t footprint_bytes(const std::vector<CachedChunk>& chunks, uint32_t staleness);

  // Takes footprint_bytes() of the arena, which must outlive this object. `gradient_scale`: 1 for a
  // sum, 1 / world size for a mean. `guard`: the job's.
  ReadCache(const std::vector<CachedChunk>& chunks, uint32_t staleness, float gradient_scale,
            const wire::GuardSpec& guard, NumaArena& arena);

  // A session begins whose fragments have this size. If it is another one, the copy has no data
  // until the box sends it again, because its versions are those of the former fragments.
  void set_fragment_bytes(uint32_t fragment_bytes);

  // Stores a fragment from the box. The payload has the length that the chunk's layout says.
  // Returns false and changes nothing if the stored fragment is at least as new.
  bool store(uint32_t chunk, uint32_t fragment, Version version, const std::byte* payload);

  // Stores a fragment of the initial weights, whatever is stored already. It replaces even a newer
  // version: after a move, another box may have sent newer weights than the ones now being read.
  // The initial weights include none of this worker's own iterations.
  void begin(uint32_t chunk, uint32_t fragment, const std::byte* payload);

  // Returns the minimum clock of the chunk's fragments.
  uint32_t clock(uint32_t chunk) const;
  // Returns whether the chunk is new enough to be read in iteration `round`, and which of its
  // fragments are.
  bool is_readable(uint32_t chunk, uint32_t round) const;
  uint64_t readable_mask(uint32_t chunk, uint32_t round) const;

  // Reads the chunk into `output` at the end of iteration `round`. The chunk must be readable.
  // `gradient` is what this worker pushed in that iteration, with the learning rate `rate`; it is
  // kept for later reads. Both buffers hold the chunk's bytes and may be the same. Each iteration
  // from 1 on is read once, in order.
  void read(uint32_t chunk, uint32_t round, float rate, const std::byte* gradient,
            std::byte* output);

 private:
  struct Chunk {
    CachedChunk layout;
    std::byte* model = nullptr;      // weights as received from the box
    std::byte* gradients = nullptr;  // `bytes` for each kept gradient, indexed by round % kept_
    float* rates = nullptr;         // learning rate of each kept gradient, indexed by round % kept_
    std::vector<Version> versions;  // indexed by fragment
  };

  bool is_readable(const Version& version, uint32_t round) const;
  void read_fragment(const Chunk& chunk, uint32_t fragment, uint32_t round, float rate,
                     const std::byte* gradient, std::byte* output);

  std::vector<Chunk> chunks_;
  uint32_t staleness_;
  uint32_t kept_;  // number of earlier iterations whose gradients are kept
  float gradient_scale_;
  wire::GuardSpec guard_;
};

}  // namespace pbox::worker
