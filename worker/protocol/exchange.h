// The worker's protocol core: turns operations on tensors into packets and packets into results. No
// clock, no socket, no thread: the client's I/O thread drives it over sockets, tests over an
// in-process network. All timers and all retransmission of the protocol are here; the box only
// answers.
//
// A chunk's way: queued (by priority) -> pushed, within the window -> its result arrives, whole ->
// done. No result for a while: PULL. The answer is either the result, or a STATUS that says which
// fragments to push again, or that somebody else is late, which is not loss and is only polled for.
//
// A chunk that waits for other workers leaves the window: two workers whose windows are full of
// different chunks (each has seen other priorities first) would else wait for each other for ever.
//
// In which order ranks may come and go, the box decides by the job's consistency model
// (nic/wire/sync.h); this side knows when a result answers its push (exchange_sync.cc). Where
// pushes are applied as they come, a result is of now, and says how many of this worker's own
// rounds are in it. Where reads are cached, a push is done when the box has it, results are taken
// whenever they come, and what is handed out is the copy of the model that they make.
//
// Delivery by pull, the way of parameter servers before PHub, has two flights of a chunk: it is
// pushed, and lands when the box says that its result is there; with the last chunk of its tensor
// to land, all of them are queued again, each to be asked for.
//
// A session may end and another take its place, of the same box or of one that has forgotten all.
// Between suspend() and resume() nothing is accepted or sent. Where the box may have to be given a
// result back, there is a shadow: one more copy of the model. A result's fragments are staged there
// and the caller's input stays as it is until the chunk is whole. A chunk's shadow then holds the
// result of the last consumed round until the first fragment of the next one arrives, which proves
// that every worker has pushed that next round, and so has consumed the last: the round may be
// summed again. Weights cannot be made again, so that of them there are two shadows, used in turn:
// one is whole at any time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/numa_arena.h"
#include "base/result.h"
#include "base/rng.h"
#include "nic/port.h"
#include "nic/rss.h"
#include "nic/wire/schedule.h"
#include "nic/wire/sync.h"
#include "worker/protocol/chunk_trace.h"
#include "worker/protocol/read_cache.h"
#include "worker/protocol/rtt_estimator.h"
#include "worker/protocol/send_queue.h"
#include "worker/protocol/staleness.h"
#include "worker/protocol/window.h"

namespace pbox::worker {

// What is given back goes first: every worker waits for it.
inline constexpr int32_t kGivePriority = INT32_MAX;

struct TensorSpec {
  std::string name;
  uint64_t elements = 0;
  uint64_t first_element = 0;  // of a piece: how much of the tensor is before it, in other parts
  wire::Dtype dtype = wire::Dtype::kF32;
  int32_t priority = 0;  // the larger, the earlier
  float lr_scale = 1;
  float weight_decay = -1;  // < 0: the job's
};

// What the box said at JOIN, plus this side's own bounds.
struct SessionSpec {
  struct Pipeline {
    uint32_t spi = 0;
    uint32_t credit_bytes = 0;
    nic::Endpoint box;
    nic::QueueAffinity affinity = nic::QueueAffinity::kUdpPort;
    uint32_t queue = 0;                             // of its NIC
    std::shared_ptr<const nic::RssTable> rss = {};  // set for kRssHash
    uint64_t first_packet_number = 1;               // lower ones have been used already
  };
  uint32_t epoch = 1;
  uint16_t generation = 1;
  uint32_t fragment_bytes = 0;
  uint32_t chunk_bytes = 0;
  wire::TagPolicy tag;
  std::vector<Pipeline> pipelines;
  std::vector<uint8_t> chunk_pipeline;  // by chunk id, dense in tensor order
  std::vector<uint32_t> open_rounds;    // at the box, by chunk id; empty: all are 0
  std::vector<uint32_t> give;  // chunks whose last consumed result the box must be given back
  wire::Delivery delivery = wire::Delivery::kBroadcast;
  // Delivery by pull: results are not asked for; what is announced is done.
  bool results_stay = false;
  uint32_t window_bytes = limits::kCreditBytesMax;  // own bound; the box's credit bounds too
  uint64_t rto_floor_ns = 2'000'000;                // sockets; a poll-mode port takes less
  uint64_t jitter_seed = 1;
  wire::SyncSpec sync;
  // Of the box's optimizer; where reads are cached.
  float learning_rate = 0;
  float gradient_scale = 1;  // 1 / world size for a mean
};

struct Statistics {
  uint64_t bytes_pushed = 0, bytes_pulled = 0;  // payload, without retransmissions
  uint64_t packets_sent = 0, packets_received = 0;
  uint64_t retransmitted_fragments = 0, probes_sent = 0, stale_packets = 0, rejected_packets = 0;
  uint32_t smoothed_rtt_us = 0;
  uint64_t shadow_bytes = 0;
  StalenessCounts staleness;
  uint64_t dropped_rounds = 0;  // operations whose gradient is not in the result they got
};

// Who a waiting tensor waits for.
struct Laggard {
  enum class Kind { kNobody, kBox, kRank } kind = Kind::kNobody;
  uint32_t rank = 0;             // kRank: the lowest whose push is missing, or the slowest one
  uint32_t missing_workers = 0;  // kRank
  uint64_t asked_ns = 0;         // kRank: when the box was asked; it was so then, or later
  uint32_t waited_ms = 0;        // kRank: what the box had waited for it then; 0: it does not say
  uint32_t last_percent = 0;     // kRank: of the chunk rounds before, those that it had ended
  uint64_t silent_ns = 0;        // kBox: since its last packet
};

// When this worker last had as many results of every tensor as of any other, and nothing under way.
struct FinishedRounds {
  uint64_t rounds = 0;
  uint64_t at_ns = 0;
  uint64_t busy_ns = 0;  // of the time until then, that with an operation under way
};

class Exchange {
 public:
  // `shadow`: of shadow_bytes(tensors, shadows: 1 or 2), or empty for none; where reads are cached,
  // of cache_bytes(). In a job that has begun, each tensor goes on at the least round that is open
  // among its chunks, which differ by at most 1.
  Exchange(const SessionSpec& session, const std::vector<TensorSpec>& tensors,
           NumaArena shadow = {}, uint32_t shadows = 1);
  static uint64_t shadow_bytes(const std::vector<TensorSpec>& tensors, uint32_t shadows);
  // For the copy of the model that cached reads need; 0 where reads are fresh.
  static uint64_t cache_bytes(const SessionSpec& session, const std::vector<TensorSpec>& tensors);

  // Starts a round of a tensor. Buffers hold all its elements, may be the same, and stay untouched
  // by the caller until the tensor shows up in take_completed. One round per tensor at a time. Also
  // while suspended: it is pushed after resume.
  void start(uint32_t tensor, const std::byte* input, std::byte* output, int32_t priority);
  // In place of a start: fetches what the box holds of the tensor, the result of its last round.
  // Only for a worker that joined a job whose round() of the tensor was over 0, before its first
  // start.
  void fetch(uint32_t tensor, std::byte* output, int32_t priority);
  bool busy(uint32_t tensor) const { return tensors_[tensor].chunks_left > 0; }
  // The one that the tensor's start belongs to: the next one, or the one in flight. Its operations
  // are counted, which may be fewer than its chunks' rounds where those are dropped.
  uint32_t round(uint32_t tensor) const { return tensors_[tensor].round; }
  // The least number of workers in any part of the tensor's last result; UINT16_MAX: all.
  uint16_t contributors(uint32_t tensor) const { return tensors_[tensor].last_contributors; }

  // The session is over. Results that are not whole are forgotten; operations stay pending.
  void suspend();
  // Goes on in another session: only after suspend. An error, which changes nothing: this worker's
  // rounds and those that are open at the box cannot be brought together.
  Status resume(const SessionSpec& session);
  // By chunk, the next round whose result this worker needs.
  std::vector<uint32_t> consumed_rounds() const;
  // It cannot give back the result of the round before: never consumed, or partly overwritten,
  // which happens only when nobody needs it any more.
  bool lacks_result(uint32_t chunk) const {
    return chunks_[chunk].round != 0 && !chunks_[chunk].in_shadow;
  }
  // Of the packets to send from now on, those made already too, and of those to accept.
  void set_generation(uint16_t generation);
  // Of the box's optimizer for what is pushed from now on. With nothing in flight.
  void set_learning_rate(float learning_rate) { session_.learning_rate = learning_rate; }

  void on_burst(uint32_t pipeline, std::span<const nic::RxPacket> packets, uint64_t now_ns);

  // Packets for a pipeline's port, at most limits::kBurstPackets; the span stays the same until
  // sent(count). Payloads point into the caller's buffers: nothing is copied.
  std::span<const nic::TxPacket> to_send(uint32_t pipeline, uint64_t now_ns);
  void sent(uint32_t pipeline, size_t count, uint64_t now_ns);

  bool has_unsent(uint32_t pipeline) const {
    return lanes_[pipeline].outgoing_begin < lanes_[pipeline].outgoing_end;
  }

  // Gives up everything in flight: no buffer is touched any more, no packet leaves. For good.
  void abandon();

  // Probes whatever is overdue at now_ns. True if that gives to_send something. While packets keep
  // coming (`receiving`), an answer may be among those that wait, and is not late: then only what
  // was overtaken counts.
  bool on_timer(uint64_t now_ns, bool receiving = false);
  // Something was pushed, or is about to be, whose result is not here yet.
  bool awaits_results() const;
  // When on_timer is next of use, or earlier; UINT64_MAX with nothing in flight.
  uint64_t next_deadline_ns() const;

  // Tensors whose result is complete, in order of completion; empties the list.
  std::vector<uint32_t> take_completed();
  Laggard laggard(uint32_t tensor, uint64_t now_ns) const;
  Statistics statistics() const;
  const FinishedRounds& finished_rounds() const { return finished_; }

  // Times of chunks that are completed from now on, at most `capacity` of them until they are
  // taken; 0 ends it.
  void trace_chunks(size_t capacity) { trace_.open(chunks_.size(), capacity); }
  size_t take_chunk_times(std::span<ChunkTimes> times) { return trace_.take(times); }

  uint32_t pipeline_count() const { return static_cast<uint32_t>(lanes_.size()); }
  uint32_t tensor_count() const { return static_cast<uint32_t>(tensors_.size()); }

 private:
  struct Chunk {
    uint64_t offset = 0;  // bytes into the tensor
    uint64_t full_mask = 0;
    uint64_t to_send = 0;            // fragments to push now
    uint64_t result_mask = 0;        // fragments of the result at hand
    uint64_t acknowledged_mask = 0;  // cached reads: fragments of ours that the box has for sure
    uint64_t pushed_ns = 0;
    Window::Mark mark;
    uint64_t push_sequence = 0;  // its place among what the lane has pushed
    uint64_t deadline_ns = 0;
    uint64_t asked_ns = 0;  // sent the PULL whose answer says who is missing
    uint32_t tensor = 0;
    uint32_t wire_bytes = 0;
    uint32_t round = 0;         // the next whose result is needed
    uint32_t flight_round = 0;  // of what is in flight
    uint32_t clock = 0;         // of the result at hand, the least of its fragments'
    uint32_t probes = 0;        // since the push; sets the back-off
    uint16_t missing_workers = 0;
    uint16_t first_missing_rank = 0;
    uint16_t last_percent = 0;  // and waited_ms: with first_missing_rank, as in StatusPayload
    uint32_t waited_ms = 0;
    uint16_t contributors = UINT16_MAX;  // least in any part of the result, as far as it is here
    uint8_t pipeline = 0;
    bool in_flight = false;
    bool in_window = false;  // counts against the box's credit
    bool on_path = false;    // of these, may still be on its way
    bool measures = false;   // from the push to the result is what the path takes, and other ranks
    bool retransmitting = false;
    bool waits_for_others = false;  // the box has all of ours
    bool giving = false;       // the box gets the result of the round before, then this goes on
    bool pulls_first = false;  // the box may have our push, or even the result
    bool pushed = false;       // some of `round`, in this session or an earlier one
    bool fetched = false;
    bool is_dropped = false;  // some of what was pushed is not in the result at hand
    bool overtaken = false;   // by results of chunks pushed later
    bool in_shadow = false;   // a shadow holds the result of the round before
    bool announced = false;   // delivery by pull: the result is there to be asked for
  };
  struct Tensor {
    uint32_t first_chunk = 0;
    uint32_t chunk_count = 0;
    uint32_t chunks_left = 0;
    uint32_t unannounced = 0;  // of chunks_left; with none left, all are pulled
    uint32_t round = 0;
    uint16_t contributors = UINT16_MAX;  // so far
    uint16_t last_contributors = UINT16_MAX;
    int32_t staleness = 0;    // so far
    bool is_dropped = false;  // some of the gradient is not in the result
    int32_t priority = 0;
    wire::Dtype dtype = wire::Dtype::kF32;
    bool fetching = false;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::array<std::byte*, 2> shadow{};  // by round & 1, which may be one; null: none is kept
  };
  // One pipeline of the box, seen from here.
  struct Lane {
    uint32_t spi = 0;
    nic::Endpoint box;
    uint64_t next_packet_number = 1;
    uint64_t window_bytes = 0;  // bound of the window that is measured
    Window window{0, 0};
    uint64_t outstanding_bytes = 0;  // in the window
    uint64_t path_bytes = 0;         // of these, what may still be on its way
    uint64_t last_heard_ns = 0;
    uint64_t deadline_ns = UINT64_MAX;  // no later than any of its chunks'
    SendQueue queue;                    // not yet started
    std::deque<uint32_t> sending;       // chunks with to_send != 0, in the queue's order
    std::deque<uint32_t> to_probe;      // chunks to PULL
    std::vector<uint32_t> in_flight;    // chunks pushed and not done
    // In the order of pushing: who may be overtaken. What is done or asked for is taken out late.
    struct Pushed {
      uint32_t chunk = 0;
      uint64_t sequence = 0;
    };
    std::deque<Pushed> pushed;
    uint64_t newest_sequence = 0;
    RttEstimator rtt;
    std::array<nic::TxPacket, limits::kBurstPackets> outgoing;
    std::array<wire::PullPayload, limits::kBurstPackets> outgoing_pull;
    size_t outgoing_begin = 0;
    size_t outgoing_end = 0;
  };

  void open_lanes();
  void forget_flight();
  void begin(Tensor& tensor);
  void end(const Tensor& tensor, uint64_t now_ns);
  bool is_pending(const Chunk& chunk) const;
  Status check_resumption(const SessionSpec& session) const;
  void on_packet(Lane& lane, const nic::RxPacket& packet, uint64_t now_ns);
  Chunk* check(Lane& lane, const wire::Header& header);
  void on_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void place(const Tensor& tensor, const Chunk& chunk, const wire::Parsed& parsed);
  void consume(Tensor& tensor, Chunk& chunk);
  bool is_staged(const Tensor& tensor, const Chunk& chunk) const;
  void copy(std::byte* destination, const std::byte* source, size_t bytes) const;
  void on_status(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void push_again(Lane& lane, Chunk& chunk, uint64_t fragments);
  void set_credit(Lane& lane, const wire::Header& header);
  void on_announced(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void note_announced(Tensor& tensor);
  void measure(Lane& lane, const Chunk& chunk, uint64_t now_ns);
  void land(Lane& lane, Chunk& chunk, uint64_t now_ns);

  // exchange_sync.cc
  void open_cache(const std::vector<TensorSpec>& tensors);
  bool is_current(const Chunk& chunk, const wire::Header& header) const;
  bool drops_rounds() const { return session_.sync.model == wire::SyncModel::kDrop; }
  uint32_t round_of(uint32_t operation);
  uint32_t round_begun(uint32_t operation) const;  // of one that has begun
  void skip_closed_rounds();
  void begin_anew(Chunk& chunk, uint32_t round) const;
  void note_version(Chunk& chunk, const wire::Header& header) const;
  bool reads_cache(const Chunk& chunk) const { return cache_ && chunk.round > 0; }
  void on_cached_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void on_acknowledgement(Lane& lane, Chunk& chunk, uint64_t received_mask, uint64_t now_ns);
  bool is_acknowledged(const Chunk& chunk) const {
    return chunk.acknowledged_mask == chunk.full_mask;
  }
  bool acknowledge(Lane& lane, Chunk& chunk, uint64_t fragments, uint64_t now_ns);
  bool finish_if_readable(Lane& lane, Chunk& chunk, uint64_t now_ns);
  uint64_t held_mask(const Chunk& chunk) const;
  void read_cache(const Tensor& tensor, Chunk& chunk);
  void note_read(Tensor& tensor, const Chunk& chunk) const;
  void count_read(Tensor& tensor);

  void finish_chunk(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void drop_unsent(Lane& lane, uint32_t chunk_id);
  void leave_path(Lane& lane, Chunk& chunk);
  void leave_window(Lane& lane, Chunk& chunk);
  int32_t priority(const Chunk& chunk) const;
  void send(Lane& lane, Chunk& chunk, uint64_t fragments);
  // True if something was yet to leave. Nobody has armed the chunk then: that comes with its last.
  bool send_no_more(Lane& lane, Chunk& chunk);
  bool has_room(const Lane& lane, const Chunk& chunk, uint64_t now_ns) const;
  bool open_window(Lane& lane, uint64_t now_ns);
  void fill_probes(Lane& lane, uint64_t now_ns);
  void fill_pushes(Lane& lane, uint64_t now_ns);
  void make_push(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void address(Lane& lane, const Chunk& chunk, wire::PacketType type, uint64_t now_ns,
               nic::TxPacket& packet);
  void arm(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void set_deadline(Lane& lane, Chunk& chunk, uint64_t deadline_ns);
  void note_overtaken(Lane& lane, const Chunk& done);
  // From pushing to the result, where nothing goes wrong, and a little more.
  bool answers_are_told_apart() const;
  static uint64_t usual_ns(const Lane& lane) { return lane.rtt.smoothed_ns() * 9 / 8; }
  bool may_still_come(const Lane& lane, const Chunk& chunk, uint64_t now_ns,
                      uint64_t& until_ns) const;
  uint32_t chunk_id(const Chunk& chunk) const {
    return static_cast<uint32_t>(&chunk - chunks_.data());
  }

  SessionSpec session_;
  std::vector<Tensor> tensors_;
  std::vector<Chunk> chunks_;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> completed_;
  NumaArena shadow_;  // or what the cache is made of
  std::optional<ReadCache> cache_;
  // Model drop: from this operation of a tensor on, as many rounds were left out altogether.
  struct Skip {
    uint32_t operation = 0;
    uint32_t rounds = 0;
  };
  std::vector<Skip> skips_{{}};  // ascending; the first serves the slowest tensor
  uint32_t newest_operation_ = 0;
  uint32_t tensors_under_way_ = 0;
  uint64_t busy_since_ns_ = 0;  // 0: nothing is under way, or nothing was asked for since
  uint64_t busy_ns_ = 0;        // before that
  uint64_t operations_ended_ = 0;
  FinishedRounds finished_;
  bool suspended_ = false;
  bool out_of_cache_ = false;  // the job's tensors together are larger than caches are
  Statistics statistics_;
  ChunkTrace trace_;
  Rng rng_;
};

}  // namespace pbox::worker
