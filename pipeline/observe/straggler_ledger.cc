#include "pipeline/observe/straggler_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace pbox::pipeline {

void StragglerLedger::reserve(size_t chunk_count) {
  PBOX_DCHECK(chunk_count < kNone);
  chunks_ = std::vector<Chunk>(chunk_count);
}

void StragglerLedger::arrived(uint32_t index, uint64_t now_ns) {
  PBOX_DCHECK(index < chunks_.size());
  Chunk& chunk = chunks_[index];
  chunk.newest_ns = now_ns;
  PBOX_DCHECK(!chunk.is_open || chunk.first_ns <= now_ns);
  if (chunk.is_open) return;
  chunk.first_ns = now_ns;
  open_.append(chunks_, index);
}

StragglerLedger::Lateness StragglerLedger::finished(uint32_t index, uint64_t round, uint32_t rank,
                                                    uint64_t now_ns) {
  PBOX_DCHECK(index < chunks_.size());
  Chunk& chunk = chunks_[index];
  // There was no other arrival: the job has one rank, or a rank has given back a consumed result.
  if (!chunk.is_open) return {};
  open_.remove(chunks_, chunk);
  const Lateness lateness{.skew_ns = now_ns - chunk.first_ns, .late_ns = now_ns - chunk.newest_ns};
  PBOX_DCHECK(lateness.late_ns <= lateness.skew_ns);
  skews_.add(lateness.skew_ns);
  chunk.late_ns.add(lateness.late_ns);
  if (lateness.late_ns > chunk.worst.late_ns.get()) {
    chunk.worst.late_ns.set(lateness.late_ns);
    chunk.worst.round.set(round);
    chunk.worst.rank.set(rank);
  }
  note_round(index, round, rank, lateness.late_ns, now_ns);
  return lateness;
}

void StragglerLedger::discount(uint64_t gap_ns) {
  for (uint32_t index = oldest(); index != kNone; index = chunks_[index].next) {
    PBOX_DCHECK(chunks_[index].is_open);
    chunks_[index].first_ns += gap_ns;
    chunks_[index].newest_ns += gap_ns;
  }
}

void StragglerLedger::ended(uint32_t index) {
  PBOX_DCHECK(index < chunks_.size());
  if (chunks_[index].is_open) open_.remove(chunks_, chunks_[index]);
}

void StragglerLedger::note_round(uint32_t index, uint64_t round, uint32_t rank, uint64_t late_ns,
                                 uint64_t now_ns) {
  Round& kept = rounds_[round % kRoundsKept];
  if (kept.round.get() > round + 1) return;  // the chunk is kRoundsKept or more rounds behind
  const uint64_t first_ns = chunks_[index].first_ns;
  if (kept.round.get() != round + 1) {
    kept.round.set(0);
    kept.begun_ns.set(first_ns);
    kept.chunks.set(0);
    kept.late_ns.set(late_ns);
    kept.rank.set(rank);
    kept.chunk.set(index);
    kept.round.set(round + 1);
  } else if (late_ns > kept.late_ns.get()) {
    kept.late_ns.set(late_ns);
    kept.rank.set(rank);
    kept.chunk.set(index);
  }
  kept.begun_ns.set(std::min(kept.begun_ns.get(), first_ns));
  kept.finished_ns.set(now_ns);
  kept.chunks.add(1);
  PBOX_DCHECK(kept.round.get() == round + 1);
  if (kept.chunks.get() == chunks_.size()) round_times_.add(now_ns - kept.begun_ns.get());
}

}  // namespace pbox::pipeline
