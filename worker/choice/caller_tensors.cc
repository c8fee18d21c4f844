#include "worker/choice/caller_tensors.h"

#include <utility>

namespace pbox::worker {

CallerTensors::CallerTensors(PartSet& parts, std::unique_ptr<ChosenTensors> chosen)
    : parts_(parts), chosen_(std::move(chosen)) {
  if (chosen_) chosen_->begin([this](uint32_t tensor) { return parts_.round(tensor); });
}

void CallerTensors::start(const Operation& operation, uint64_t now_ns) {
  if (!chosen_) return parts_.start(operation);
  chosen_->start(operation, now_ns);
  start_chosen();
}

void CallerTensors::start_chosen() {
  for (const Operation& operation : chosen_->take_operations()) parts_.start(operation);
}

std::vector<uint32_t> CallerTensors::take_completed(uint64_t now_ns) {
  std::vector<uint32_t> completed = parts_.take_completed();
  if (!chosen_ || completed.empty()) return completed;
  completed = chosen_->complete(completed, now_ns);
  start_chosen();
  return completed;
}

uint32_t CallerTensors::round(uint32_t tensor) const {
  const CompressionChoice* const own = choice(tensor);
  return own != nullptr ? own->round() : parts_.round(tensor);
}

uint32_t CallerTensors::contributors(uint32_t tensor) const {
  return parts_.contributors(awaited(tensor));
}

PartSet::Late CallerTensors::laggard(uint32_t tensor, uint64_t now_ns) const {
  return parts_.laggard(awaited(tensor), now_ns);
}

void CallerTensors::ask_priorities(wire::PriorityPolicy policy,
                                   const std::vector<int32_t>& by_tensor) {
  parts_.ask_priorities(policy, chosen_ ? chosen_->priorities(by_tensor) : by_tensor);
}

size_t CallerTensors::take_chunk_times(std::span<ChunkTimes> times) {
  const size_t count = parts_.take_chunk_times(times);
  if (!chosen_) return count;
  for (ChunkTimes& one : times.first(count)) one.tensor = chosen_->caller_of(one.tensor);
  return count;
}

}  // namespace pbox::worker
