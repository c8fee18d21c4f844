// An independent account of one chunk whose pushes are applied on arrival, once it has its initial
// weights. It implements FluentPS's server for one shard as its authors describe it, with the
// scalar reference implementation of each optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "nic/wire/header.h"
#include "tests/fuzz/box_jobs.h"

namespace pbox::fuzz {

class SyncOracle {
 public:
  // `shape` outlives the oracle. Its absent ranks may change.
  SyncOracle(const JobShape& shape, const std::vector<float>& weights);

  // Returns FluentPS's V: the oldest round that some present rank has not pushed.
  uint64_t oldest() const { return oldest_; }
  uint64_t next(uint32_t rank) const { return next_[rank]; }
  // These return the number of reads that wait now, and of all reads that ever had to wait. Each
  // push is also a read.
  size_t parked_count() const { return parked_.size(); }
  uint64_t delayed() const { return delayed_; }

  // Applies a fragment. Ends the process if the rank has pushed it before.
  void aggregated(uint32_t rank, const wire::Parsed& push, const optimizer::OptimizerSpec& spec);
  // Called when the shape's absent ranks have changed.
  void somebody_excluded();
  // Ends the process unless the packet carries the current weights, and describes them correctly.
  void check_result(uint32_t rank, const wire::Header& header, const std::byte* payload);
  void check_status(uint32_t rank, const wire::Header& header,
                    const wire::StatusPayload& status) const;
  // Ends the process unless each rank whose read does not wait was sent the whole answer.
  void check_all_answered() const;

 private:
  bool is_fresh() const;
  uint64_t fastest() const;
  bool blocks(uint32_t rank, uint64_t round) const;
  void complete_push(uint32_t rank);
  void move_oldest();
  uint32_t applied(uint32_t rank, uint32_t fragment) const;

  const JobShape& shape_;
  std::vector<float> weights_;
  std::vector<std::vector<float>> state_;  // by fragment
  std::vector<uint64_t> updates_;          // by fragment
  std::vector<uint64_t> next_;             // by rank: the round it pushes next
  std::vector<uint64_t> claimed_;          // by rank: fragments of that round
  std::vector<uint64_t> answered_;         // by rank: fragments sent as the answer to its last push
  std::map<uint32_t, uint64_t> parked_;    // by rank: its read waits until oldest_ exceeds this
  uint64_t oldest_ = 1;
  uint64_t delayed_ = 0;
};

// Returns whether all elements have equal bits or are NaN on both sides. The processor decides
// which of two NaNs an addition keeps.
bool same_elements(wire::Dtype dtype, const std::byte* left, const std::byte* right,
                   uint32_t bytes);

}  // namespace pbox::fuzz
