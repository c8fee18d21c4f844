#include "pipeline/egress_queue.h"

#include <algorithm>

#include "base/check.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {
namespace {

// std::push_heap keeps the greatest element in front, so "less" means "leaves later".
constexpr auto kLeavesLater = [](const auto& a, const auto& b) {
  return b.place.is_before(a.place);
};

}  // namespace

void EgressQueue::reserve(size_t results, bool answers) {
  heap_.reserve(results);
  if (answers) answers_.reserve(kAnswerCapacity);
  PBOX_DCHECK(heap_.empty() && resends_.empty());
  resends_.reserve(kResendCapacity);
}

void EgressQueue::give_back(const FanOut& rest) {
  PBOX_DCHECK(rest.chunk != nullptr);
  if (heap_.size() == heap_.capacity()) drop_superseded();
  PBOX_DCHECK(heap_.size() < heap_.capacity());
  heap_.push_back(rest);
  std::push_heap(heap_.begin(), heap_.end(), kLeavesLater);
}

// Drops results that a newer result of the same chunk has replaced: exclusions may finish several
// rounds of a chunk before any of their results has left.
void EgressQueue::drop_superseded() {
  std::erase_if(heap_, [](const FanOut& one) { return one.round + 1 != one.chunk->open_round(); });
  std::make_heap(heap_.begin(), heap_.end(), kLeavesLater);
}

bool EgressQueue::pop(FanOut& next) {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), kLeavesLater);
  next = heap_.back();
  heap_.pop_back();
  PBOX_DCHECK(next.chunk != nullptr);
  PBOX_DCHECK(heap_.empty() || !heap_.front().place.is_before(next.place));
  return true;
}

bool EgressQueue::push_resend(const Answer& asked, int32_t priority) {
  PBOX_DCHECK(asked.chunk != nullptr);
  if (newest_resend_.chunk == asked.chunk && newest_resend_.round == asked.round &&
      newest_resend_.rank == asked.rank && newest_resend_.in_full == asked.in_full) {
    const auto newest = std::find_if(resends_.begin(), resends_.end(), [&](const Answer& one) {
      return one.place.sequence == newest_resend_.place.sequence;
    });
    if (newest != resends_.end()) {
      PBOX_DCHECK(newest->chunk == asked.chunk && newest->rank == asked.rank);
      newest->mask |= asked.mask;
      return true;
    }
  }
  if (resends_.size() == resends_.capacity()) return false;
  newest_resend_ = asked;
  newest_resend_.place = {priority, take_sequence()};
  insert(resends_, newest_resend_);
  return true;
}

const Answer* EgressQueue::oldest_resend() const {
  const auto oldest = std::min_element(
      resends_.begin(), resends_.end(),
      [](const Answer& a, const Answer& b) { return a.place.sequence < b.place.sequence; });
  return oldest == resends_.end() ? nullptr : &*oldest;
}

bool EgressQueue::pop_oldest_resend(Answer& oldest) {
  const Answer* found = oldest_resend();
  if (found == nullptr) return false;
  oldest = *found;
  PBOX_DCHECK(oldest.chunk != nullptr && oldest.mask != 0);
  resends_[static_cast<size_t>(found - resends_.data())] = resends_.back();
  resends_.pop_back();
  std::make_heap(resends_.begin(), resends_.end(), kLeavesLater);
  return true;
}

bool EgressQueue::push_answer(const Answer& asked, int32_t priority) {
  PBOX_DCHECK(asked.chunk != nullptr);
  if (answers_.size() == answers_.capacity()) return false;
  Answer answer = asked;
  answer.place = {priority, take_sequence()};
  insert(answers_, answer);
  return true;
}

void EgressQueue::insert(std::vector<Answer>& heap, const Answer& answer) {
  PBOX_DCHECK(answer.chunk != nullptr && answer.mask != 0);
  PBOX_DCHECK(heap.size() < heap.capacity());
  heap.push_back(answer);
  std::push_heap(heap.begin(), heap.end(), kLeavesLater);
}

bool EgressQueue::take_top(std::vector<Answer>& heap, Answer& next) {
  if (heap.empty()) return false;
  std::pop_heap(heap.begin(), heap.end(), kLeavesLater);
  next = heap.back();
  PBOX_DCHECK(next.chunk != nullptr && next.mask != 0);
  heap.pop_back();
  PBOX_DCHECK(heap.empty() || !heap.front().place.is_before(next.place));
  return true;
}

}  // namespace pbox::pipeline
