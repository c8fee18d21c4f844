// An independent account of one slot of a job of collectives: the shape of its open round, and the
// correct result of its last finished round. It computes one element at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nic/wire/collective.h"
#include "nic/wire/header.h"
#include "tests/fuzz/box_jobs.h"

namespace pbox::fuzz {

class SlotOracle {
 public:
  // `shape` outlives the oracle.
  explicit SlotOracle(const JobShape& shape) : shape_(shape) {}

  // Returns the fragments of the slot that the rank no longer owes after this push: those that it
  // carries, and those that the round does not have. Ends the process unless the push has the open
  // round's shape, and a length that it may have. `is_copy`: the push gives back a result.
  uint64_t aggregated(const wire::Parsed& push, bool is_copy);
  // Returns true if the header states a valid shape other than that of the open round, or if that
  // round has no shape yet.
  bool disagrees(const wire::Header& header) const;
  void finish();
  // Ends the process unless this is what the rank must get from the last finished round.
  void check_result(uint32_t rank, const wire::Header& header, const std::byte* payload) const;

 private:
  struct Round {
    wire::RoundShape shape;
    bool is_shaped = false;
    bool is_copy = false;
    uint32_t last_bytes = 0;
    uint64_t combined = 0;              // fragments that some rank has pushed with data
    std::vector<std::byte> value = {};  // elements, in the type in which they are combined
  };

  void combine(const wire::Parsed& push);

  const JobShape& shape_;
  Round open_;
  wire::RoundShape finished_;      // shape of the newest finished round
  std::vector<std::byte> result_;  // as it is sent; empty if it is sent to no rank
};

}  // namespace pbox::fuzz
