// The worker's side of the data protocol: turns operations on tensors into packets, and packets
// into results. It has no clock, no socket and no thread. The client's I/O thread drives it over a
// transport; tests drive it over an in-process network. All timers and all retransmission of the
// protocol are on this side (lane.h). The box only answers.
//
// The life of a chunk: it is queued by priority, enters the window, is pushed, its result arrives
// fragment by fragment, and it is done. If no result arrives for a while, the worker sends a PULL.
// The box answers with the result, or with a STATUS. The STATUS says which fragments to push again,
// or that other ranks are late. Late ranks are not loss, so the worker only polls for them.
//
// A chunk that waits for other ranks leaves the window. Otherwise two workers whose windows are
// full of different chunks, because they saw different priorities first, would wait for each other
// forever.
//
// The box decides by the job's consistency model which rank may continue (nic/wire/sync.h). This
// side decides when a result answers its push (exchange_sync.cc). If the box applies pushes as they
// arrive, a result shows the current weights and says how many of this worker's own rounds it
// includes. If reads are cached, a push is done when the box has it. Results are then stored
// whenever they arrive, and a read returns the copy of the model that they form.
//
// With delivery by pull, as in parameter servers before PHub, a chunk is in flight twice. The first
// flight is its push, and ends when the box announces its result. Once the results of all chunks of
// a tensor are announced, the chunks are queued again and each result is pulled.
//
// A session can end and another one take its place, with the same box or with one that has lost its
// state. Between suspend() and resume() nothing is accepted or sent. If the box may need a result
// back, the worker keeps a shadow, one more copy of the model. A result's fragments are staged
// there, and the caller's input stays unchanged until the chunk is complete. A chunk's shadow holds
// the result of the last consumed round until the first fragment of the next result arrives. This
// fragment proves that every worker has pushed the next round, so every worker has consumed the
// last one. A caller that keeps its results unchanged needs no shadow, because its outputs serve as
// one. An unfinished round can be summed again from the inputs. Weights cannot be computed again,
// so there are two shadows of them, used in turn: one of them is complete at any time.
//
// A compressed tensor travels in blocks (encoded_tensor.h). Its push is encoded when the first
// fragment leaves, and the caller's input is not read again. Its shadow holds the result in blocks,
// which are decoded into the output once the chunk is complete; without a shadow, as they arrive.
// In mode optimize its result is a delta (delta_weights.h), which needs no shadow.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/numa_arena.h"
#include "base/result.h"
#include "worker/protocol/chunk_trace.h"
#include "worker/protocol/exchange_state.h"
#include "worker/protocol/lane.h"
#include "worker/protocol/operation.h"
#include "worker/protocol/round_skips.h"
#include "worker/protocol/session_spec.h"
#include "worker/protocol/statistics.h"

namespace pbox::worker {

// Returns the bytes of `shadow_count` (1 or 2) copies of the model.
uint64_t shadow_bytes(const SessionSpec& session, const std::vector<TensorSpec>& tensors,
                      uint32_t shadow_count);
// Returns the bytes of the copy of the model that cached reads need; 0 if reads are not cached.
uint64_t cache_bytes(const SessionSpec& session, const std::vector<TensorSpec>& tensors);

// Used by one thread at a time.
class Exchange {
 public:
  // `shadow`: an arena of shadow_bytes(session, tensors, shadow_count), or an empty one to keep no
  // shadow. If reads are cached, an arena of cache_bytes(). In a job that has begun, each tensor
  // continues at the lowest round that is open among its chunks; open rounds differ by at most 1.
  Exchange(const SessionSpec& session, const std::vector<TensorSpec>& tensors,
           NumaArena shadow = {}, uint32_t shadow_count = 1);
  // Not copied, because lanes refer to the state of this object.
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Starts a round of a tensor. The buffers belong to the exchange until take_completed() returns
  // the tensor. A tensor has at most one operation at a time. Allowed while suspended: the tensor
  // is then pushed after resume(). operation.priority is used as given; initial_weights is ignored.
  void start(const Operation& operation);
  bool busy(uint32_t tensor) const { return tensor_at(tensor).chunks_left > 0; }
  // Returns the round of the tensor's active operation, or of its next one if none is active. It
  // counts operations, which may be fewer than the chunks' rounds if rounds are dropped.
  uint32_t round(uint32_t tensor) const { return tensor_at(tensor).round; }
  // Returns the lowest number of workers in any chunk of the tensor's last result; UINT16_MAX: all.
  uint16_t contributors(uint32_t tensor) const { return tensor_at(tensor).last_contributors; }

  // Ends the session. Incomplete results are forgotten; operations stay pending.
  void suspend();
  // Continues in another session, after suspend(). Returns an error and changes nothing if this
  // worker's rounds and those that are open at the box do not fit together.
  Status resume(const SessionSpec& session);
  // Returns for each chunk the next round whose result this worker needs.
  std::vector<uint32_t> consumed_rounds() const;
  // Returns whether this worker cannot restore the chunk's previous result on the box. It never
  // consumed it, or has partly overwritten it, which happens only when no worker needs it any more.
  bool lacks_result(uint32_t chunk) const {
    PBOX_DCHECK(chunk < state_.chunks.size());
    return state_.chunks[chunk].round != 0 && !state_.chunks[chunk].in_shadow;
  }
  // Sets the membership generation of packets sent from now on, of packets that are already built,
  // and of those that are accepted.
  void set_generation(uint16_t generation);
  // Sets the learning rate of the box's optimizer for what is pushed from now on. Nothing may be in
  // flight.
  void set_learning_rate(float learning_rate) { state_.session.learning_rate = learning_rate; }

  // Takes packets that arrived from a pipeline. They are not used after the call.
  void on_burst(uint32_t pipeline, std::span<const nic::RxPacket> packets, uint64_t now_ns);

  // Returns the priority of the next packet for a pipeline's port; nullopt if there is none. A call
  // of to_send() may still find none.
  std::optional<int32_t> next_priority(uint32_t pipeline, uint64_t now_ns) const {
    PBOX_DCHECK(pipeline < lanes_.size());
    return lanes_[pipeline].next_priority(now_ns);
  }
  // Returns packets for a pipeline's port, at most limits::kBurstPackets. The span is valid until
  // sent(). Payloads point into the caller's buffers; nothing is copied.
  std::span<const nic::TxPacket> to_send(uint32_t pipeline, uint64_t now_ns);
  // The port has taken the first `count` of those packets.
  void sent(uint32_t pipeline, size_t count) { lane(pipeline).sent(count); }
  bool has_unsent(uint32_t pipeline) const {
    PBOX_DCHECK(pipeline < lanes_.size());
    return lanes_[pipeline].has_unsent();
  }

  // Gives up everything in flight, for good. No buffer is touched and no packet built any more.
  void abandon();

  // Sends a PULL for whatever is overdue at now_ns. Returns whether to_send() has packets because
  // of that. `receiving`: packets keep arriving, so an answer may be among those that wait and is
  // not late. Then only chunks that were overtaken are probed.
  bool on_timer(uint64_t now_ns, bool receiving = false);
  // Returns whether a chunk is in flight.
  bool awaits_results() const;
  // Returns when on_timer() is due, or an earlier time; UINT64_MAX with nothing in flight.
  uint64_t next_deadline_ns() const;

  // Takes the tensors whose results are complete, in order of completion.
  std::vector<uint32_t> take_completed();
  // Returns the rank or box that the tensor's operation waits for, as far as this worker knows.
  Laggard laggard(uint32_t tensor, uint64_t now_ns) const;
  Statistics statistics() const;
  const FinishedRounds& finished_rounds() const { return finished_; }

  // Records the times of chunks that are completed from now on, at most `capacity` until they are
  // taken. 0 stops recording.
  void trace_chunks(size_t capacity) { state_.trace.open(state_.chunks.size(), capacity); }
  size_t take_chunk_times(std::span<ChunkTimes> times) { return state_.trace.take(times); }

  uint32_t pipeline_count() const { return static_cast<uint32_t>(lanes_.size()); }
  uint32_t tensor_count() const { return static_cast<uint32_t>(state_.tensors.size()); }

 private:
  using Chunk = ExchangeChunk;
  using Tensor = ExchangeTensor;

  const Tensor& tensor_at(uint32_t tensor) const {
    PBOX_DCHECK(tensor < state_.tensors.size());
    return state_.tensors[tensor];
  }
  void add_tensors(const std::vector<TensorSpec>& tensors, uint32_t shadow_count);
  void open_lanes();
  void begin(Tensor& tensor);
  void end(const Tensor& tensor, uint64_t now_ns);
  bool is_pending(const Chunk& chunk) const;
  void clear_flight();
  Lane& lane(uint32_t pipeline) {
    PBOX_DCHECK(pipeline < lanes_.size());
    return lanes_[pipeline];
  }
  Status check_resumption(const SessionSpec& session) const;

  // In exchange_receive.cc.
  void on_packet(Lane& lane, const nic::RxPacket& packet, uint64_t now_ns);
  Chunk* find_chunk(const Lane& lane, const wire::Header& header);
  void on_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void store_fragment(Tensor& tensor, const Chunk& chunk, const wire::Parsed& parsed,
                      uint64_t fragments);
  void on_status(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void push_again(Lane& lane, Chunk& chunk, uint64_t fragments, uint64_t now_ns);
  void on_announced(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void note_announced(Tensor& tensor);
  void finish_flight(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void finish_chunk(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void consume(Tensor& tensor, Chunk& chunk);

  // In exchange_sync.cc.
  void open_cache(const std::vector<TensorSpec>& tensors);
  bool is_current(const Chunk& chunk, const wire::Header& header) const;
  uint32_t start_round(uint32_t operation);
  void note_version(Chunk& chunk, const wire::Header& header) const;
  void on_cached_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void on_acknowledgement(Lane& lane, Chunk& chunk, uint64_t received_mask, uint64_t now_ns);
  bool acknowledge(Lane& lane, Chunk& chunk, uint64_t fragments, uint64_t now_ns);
  bool finish_if_readable(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void read_cache(const Tensor& tensor, Chunk& chunk);
  void count_read(Tensor& tensor);

  ExchangeState state_;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> completed_;
  NumaArena shadow_;  // memory of the shadows, or of the cache
  RoundSkips skips_;  // used with model drop
  uint32_t active_tensors_ = 0;
  uint64_t busy_since_ns_ = 0;  // first to_send() with the active operations; 0: there was none
  uint64_t busy_ns_ = 0;        // total time with an active operation, up to busy_since_ns_
  // Indexed by lane. The lanes of later sessions go on with these times.
  struct LaneTime {
    uint64_t last_result_ns = 0;
    uint64_t busy_ns = 0;  // see FinishedRounds::lane_busy_ns
  };
  std::vector<LaneTime> lane_times_;
  uint64_t operations_ended_ = 0;     // votes are not counted
  uint64_t operations_of_round_ = 0;  // a tensor and its compressed form are one operation
  FinishedRounds finished_;
  bool suspended_ = false;
  seal::OpenRoom opened_;
};

}  // namespace pbox::worker
