// A worker's lane to one pipeline of the box: chunks that wait for the send window, packets on
// their way to the port, and the timers of the chunks in flight.
//
// A chunk is queued by priority, enters the window, is pushed fragment by fragment, and stays in
// flight until its result has arrived. If the result is late, the lane asks for it with a PULL.
//
// If the box waits for other ranks, results arrive unasked once those ranks have pushed. The lane
// then only guards against losing one: each poll asks for the oldest waiting chunk, whose STATUS
// says who is late, and for one other in turn, with a back-off to 100 ms. So the cost of a late
// rank does not depend on the number of chunks. If a poll finds a result that the box has sent
// already, it was lost. Polls then come more often, and each asks for twice as many chunks.
//
// The lane reads and changes the chunks of its pipeline in the shared ExchangeState, which must
// outlive it and must not move. It allocates only when a queue grows. Used only by the thread that
// drives the Exchange.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "nic/port.h"
#include "worker/protocol/exchange_state.h"
#include "worker/protocol/rtt_estimator.h"
#include "worker/protocol/send_path.h"
#include "worker/protocol/send_queue.h"

namespace pbox::worker {

class Lane {
 public:
  // `chunk_bytes`: size of the largest chunk that the pipeline owns.
  Lane(ExchangeState& state, const SessionSpec::Pipeline& pipeline, uint32_t chunk_bytes);

  Lane(Lane&&) = default;
  Lane& operator=(Lane&&) = delete;
  // Lanes of other parts may share the path.
  ~Lane() {
    if (path_ != nullptr) leave_path();
  }

  // Queues the chunk until the window has room for it.
  void queue(uint32_t chunk_id, int32_t priority) {
    queue_.push(chunk_id, priority);
    path_->note_queued(1);
  }
  // Sends a PULL for a chunk in flight.
  void pull(ExchangeChunk& chunk, uint64_t now_ns);
  // Echoes the challenge of a box that does not know this worker's address, in this and later
  // PULLs.
  void prove_address(ExchangeChunk& chunk, const wire::Challenge& challenge, uint64_t now_ns);
  // Sends these fragments of a chunk in flight. If they exceed the box's credit, sends only the
  // first ones and then a PULL. The STATUS that answers it says what is missing.
  void send(ExchangeChunk& chunk, uint64_t fragments);
  // Sends no more of the chunk. Returns whether fragments were still waiting to leave. The chunk's
  // timer is not running then, because it starts when the last fragment leaves.
  bool cancel_sending(ExchangeChunk& chunk);
  // Removes this chunk's packets that are built but not taken by the port. They point into buffers
  // that belong to the caller again.
  void drop_unsent(uint32_t chunk_id);
  // The chunk is no longer in flight, because everything that it waited for has arrived.
  void end_flight(ExchangeChunk& chunk);
  // The box has all of the chunk's push and waits for other ranks. The chunk makes room for others,
  // and its timer stops: the lane polls for all such chunks together.
  void wait_for_others(ExchangeChunk& chunk, uint64_t now_ns);
  // The wait is over. The caller arms the chunk's timer, or sends. `found`: the box had the result
  // all along, and a poll has found it.
  void end_wait(ExchangeChunk& chunk, bool found, uint64_t now_ns);
  // Measures the path with the time from the chunk's push until now. A chunk that was probed too
  // early is measured too. Otherwise a path that becomes slower would have all its chunks probed,
  // and its new time would never be known.
  void measure(const ExchangeChunk& chunk, uint64_t now_ns);
  // These fragments of the chunk's push or result were lost.
  void note_loss(const ExchangeChunk& chunk, uint64_t fragments, uint64_t now_ns) {
    path_->note_loss(chunk, fragments, now_ns);
  }
  // The path's round trip took at least this long.
  void note_round_trip(uint64_t time_ns) { rtt_.at_least(time_ns); }

  // An authentic packet has arrived from the box, with its current credit.
  void note_packet(const wire::Header& header, uint64_t now_ns);
  // Starts the chunk's timer. When it ends, the lane asks for the chunk's result.
  void arm(ExchangeChunk& chunk, uint64_t now_ns);
  // Asks for every chunk that is overdue; returns whether there was one. `receiving`: packets keep
  // arriving, so an answer may be among those that wait in the receive ring. Then only chunks that
  // were overtaken count as overdue.
  bool probe_overdue(uint64_t now_ns, bool receiving);
  // Returns a time that is not later than the deadline of any chunk in flight, nor than the time at
  // which a paced packet may leave; UINT64_MAX if there is neither.
  uint64_t deadline_ns() const;

  // Like Exchange's functions of these names, for this lane.
  std::optional<int32_t> next_priority(uint64_t now_ns) const;
  std::span<const nic::TxPacket> to_send(uint64_t now_ns);
  void sent(size_t count);
  bool has_unsent() const {
    PBOX_DCHECK(outgoing_begin_ <= outgoing_end_ && outgoing_end_ <= outgoing_.size());
    return outgoing_begin_ < outgoing_end_;
  }
  // Changes the membership generation of packets that are already built.
  void set_generation(uint16_t generation);

  // Forgets everything that is queued, in flight or built.
  void clear();

  bool is_idle() const { return in_flight_.empty() && waiting_.empty(); }
  uint32_t spi() const { return spi_; }
  seal::SessionSeal& session_seal() { return *seal_; }
  uint64_t last_heard_ns() const { return last_heard_ns_; }
  uint64_t smoothed_rtt_ns() const { return rtt_.smoothed_ns(); }

 private:
  // In lane_send.cc.
  uint64_t window_cost(uint64_t bytes, uint64_t packets) const;
  void measure_flight(ExchangeChunk& chunk) const;
  uint64_t portion(uint64_t fragments) const;
  bool has_room(const ExchangeChunk& chunk, uint64_t now_ns) const;
  bool open_window(uint64_t now_ns);
  void find_zeros(ExchangeChunk& chunk);
  void start_flight(ExchangeChunk& chunk, uint64_t now_ns);
  void fill_probes(uint64_t now_ns);
  void fill_pushes(uint64_t now_ns);
  void make_push(ExchangeChunk& chunk, uint64_t now_ns);
  bool is_unread(const std::byte* payload) const;
  void make_zeros(ExchangeChunk& chunk, uint64_t now_ns);
  void make_rows_push(const ExchangeChunk& chunk, uint32_t fragment, bool is_first_copy,
                      nic::TxPacket& packet);
  void address(const ExchangeChunk& chunk, wire::PacketType type, uint64_t now_ns,
               nic::TxPacket& packet);
  void seal(size_t index, const std::byte* payload);

  void leave_path();
  void leave_window(ExchangeChunk& chunk);
  void add(std::vector<uint32_t>& list, ExchangeChunk& chunk);
  void remove(std::vector<uint32_t>& list, const ExchangeChunk& chunk);
  bool poll(uint64_t now_ns);
  void set_poll(uint64_t interval_ns, uint64_t now_ns);
  void set_deadline(ExchangeChunk& chunk, uint64_t deadline_ns);
  void note_overtaken(const ExchangeChunk& done);
  bool is_still_expected(const ExchangeChunk& chunk, uint64_t now_ns, uint64_t& until_ns) const;
  // Returns the time from push to result if nothing goes wrong, plus a margin.
  uint64_t usual_answer_ns() const { return rtt_.smoothed_ns() * 9 / 8; }
  ExchangeChunk& chunk(uint32_t id) const;

  ExchangeState& state_;
  uint32_t spi_ = 0;
  nic::Endpoint box_;
  std::shared_ptr<seal::SessionSeal> seal_;
  uint64_t window_bytes_ = 0;  // the box's credit, at most this side's own bound
  std::shared_ptr<SendPath> path_;
  uint64_t outstanding_bytes_ = 0;  // cost of the chunks in the window
  uint64_t last_heard_ns_ = 0;
  uint64_t deadline_ns_ = UINT64_MAX;
  uint64_t paced_until_ns_ = UINT64_MAX;  // when the next push, if there is one, may leave
  SendQueue queue_;                       // chunks that wait for the window
  std::deque<uint32_t> sending_;          // chunks with to_send != 0, in the queue's order
  std::deque<uint32_t> to_probe_;         // chunks to PULL
  std::vector<uint32_t> in_flight_;       // chunks in flight with timers of their own, in no order
  std::vector<uint32_t> waiting_;         // chunks in flight that wait for other ranks, in no order
  uint64_t poll_at_ns_ = UINT64_MAX;
  uint64_t poll_interval_ns_ = 0;
  uint32_t poll_count_ = 0;  // chunks to ask for in the next poll
  size_t poll_turn_ = 0;     // position in waiting_ of the next chunk whose turn it is
  bool poll_found_ = false;  // the last poll found a result that was ready
  struct Pushed {
    uint32_t chunk = 0;
    uint64_t sequence = 0;
  };
  // In push order: the chunks that may be overtaken. Chunks that are done or were probed are
  // removed lazily.
  std::deque<Pushed> pushed_;
  uint64_t newest_sequence_ = 0;
  RttEstimator rtt_;
  std::array<nic::TxPacket, limits::kBurstPackets> outgoing_;
  std::array<wire::ProvingPullPayload, limits::kBurstPackets> outgoing_pull_;
  std::array<wire::ZerosPayload, limits::kBurstPackets> outgoing_zeros_;
  std::array<const std::byte*, limits::kBurstPackets> outgoing_payload_;  // before it is encrypted
  seal::SealRoom room_;                                                   // by index in outgoing_
  seal::SealRoom rows_room_;   // for payloads by rows, which the caller's memory has in pieces
  wire::Challenge challenge_;  // the newest that this session's box has sent
  size_t outgoing_begin_ = 0;
  size_t outgoing_end_ = 0;
};

}  // namespace pbox::worker
