// Model `drop` with a grace: which rounds have their quorum and still wait for other ranks, since
// when, and for how long. There is one object for each such shard. Only the pipeline's core touches
// it, except members marked "any thread". Nothing here allocates once reserve() is done.
//
// The grace `auto` gives most ranks the time that they need. A sample is how much later than the
// quorum a rank's push was complete. The grace is the median of the samples plus three times their
// median absolute deviation, so a rank that is stopped for long does not move it (hivemind, issue
// 676). Only four of the shard's chunks are sampled. Until there are kSamplesMin samples, a round
// waits for all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/counter.h"
#include "base/index_list.h"
#include "nic/wire/sync.h"

namespace pbox::sync {

class RoundGrace {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kSamplesKept = 64;
  static constexpr size_t kSamplesMin = 4;
  static constexpr uint64_t kDeviations = 3;
  static constexpr uint64_t kAutoMinNs = 1'000'000;  // equally fast ranks differ by less than this

  // Chunks are identified by their index in the shard. Called by the control thread before the
  // shard is installed, and only for jobs with model `drop`.
  void reserve(size_t chunk_count) { chunks_ = std::vector<Chunk>(chunk_count); }
  // Returns the bytes that reserve() takes. Any thread.
  static constexpr size_t reserved_bytes(size_t chunk_count) { return chunk_count * sizeof(Chunk); }
  bool is_reserved() const { return !chunks_.empty(); }

  // Returns whether the chunk's open round, which has its quorum but not all ranks, waits for more
  // of them. The first call for a round begins its grace.
  bool waits(uint32_t chunk, const wire::SyncSpec& rule, uint64_t now_ns);
  // Called when a rank's push is complete: of the chunk's open round, or of the last round, which
  // closed without this push (late). A push that came before the quorum is no sample.
  void note_arrival(uint32_t chunk, uint64_t now_ns);
  void note_late_arrival(uint32_t chunk, uint64_t now_ns);
  // Called when the open round has lost its quorum, because a rank was excluded.
  void cancel(uint32_t chunk);
  // Called when the open round closes. `ranks_cut` ranks are in the middle of their pushes.
  void close(uint32_t chunk, uint32_t ranks_cut, uint64_t now_ns);
  // Called when the box did not run for `gap_ns`: this time does not count as part of any grace.
  void discount(uint64_t gap_ns);

  // Returns the chunk whose open round has had its quorum the longest; kNone if no round waits.
  uint32_t oldest() const { return waiting_.head(); }
  // Returns the time at which the chunk's grace ends. UINT64_MAX: only when all ranks have pushed.
  uint64_t ends_ns(uint32_t chunk, const wire::SyncSpec& rule) const;
  // Returns the grace of `auto`; 0 while unknown, so that rounds wait for all ranks. Any thread.
  uint64_t auto_ns() const { return auto_ns_.get(); }

 private:
  struct Chunk {
    uint64_t quorum_ns = 0;  // when the open round reached its quorum; valid if `is_open`
    uint64_t former_ns = 0;  // when the last round reached its quorum; 0 if it had no grace
    uint32_t next = kNone;
    uint32_t previous = kNone;
    bool is_open = false;  // in the list of rounds that wait
  };

  void add_sample(uint64_t late_ns);

  std::vector<Chunk> chunks_;
  IndexList<Chunk> waiting_;  // in the order of their quorums
  std::array<uint64_t, kSamplesKept> samples_ns_{};
  uint64_t sample_count_ = 0;  // samples ever taken
  SingleWriterCounter auto_ns_;
};

}  // namespace pbox::sync
