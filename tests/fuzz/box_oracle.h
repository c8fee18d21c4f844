// An independent account of what one job's shard must hold. It is told of every fragment that the
// box has counted as aggregated, and adds it with the scalar reference implementations, in the
// order of arrival. It checks the content of each result packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "nic/wire/header.h"
#include "tests/fuzz/box_jobs.h"
#include "tests/fuzz/slot_oracle.h"
#include "tests/fuzz/sync_oracle.h"

namespace pbox::fuzz {

class BoxOracle {
 public:
  // `shape` outlives the oracle. Its admissions, absent ranks and generations may change.
  explicit BoxOracle(const JobShape& shape);

  const JobShape& shape() const { return shape_; }
  // Called when the shape's absent ranks have changed, so that some rounds may be complete now.
  // Here and below, `now_ns` is the engine's time.
  void somebody_excluded(uint64_t now_ns);
  // Ends the rounds whose grace is over.
  void end_past_grace(uint64_t now_ns);
  uint32_t open_round(uint32_t chunk) const { return chunks_[chunk].open_round; }
  // Returns the round that the rank pushes next if it follows the protocol.
  uint32_t next_round(uint32_t chunk, uint32_t rank) const;
  // Ends the process unless the shard's counts of waiting reads agree with FluentPS's rules.
  void check_parked(const pipeline::JobShard& shard) const;
  // Ends the process unless all answers that are due have been sent. Called when nothing is left to
  // send, and nothing was lost.
  void check_all_answered() const;
  uint64_t rounds_finished() const { return rounds_finished_; }
  bool awaits_copy_of(uint32_t rank) const { return chunks_[0].copy_rank == rank; }
  void set_learning_rate(float rate) { optimizer_.learning_rate = rate; }

  // Ends the process unless the fragment may count. It must be of this job and new from its rank,
  // and its round must be open or, if late pushes count, closed.
  void aggregated(const wire::Parsed& push, uint64_t now_ns);
  // Called when the box has refused the push because its rank disagrees with another rank. From now
  // on nothing may count. Ends the process unless the push disagrees with the slot's open round.
  void refused(const wire::Parsed& push, const pipeline::ShapeMismatch& mismatch);
  bool has_mismatch() const { return has_mismatch_; }
  // Ends the process unless the result is that of the newest finished round, bit for bit.
  void check_result(const wire::Header& header, const std::byte* payload);
  // Does the same for a packet that names fragments of a result as zero.
  void check_zeros(const wire::Header& header, const std::byte* payload);
  // Ends the process unless the box's report of a rank's fragments is true.
  void check_status(const wire::Header& header, const wire::StatusPayload& status) const;

 private:
  // The newest round that a rank has pushed, and the fragments of it.
  struct Pushed {
    uint32_t round = 0;
    uint64_t mask = 0;
  };

  struct Chunk {
    uint32_t open_round = 0;
    uint32_t copy_rank = pipeline::kNoRank;
    std::vector<uint64_t> claimed;       // by rank
    std::vector<uint32_t> contributors;  // by fragment; of round open_round - 1
    std::vector<uint64_t> weight_sums;   // by fragment; of the open round
    // For model `drop`: when the open round reached its quorum, if it waits for more ranks; by
    // rank, the newest push to a closed round; by fragment, the late pushes in the open round's
    // sum.
    std::optional<uint64_t> quorum_ns;
    std::vector<Pushed> pushed;
    std::vector<uint32_t> late;
    std::vector<float> sum, weights, state;
    std::vector<std::byte> result;   // result of round open_round - 1
    std::optional<SyncOracle> sync;  // from round 1 on, if pushes are applied on arrival
    std::optional<SlotOracle> slot;  // in jobs of collectives
  };

  uint32_t rank_of(uint32_t spi) const;
  uint64_t sum(Chunk& chunk, uint32_t rank, const wire::Parsed& push);
  uint64_t add_zeros(Chunk& chunk, uint32_t rank, const wire::Parsed& push);
  void add_late(Chunk& chunk, uint32_t rank, const wire::Parsed& push);
  bool ends(Chunk& chunk, uint64_t now_ns) const;
  void average(Chunk& chunk) const;
  void finish(Chunk& chunk);
  void open_next(Chunk& chunk);
  void advance(Chunk& chunk);
  void step(Chunk& chunk, bool scales);

  const JobShape& shape_;
  optimizer::OptimizerSpec optimizer_;
  std::vector<Chunk> chunks_;
  uint64_t rounds_finished_ = 0;
  bool has_mismatch_ = false;
};

}  // namespace pbox::fuzz
