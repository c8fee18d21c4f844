#include "worker/protocol/send_path.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pbox::worker {

SendPath::SendPath(uint64_t slack_ns, std::shared_ptr<CongestionWindow> congestion)
    : window_(slack_ns),
      congestion_(congestion ? std::move(congestion)
                             : std::make_shared<CongestionWindow>(slack_ns)) {
  congestion_->add_path();
}

bool SendPath::has_room(uint32_t bytes, int32_t priority, uint64_t now_ns) const {
  PBOX_DCHECK((bytes_ == 0) || !entries_.empty());
  const uint64_t window_bytes =
      congestion_->is_left_to_window() ? window_.bytes(now_ns) : UINT64_MAX;
  const bool fits = bytes_ == 0 || bytes_ + bytes <= window_bytes;
  if (fits && congestion_->has_room(bytes_, bytes, queued_ > 0)) return true;
  return window_bytes > 0 &&
         std::none_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
           return other.chunk != nullptr && other.priority >= priority;
         });
}

void SendPath::enter(const ExchangeState& owner, ExchangeChunk& chunk, int32_t priority,
                     bool is_pull, uint64_t now_ns) {
  PBOX_DCHECK(!chunk.on_path && owner.chunk_id(chunk) < owner.chunks.size());
  chunk.mark = window_.leave(bytes_, now_ns);
  chunk.on_path = true;
  chunk.path_sequence = ++newest_sequence_;
  PBOX_DCHECK(entries_.empty() || entries_.back().sequence < newest_sequence_);
  bytes_ += chunk.flight_bytes;
  congestion_->enter(chunk.flight_bytes);
  entries_.push_back({&owner, &chunk, newest_sequence_, priority, is_pull});
}

// The entry stays until drop_left(), because closing the gap would move half of the others.
void SendPath::take_off(Entry& entry) {
  PBOX_DCHECK(entry.chunk != nullptr && entry.chunk->path_sequence == entry.sequence);
  ExchangeChunk& chunk = *std::exchange(entry.chunk, nullptr);
  PBOX_DCHECK(chunk.on_path && bytes_ >= chunk.flight_bytes);
  bytes_ -= chunk.flight_bytes;
  congestion_->leave(chunk.flight_bytes);
  chunk.on_path = false;
  ++left_count_;
}

// Drops the entries at the front that have left, and all others once they are most of the entries.
void SendPath::drop_left() {
  while (!entries_.empty() && entries_.front().chunk == nullptr) {
    PBOX_DCHECK(left_count_ > 0);
    entries_.pop_front();
    --left_count_;
  }
  PBOX_DCHECK(left_count_ < entries_.size() || entries_.empty());
  if (left_count_ * 2 <= entries_.size()) return;
  std::erase_if(entries_, [](const Entry& entry) { return entry.chunk == nullptr; });
  left_count_ = 0;
}

void SendPath::leave(ExchangeChunk& chunk) {
  if (!chunk.on_path) return;
  const auto entry =
      std::lower_bound(entries_.begin(), entries_.end(), chunk.path_sequence,
                       [](const Entry& one, uint64_t sequence) { return one.sequence < sequence; });
  PBOX_DCHECK(entry != entries_.end() && entry->chunk == &chunk);
  take_off(*entry);
  drop_left();
}

void SendPath::overtake(const ExchangeChunk& done) {
  for (Entry& entry : entries_) {
    if (entry.sequence >= done.path_sequence) break;
    if (entry.chunk == nullptr || entry.is_pull || entry.chunk->to_send != 0) continue;
    PBOX_DCHECK(entry.chunk->on_path && entry.sequence <= newest_sequence_);
    take_off(entry);
  }
  drop_left();
}

void SendPath::forget(const ExchangeState& owner) {
  for (Entry& entry : entries_) {
    if (entry.chunk != nullptr && entry.owner == &owner) take_off(entry);
  }
  drop_left();
  PBOX_DCHECK(!entries_.empty() || bytes_ == 0);
}

std::shared_ptr<SendPath> SendPaths::find(const SessionSpec::Pipeline& pipeline,
                                          uint64_t slack_ns) {
  std::erase_if(known_, [](const Known& one) { return one.path.expired(); });
  std::shared_ptr<CongestionWindow> congestion;
  for (const Known& one : known_) {
    if (one.slack_ns != slack_ns || !nic::same_host(one.box, pipeline.box)) continue;
    auto path = one.path.lock();
    if (one.box == pipeline.box && one.queue == pipeline.queue) return path;
    congestion = path->congestion();
  }
  auto path = std::make_shared<SendPath>(slack_ns, std::move(congestion));
  known_.push_back({pipeline.box, pipeline.queue, slack_ns, path});
  return path;
}

}  // namespace pbox::worker
