// A worker's own copy of the model, in jobs where it reads that instead of asking the box each time
// (SSP with a process cache, Ho et al., NIPS 2013; ESSP, Dai et al., AAAI 2015).
//
// A fragment that comes from the box says which iterations are in it: all workers' below its clock,
// and of this worker's own those below `applied`, which is never less than the clock. What a worker
// reads has its own iterations in any case (read my writes): the gradients that the fragment lacks
// are applied here as the box will, w -= rate * (scale * g), which is plain SGD. The bound on
// staleness is a bound on how many those can be: in the iteration r the clock is at least
// r + 1 - staleness, so the gradients of the staleness - 1 iterations before are kept.
//
// Not thread-safe. No allocation after construction: all memory but a record per chunk is cut out
// of an arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/numa_arena.h"
#include "nic/wire/dtype.h"
#include "nic/wire/sync.h"

namespace pbox::worker {

constexpr bool caches_reads(const wire::SyncSpec& sync) {
  return sync.model == wire::SyncModel::kEssp ||
         (sync.model == wire::SyncModel::kSsp && sync.reads == wire::Reads::kCached);
}

struct CachedChunk {
  uint32_t bytes = 0;           // on the wire
  uint32_t fragment_bytes = 0;  // all fragments but the last
  wire::Dtype dtype = wire::Dtype::kF32;
  float lr_scale = 1;
};

class ReadCache {
 public:
  struct Version {
    uint32_t clock = 0;    // 0: nothing is here
    uint32_t applied = 0;  // own iterations below
  };

  static uint64_t footprint_bytes(const std::vector<CachedChunk>& chunks, uint32_t staleness);

  // Takes footprint_bytes() of the arena, which must outlive this. `gradient_scale`: 1, or 1 /
  // world size for a mean.
  ReadCache(const std::vector<CachedChunk>& chunks, uint32_t staleness, float gradient_scale,
            NumaArena& arena);

  // A fragment from the box, of the length that the chunk's layout says. False, and nothing
  // changes, if what is here is at least as new.
  bool store(uint32_t chunk, uint32_t fragment, Version version, const std::byte* payload);

  // A fragment of the initial weights, whatever is here: what they are read from is what the box
  // has sent last of them, which after a move to another may be newer. No own iterations are in.
  void begin(uint32_t chunk, uint32_t fragment, const std::byte* payload);

  // The least of its fragments'.
  uint32_t clock(uint32_t chunk) const;
  // The chunk is new enough to be read in iteration `round`; which of its fragments are.
  bool is_readable(uint32_t chunk, uint32_t round) const;
  uint64_t readable_mask(uint32_t chunk, uint32_t round) const;

  // Reads the chunk, which must be readable, at the end of iteration `round` into `output`.
  // `gradient` is what was pushed in that iteration, with the learning rate `rate`; it is kept for
  // the reads to come. They hold the chunk's bytes, and may be the same. Each iteration from 1 on
  // is read once, in order.
  void read(uint32_t chunk, uint32_t round, float rate, const std::byte* gradient,
            std::byte* output);

 private:
  struct Chunk {
    CachedChunk layout;
    uint32_t fragments = 0;
    std::byte* model = nullptr;      // as it came
    std::byte* gradients = nullptr;  // by round % kept_: `bytes` each
    float* rates = nullptr;          // by round % kept_
    Version* versions = nullptr;     // by fragment
  };

  bool is_readable(const Version& version, uint32_t round) const;
  void read_fragment(const Chunk& chunk, uint32_t fragment, uint32_t round, float rate,
                     const std::byte* gradient, std::byte* output);

  std::vector<Chunk> chunks_;
  uint32_t staleness_;
  uint32_t kept_;  // gradients of earlier iterations
  float gradient_scale_;
};

}  // namespace pbox::worker
