// Who must wait, and until when: the rules of the consistency models, as functions of values.
//
// FluentPS (CLUSTER 2019), whose rules cover BSP, ASP, SSP and PSSP; cached reads after Petuum (Ho
// et al., NIPS 2013; Dai et al., AAAI 2015). In their terms: V is the oldest iteration that
// somebody has not pushed yet, F the newest that anybody has, and the lead of a read of iteration i
// is k = i - V.
#pragma once

#include <cstdint>

#include "nic/wire/sync.h"

namespace pbox::sync {

// A rank has pushed `round` in full and wants to read.
struct Reader {
  uint32_t epoch = 0;  // of the session: with rank and round, what the draw depends on
  uint32_t rank = 0;
  uint64_t round = 0;
  uint64_t slowest = 0;  // V, with this push counted
  uint64_t fastest = 0;  // F, with this push counted
};

// In [0, 1), from a hash: the same on all chunks and pipelines of a box without a message. So a
// rank's iteration waits with the stated probability, however many chunks it has; FluentPS draws
// once per server.
double draw(uint32_t epoch, uint32_t rank, uint64_t round);

// True if the read must wait. For cached reads: if the data is older than the model allows.
bool blocks(const wire::SyncSpec& spec, const Reader& reader);

// V as it must be before the read of a rank that waits may go on. Of soft release the next one.
uint64_t awaited_clock(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest);

// True if a read of `round` that waits may go on now that V has advanced to `slowest`.
bool releases(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest);

// ESSP's reads are always of the worker's own copy.
constexpr bool reads_cached(const wire::SyncSpec& spec) {
  return spec.model == wire::SyncModel::kEssp || spec.reads == wire::Reads::kCached;
}

}  // namespace pbox::sync
