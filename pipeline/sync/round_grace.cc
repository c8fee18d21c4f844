#include "pipeline/sync/round_grace.h"

#include <algorithm>
#include <span>

#include "base/clock.h"

namespace pbox::sync {
namespace {

constexpr size_t kSampledChunks = 4;

// Returns whether the chunk is sampled. Sampled chunks are spread over the shard's tensors.
bool is_sampled(uint32_t index, size_t chunks) {
  return index % ((chunks + kSampledChunks - 1) / kSampledChunks) == 0;
}

uint64_t median(std::span<uint64_t> values) {
  PBOX_DCHECK(!values.empty());
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

bool RoundGrace::waits(uint32_t index, const wire::SyncSpec& rule, uint64_t now_ns) {
  PBOX_DCHECK(index < chunks_.size());
  if (rule.grace_ms == 0) return false;
  if (!chunks_[index].is_open) {
    chunks_[index].quorum_ns = now_ns;
    waiting_.append(chunks_, index);
  }
  return now_ns < ends_ns(index, rule);
}

uint64_t RoundGrace::ends_ns(uint32_t index, const wire::SyncSpec& rule) const {
  PBOX_DCHECK(index < chunks_.size() && chunks_[index].is_open);
  const uint64_t quorum_ns = chunks_[index].quorum_ns;
  if (rule.grace_ms != wire::kGraceAuto) return quorum_ns + rule.grace_ms * kNanosPerMilli;
  return auto_ns() == 0 ? UINT64_MAX : quorum_ns + auto_ns();
}

void RoundGrace::note_arrival(uint32_t index, uint64_t now_ns) {
  PBOX_DCHECK(index < chunks_.size());
  if (!is_sampled(index, chunks_.size()) || !chunks_[index].is_open) return;
  add_sample(now_ns - chunks_[index].quorum_ns);
}

void RoundGrace::note_late_arrival(uint32_t index, uint64_t now_ns) {
  PBOX_DCHECK(index < chunks_.size());
  if (!is_sampled(index, chunks_.size()) || chunks_[index].former_ns == 0) return;
  add_sample(now_ns - chunks_[index].former_ns);
}

void RoundGrace::cancel(uint32_t index) {
  PBOX_DCHECK(index < chunks_.size());
  if (chunks_[index].is_open) waiting_.remove(chunks_, chunks_[index]);
}

// A push that was cut would have needed more time; how much is unknown. It counts as a sample of
// twice the time since the quorum. Thus `auto` grows as long as most pushes are cut.
void RoundGrace::close(uint32_t index, uint32_t ranks_cut, uint64_t now_ns) {
  PBOX_DCHECK(index < chunks_.size());
  Chunk& chunk = chunks_[index];
  chunk.former_ns = 0;
  if (!chunk.is_open) return;
  waiting_.remove(chunks_, chunk);
  chunk.former_ns = chunk.quorum_ns;
  if (!is_sampled(index, chunks_.size())) return;
  for (uint32_t rank = 0; rank < ranks_cut; ++rank) {
    add_sample(2 * (now_ns - chunk.quorum_ns));
  }
}

void RoundGrace::discount(uint64_t gap_ns) {
  for (uint32_t index = oldest(); index != kNone; index = chunks_[index].next) {
    PBOX_DCHECK(chunks_[index].is_open);
    chunks_[index].quorum_ns += gap_ns;
  }
}

void RoundGrace::add_sample(uint64_t late_ns) {
  samples_ns_[sample_count_++ % kSamplesKept] = late_ns;
  if (sample_count_ < kSamplesMin) return;
  std::array<uint64_t, kSamplesKept> values = samples_ns_;
  const std::span known(values.data(), std::min(sample_count_, uint64_t{kSamplesKept}));
  const uint64_t middle = median(known);
  PBOX_DCHECK(known.size() >= kSamplesMin);
  for (uint64_t& value : known) value = value > middle ? value - middle : middle - value;
  auto_ns_.set(std::max(middle + kDeviations * median(known), kAutoMinNs));
}

}  // namespace pbox::sync
