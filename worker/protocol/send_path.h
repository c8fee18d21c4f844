// The path from this rank to one pipeline of a box. It limits how much may be in flight (window.h),
// and knows which chunks are. The lanes of all parts of a job that lead to the pipeline share it,
// so an urgent chunk of one part finds no more ahead of it than if the job had one part.
//
// Used only by the thread that drives the memberships.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "worker/protocol/congestion_window.h"
#include "worker/protocol/exchange_state.h"
#include "worker/protocol/window.h"

namespace pbox::worker {

class SendPath {
 public:
  // `slack_ns`: see Window. `congestion`: shared by all paths to the box's address; if null, the
  // path makes its own.
  explicit SendPath(uint64_t slack_ns, std::shared_ptr<CongestionWindow> congestion = nullptr);
  ~SendPath() { congestion_->remove_path(); }
  SendPath(const SendPath&) = delete;
  SendPath& operator=(const SendPath&) = delete;

  // Adds a lane whose largest chunk and fragments have these sizes.
  void add_lane(uint32_t chunk_bytes, uint32_t fragment_bytes) {
    window_.fit(chunk_bytes);
    congestion_->fit(chunk_bytes, fragment_bytes);
  }

  // `count` more chunks, or `count` fewer, wait in a lane for room on the path.
  void note_queued(size_t count) {
    if (queued_ == 0 && count > 0) congestion_->begin_wait();
    queued_ += count;
  }
  void note_unqueued(size_t count) {
    PBOX_DCHECK(queued_ >= count);
    queued_ -= count;
    if (queued_ == 0 && count > 0) congestion_->end_wait();
  }
  // A lane has nothing to push.
  void starve() {
    if (queued_ == 0) window_.starve(bytes_);
  }

  // Returns whether a chunk may set out. If the path is full, a chunk that is more urgent than all
  // chunks on the path may still do so. Those chunks may have reached the box by now and wait for
  // ranks that push the urgent chunk first.
  bool has_room(uint32_t bytes, int32_t priority, uint64_t now_ns) const;
  const std::shared_ptr<CongestionWindow>& congestion() const { return congestion_; }

  // Like the functions of CongestionWindow.
  bool may_send(uint64_t now_ns) const { return congestion_->may_send(now_ns); }
  uint64_t paced_until_ns() const { return congestion_->paced_until_ns(); }
  void note_sent(uint64_t bytes, uint64_t now_ns) { congestion_->note_sent(bytes, now_ns); }
  // The chunk, which is not on a path, sets out. `owner` identifies the exchange of the chunk.
  // `is_pull`: the chunk is only pulled, and pushes do not overtake it.
  void enter(const ExchangeState& owner, ExchangeChunk& chunk, int32_t priority, bool is_pull,
             uint64_t now_ns);
  // Has no effect on a chunk that is not on the path.
  void leave(ExchangeChunk& chunk);
  // The result of `done` has arrived. All chunks that set out before it have reached the box too,
  // or are lost, and leave the path, except those with fragments that still wait to be sent.
  void overtake(const ExchangeChunk& done);
  // All chunks of this exchange leave the path.
  void forget(const ExchangeState& owner);
  void arrive(const ExchangeChunk& chunk, uint64_t now_ns) {
    window_.arrive(chunk.mark, chunk.flight_bytes, chunk.is_measurable, now_ns);
    congestion_->arrive(chunk.mark.sent_ns, chunk.flight_bytes, chunk.is_measurable, now_ns);
  }
  // The box has the chunk's push, and waits for other ranks.
  void acknowledge(const ExchangeChunk& chunk) { congestion_->acknowledge(chunk.flight_bytes); }
  // These fragments of the chunk's push or result were lost.
  void note_loss(const ExchangeChunk& chunk, uint64_t fragments, uint64_t now_ns) {
    const auto count = static_cast<uint32_t>(__builtin_popcountll(fragments));
    congestion_->note_loss(chunk.mark.sent_ns, count, now_ns);
  }

 private:
  struct Entry {
    const ExchangeState* owner = nullptr;
    ExchangeChunk* chunk = nullptr;  // null: it has left
    uint64_t sequence = 0;           // the chunk's path_sequence
    int32_t priority = 0;
    bool is_pull = false;
  };
  void take_off(Entry& entry);
  void drop_left();

  Window window_;
  std::shared_ptr<CongestionWindow> congestion_;
  uint64_t bytes_ = 0;  // total of the chunks on the path
  // The chunks on the path, in the order in which they set out, and some that have left.
  std::deque<Entry> entries_;
  size_t left_count_ = 0;
  uint64_t newest_sequence_ = 0;
  size_t queued_ = 0;
};

// Finds the path of a session's pipeline. The memberships of a job's parts share one of these.
class SendPaths {
 public:
  std::shared_ptr<SendPath> find(const SessionSpec::Pipeline& pipeline, uint64_t slack_ns);

 private:
  struct Known {
    nic::Endpoint box;
    uint32_t queue = 0;
    uint64_t slack_ns = 0;
    std::weak_ptr<SendPath> path;  // the lanes own it
  };
  std::vector<Known> known_;
};

}  // namespace pbox::worker
