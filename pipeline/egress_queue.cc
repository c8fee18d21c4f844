#include "pipeline/egress_queue.h"

#include <algorithm>

#include "base/check.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {
namespace {

// std::push_heap keeps the greatest element in front, so "less" means "leaves later".
constexpr auto leaves_later = [](const auto& a, const auto& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  return a.sequence > b.sequence;
};

}  // namespace

void EgressQueue::reserve(size_t results, bool answers) {
  heap_.reserve(results);
  if (answers) answers_.reserve(kAnswerCapacity);
  PBOX_DCHECK(heap_.empty() && resend_head_ == resend_tail_);
  resends_.resize(kResendCapacity);
}

void EgressQueue::push(Chunk* chunk, uint32_t round, int32_t priority) {
  PBOX_DCHECK(chunk != nullptr);
  if (heap_.size() == heap_.capacity()) drop_superseded();
  PBOX_DCHECK(heap_.size() < heap_.capacity());
  heap_.push_back({chunk, round, priority, next_sequence_++});
  std::push_heap(heap_.begin(), heap_.end(), leaves_later);
}

// Exclusions may finish several rounds of a chunk before any of their results has left. Only the
// newest result still counts.
void EgressQueue::drop_superseded() {
  std::erase_if(heap_, [](const FanOut& one) { return one.round + 1 != one.chunk->open_round(); });
  std::make_heap(heap_.begin(), heap_.end(), leaves_later);
}

bool EgressQueue::pop(FanOut& next) {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), leaves_later);
  next = heap_.back();
  heap_.pop_back();
  PBOX_DCHECK(next.chunk != nullptr);
  return true;
}

bool EgressQueue::push_resend(const Resend& resend) {
  PBOX_DCHECK(resend.chunk != nullptr);
  PBOX_DCHECK(resend_tail_ - resend_head_ <= kResendCapacity);
  if (resend_tail_ != resend_head_) {
    Resend& last = resends_[(resend_tail_ - 1) % kResendCapacity];
    if (last.chunk == resend.chunk && last.round == resend.round && last.rank == resend.rank) {
      last.mask |= resend.mask;
      return true;
    }
  }
  if (resend_tail_ - resend_head_ >= kResendCapacity) return false;
  resends_[resend_tail_++ % kResendCapacity] = resend;
  return true;
}

bool EgressQueue::push_answer(const Resend& asked, int32_t priority) {
  PBOX_DCHECK(asked.chunk != nullptr);
  if (answers_.size() == answers_.capacity()) return false;
  return_answer({asked, priority, next_sequence_++});
  return true;
}

void EgressQueue::return_answer(const Answer& answer) {
  PBOX_DCHECK(answer.chunk != nullptr && answer.mask != 0);
  PBOX_DCHECK(answers_.size() < answers_.capacity());
  answers_.push_back(answer);
  std::push_heap(answers_.begin(), answers_.end(), leaves_later);
}

bool EgressQueue::pop_answer(Answer& next) {
  if (answers_.empty()) return false;
  std::pop_heap(answers_.begin(), answers_.end(), leaves_later);
  next = answers_.back();
  PBOX_DCHECK(next.chunk != nullptr && next.mask != 0);
  answers_.pop_back();
  return true;
}

bool EgressQueue::pop_resend(Resend& next) {
  if (resend_head_ == resend_tail_) return false;
  next = resends_[resend_head_++ % kResendCapacity];
  PBOX_DCHECK(next.chunk != nullptr);
  return true;
}

}  // namespace pbox::pipeline
