// The additional state of a chunk in a relaxed job, and the replies that are leaving. It lies in
// the shard's arena, and only the pipeline's core touches it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/limits.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/sync.h"
#include "pipeline/sync/progress.h"
#include "pipeline/sync/rank_set.h"
#include "pipeline/sync/significance.h"

namespace pbox::pipeline {
struct Chunk;
}

namespace pbox::sync {

// Models `drop` and BSP: what a rank has pushed of its newest closed round, which is the newest one
// that it has pushed any fragment of.
struct Pushed {
  uint32_t round = 0;
  uint64_t mask = 0;  // fragments pushed
  uint64_t counted =
      0;  // the part of `mask` that arrived before the round closed: it is in the sum
  // Where results are deltas: since that push the rank has asked for weights in full, or has begun
  // a new session. So it may lack the weights to which a delta is to be added.
  bool lacks_weights = false;
};

// A reply to one rank, and the part of it that has left.
struct ReplyProgress {
  void begin() { first = 0, sent = 0; }
  bool has_begun() const { return first != 0 || sent != 0; }
  // Notes the chunk's newest round. A worker takes all of a result from one round, so fragments
  // that left with an older round leave again, but after the others. Otherwise a rank would never
  // have a whole result if each of its replies took longer than a round.
  void follow(uint32_t newest_round) {
    if (newest_round != round) sent = 0;
    round = newest_round;
  }
  bool has_left(uint32_t count) const { return sent == wire::full_mask(count); }
  // Returns the next of `count` fragments to leave. At least one must be left.
  uint32_t next(uint32_t count) const {
    PBOX_DCHECK(first < count && !has_left(count));
    const uint64_t rest = wire::full_mask(count) & ~sent;
    const uint64_t from_first = rest >> first << first;
    return static_cast<uint32_t>(std::countr_zero(from_first != 0 ? from_first : rest));
  }
  // Notes that `covered` fragments, from `fragment` on, have left. `count`: fragments of the reply.
  void note_left(uint32_t fragment, uint32_t covered, uint32_t count) {
    PBOX_DCHECK(fragment + covered <= count);
    sent |= wire::full_mask(covered) << fragment;
    first = (fragment + covered) % count;
  }

  uint32_t rank = 0;
  uint32_t first = 0;    // fragments from here on leave first, then those before it
  uint64_t sent = 0;     // one bit per fragment that has left
  uint32_t round = 0;    // round of the fragments sent; valid only with models `drop` and BSP
  bool in_full = false;  // the fragments were sent in full (pipeline/result_form.h)
};

struct ChunkSync {
  wire::SyncSpec spec;  // the rule in force; Engine::change_rule changes it
  // The next fields are used by models that apply pushes on arrival.
  Progress progress;
  uint64_t* next = nullptr;     // by rank: the memory that `progress` works on
  uint64_t* updates = nullptr;  // by fragment: how often the optimizer has stepped it
  PushSize* sizes = nullptr;    // by rank
  Significance significance;
  // Models `drop` and BSP, by rank. Null in other models.
  Pushed* pushed = nullptr;
  // SyncSpec::counts_late: by fragment, pushes of closed rounds that are in the open round's sum.
  std::array<uint16_t, limits::kFragmentCountMax> late{};

  RankSet replies_due;  // ranks that are due a reply, with the chunk as it is when the reply leaves
  bool queued = false;  // the chunk is in the egress queue
  // Models `drop` and BSP: a reply that a newer round has cut short. It goes on before any other
  // rank is served, or else faster ranks could cut it short again with each round that they close.
  std::optional<ReplyProgress> cut_short;

  // Called when the rank's session has ended: its next reply begins with the first fragment.
  void forget_cut_short(uint32_t rank) {
    if (cut_short && cut_short->rank == rank) cut_short.reset();
  }
  // SyncSpec::counts_late: true if a part of the rank's push of this closed round has arrived, and
  // the rest is still to come.
  bool is_pushing(uint32_t rank, uint32_t round, uint64_t full_mask) const {
    return spec.counts_late && pushed[rank].round == round && pushed[rank].mask != 0 &&
           pushed[rank].mask != full_mask;
  }
  // Models that apply on arrival: true if the rank has pushed `round` and no later one, and its
  // read is not parked.
  bool awaits(uint32_t rank, uint32_t round) const {
    return static_cast<uint32_t>(progress.next(rank)) == round + 1 && !progress.is_parked(rank);
  }
};

// The replies that are leaving: those of one chunk, to one rank after the other.
struct ReplyCursor {
  pipeline::Chunk* chunk = nullptr;
  RankSet ranks;  // ranks that are still to be served; empty: no reply is leaving
  ReplyProgress reply;
};

}  // namespace pbox::sync
