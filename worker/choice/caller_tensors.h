// Offers the tensors of a job's parts as the caller knows them. A caller's tensor whose compression
// is chosen while the job runs stands for several of the job's tensors (chosen_tensors.h). Pure;
// used on the I/O thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "worker/choice/chosen_tensors.h"
#include "worker/membership/part_set.h"

namespace pbox::worker {

class CallerTensors {
 public:
  // Call it after the join. `parts` outlives this object. `chosen` has made the parts' tensors;
  // null if they are the caller's own.
  CallerTensors(PartSet& parts, std::unique_ptr<ChosenTensors> chosen);

  // These work like the functions of PartSet with the same names, for the caller's tensors.
  void start(const Operation& operation, uint64_t now_ns);
  std::vector<uint32_t> take_completed(uint64_t now_ns);
  uint32_t round(uint32_t tensor) const;
  uint32_t contributors(uint32_t tensor) const;
  PartSet::Late laggard(uint32_t tensor, uint64_t now_ns) const;
  void ask_priorities(wire::PriorityPolicy policy, const std::vector<int32_t>& by_tensor);
  size_t take_chunk_times(std::span<ChunkTimes> times);

  // Returns null if the tensor's compression is not chosen.
  const CompressionChoice* choice(uint32_t tensor) const {
    return chosen_ ? chosen_->choice(tensor) : nullptr;
  }

 private:
  uint32_t awaited(uint32_t tensor) const { return chosen_ ? chosen_->awaited(tensor) : tensor; }
  void start_chosen();

  PartSet& parts_;
  std::unique_ptr<ChosenTensors> chosen_;
};

}  // namespace pbox::worker
