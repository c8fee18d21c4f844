// The rules of the consistency models, as functions of values: which read must wait, and until
// when. Any thread may call them.
//
// Sources: FluentPS (CLUSTER 2019), whose rules cover BSP, ASP, SSP and PSSP; Petuum for cached
// reads (Ho et al., NIPS 2013; Dai et al., AAAI 2015). In their terms, V is the oldest iteration
// that some rank has not pushed yet, F is the newest that any rank has pushed, and the lead of a
// read of iteration i is k = i - V.
#pragma once

#include <cstdint>

#include "nic/wire/sync.h"

namespace pbox::sync {

// A rank that has pushed `round` in full and wants to read.
struct Reader {
  uint32_t epoch = 0;  // the session's; the draw depends on epoch, rank and round
  uint32_t rank = 0;
  uint64_t round = 0;
  uint64_t slowest = 0;  // V, with this push counted
  uint64_t fastest = 0;  // F, with this push counted
};

// Returns a number in [0, 1) from a hash, so that all chunks and pipelines of a box draw the same
// without a message. A rank's iteration thus waits with the stated probability, however many chunks
// it has. FluentPS draws once per server instead.
double draw(uint32_t epoch, uint32_t rank, uint64_t round);

// Returns true if the read must wait. Cached reads wait if the data is older than the model allows.
bool blocks(const wire::SyncSpec& spec, const Reader& reader);

// Returns the value that V must reach before a parked read of `round` is released. With soft
// release that is the next value of V.
uint64_t awaited_clock(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest);

// Returns true if a parked read of `round` is released now that V has advanced to `slowest`.
bool releases(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest);

// True if workers read from their own copies. With ESSP they always do.
constexpr bool reads_cached(const wire::SyncSpec& spec) {
  return spec.model == wire::SyncModel::kEssp || spec.reads == wire::Reads::kCached;
}

}  // namespace pbox::sync
