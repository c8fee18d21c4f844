// The rules of the consistency models, as pure functions: which read must wait, and until when. Any
// thread may call them.
//
// Sources: FluentPS (CLUSTER 2019), whose rules cover BSP, ASP, SSP and PSSP; Petuum for cached
// reads (Ho et al., NIPS 2013; Dai et al., AAAI 2015). In their terms, V is the oldest iteration
// that some rank has not pushed yet, F is the newest that any rank has pushed, and the lead of a
// read of iteration i is k = i - V.
#pragma once

#include <cstdint>
#include <string_view>

#include "nic/wire/sync.h"

namespace pbox::sync {

// A rank that has pushed `round` in full and wants to read.
struct Reader {
  uint64_t seed = 0;  // hash of the job's name (seed_of); draw() uses seed, rank and round
  uint32_t rank = 0;
  uint64_t round = 0;
  uint64_t slowest = 0;    // V, with this push counted
  uint64_t fastest = 0;    // F, with this push counted
  float significance = 1;  // the push's, in [0, 1]; used only with SyncSpec::by_gradient
};

// Returns a hash of the job's name. It is the same in all parts of the job, on every box.
uint64_t seed_of(std::string_view job);

// Returns a number in [0, 1) from a hash, so that all chunks, pipelines and boxes draw the same
// number without a message. So a rank's iteration waits with the stated probability, however many
// chunks and parts the job has. FluentPS draws once per server instead.
double draw(uint64_t seed, uint32_t rank, uint64_t round);

// Returns true if the read must wait. Reads that are cached or answered (wire::Reads) wait if the
// data is older than the model allows.
bool blocks(const wire::SyncSpec& spec, const Reader& reader);

// Returns the value that V must reach before a parked read of `round` is released. With soft
// release this is the next value of V.
uint64_t awaited_clock(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest);

// Returns true if a parked read of `round` is released now that V has advanced to `slowest`.
bool releases(const wire::SyncSpec& spec, uint64_t round, uint64_t slowest);

// Returns whether a running chunk may change from one rule to the other. Rules that apply pushes on
// arrival may follow each other, because they have the same state, and so may rules of `drop`. A
// rule with cached reads cannot change, because the workers' copies are made for its staleness.
bool may_follow(const wire::SyncSpec& former, const wire::SyncSpec& next);

// True if workers read from their own copies.
constexpr bool reads_cached(const wire::SyncSpec& spec) {
  return wire::keeps_copies(spec);
}

// True if a read waits until the data has the clock that the bound on staleness demands. Otherwise
// it depends on the reader's lead whether a read waits.
constexpr bool waits_for_clock(const wire::SyncSpec& spec) {
  return spec.model == wire::SyncModel::kEssp || spec.reads != wire::Reads::kFresh;
}

// True if every rank is sent the data whenever the minimum clock advances. Where each push is
// answered with the data, a rank has no use for that: unless it waits, the answer to its last push
// was at least as new.
constexpr bool sends_unasked(const wire::SyncSpec& spec) {
  return spec.model == wire::SyncModel::kEssp && reads_cached(spec);
}

}  // namespace pbox::sync
