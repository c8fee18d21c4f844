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
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "nic/port.h"
#include "nic/rss.h"
#include "worker/rtt_estimator.h"
#include "worker/send_queue.h"

namespace pbox::worker {

struct TensorSpec {
  std::string name;
  uint64_t elements = 0;
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
  std::vector<uint8_t> chunk_pipeline;              // by chunk id, dense in tensor order
  uint32_t window_bytes = limits::kCreditBytesMax;  // own bound; the box's credit bounds too
  uint64_t rto_floor_ns = 2'000'000;                // sockets; a poll-mode port takes less
  uint64_t jitter_seed = 1;
};

struct Statistics {
  uint64_t bytes_pushed = 0, bytes_pulled = 0;  // payload, without retransmissions
  uint64_t packets_sent = 0, packets_received = 0;
  uint64_t retransmitted_fragments = 0, probes_sent = 0, stale_packets = 0, rejected_packets = 0;
  uint32_t smoothed_rtt_us = 0;
};

// Who a waiting tensor waits for.
struct Laggard {
  enum class Kind { kNobody, kBox, kRank } kind = Kind::kNobody;
  uint32_t rank = 0;             // kRank: the lowest rank whose push is missing
  uint32_t missing_workers = 0;  // kRank
  uint64_t asked_ns = 0;         // kRank: when the box was asked; it was so then, or later
  uint64_t silent_ns = 0;        // kBox: since its last packet
};

class Core {
 public:
  Core(const SessionSpec& session, const std::vector<TensorSpec>& tensors);

  // Starts a round of a tensor. Buffers hold all its elements, may be the same, and stay untouched
  // by the caller until the tensor shows up in take_completed. One round per tensor at a time.
  void start(uint32_t tensor, const std::byte* input, std::byte* output, int32_t priority);
  bool busy(uint32_t tensor) const { return tensors_[tensor].chunks_left > 0; }

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

  // Probes whatever is overdue at now_ns.
  void on_timer(uint64_t now_ns);
  // Something was pushed, or is about to be, whose result is not here yet.
  bool awaits_results() const;
  // When on_timer is next of use, or earlier; UINT64_MAX with nothing in flight.
  uint64_t next_deadline_ns() const;

  // Tensors whose result is complete, in order of completion; empties the list.
  std::vector<uint32_t> take_completed();
  Laggard laggard(uint32_t tensor, uint64_t now_ns) const;
  Statistics statistics() const;

  uint32_t pipeline_count() const { return static_cast<uint32_t>(lanes_.size()); }
  uint32_t tensor_count() const { return static_cast<uint32_t>(tensors_.size()); }

 private:
  struct Chunk {
    uint64_t offset = 0;  // bytes into the tensor
    uint64_t full_mask = 0;
    uint64_t to_send = 0;      // fragments to push now
    uint64_t result_mask = 0;  // fragments of the result at hand
    uint64_t pushed_ns = 0;
    uint64_t deadline_ns = 0;
    uint64_t asked_ns = 0;  // sent the PULL whose answer says who is missing
    uint32_t tensor = 0;
    uint32_t wire_bytes = 0;
    uint32_t round = 0;
    uint32_t probes = 0;  // since the push; sets the back-off
    uint16_t missing_workers = 0;
    uint16_t first_missing_rank = 0;
    uint8_t pipeline = 0;
    bool in_flight = false;
    bool in_window = false;
    bool retransmitting = false;
    bool waits_for_others = false;  // the box has all of ours
  };
  struct Tensor {
    uint32_t first_chunk = 0;
    uint32_t chunk_count = 0;
    uint32_t chunks_left = 0;
    wire::Dtype dtype = wire::Dtype::kF32;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
  };
  // One pipeline of the box, seen from here.
  struct Lane {
    uint32_t spi = 0;
    nic::Endpoint box;
    uint64_t next_packet_number = 1;
    uint64_t window_bytes = 0;
    uint64_t outstanding_bytes = 0;
    uint64_t last_heard_ns = 0;
    uint64_t deadline_ns = UINT64_MAX;  // no later than any of its chunks'
    SendQueue queue;                    // not yet started
    std::deque<uint32_t> sending;       // chunks with to_send != 0
    std::deque<uint32_t> to_probe;      // chunks to PULL
    std::vector<uint32_t> in_flight;    // chunks pushed and not done
    RttEstimator rtt;
    std::array<nic::TxPacket, limits::kBurstPackets> outgoing;
    std::array<wire::PullPayload, limits::kBurstPackets> outgoing_pull;
    size_t outgoing_begin = 0;
    size_t outgoing_end = 0;
  };

  void on_packet(Lane& lane, const nic::RxPacket& packet, uint64_t now_ns);
  Chunk* check(Lane& lane, const wire::Header& header);
  void on_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void on_status(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns);
  void set_credit(Lane& lane, const wire::Header& header);
  void finish_chunk(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void drop_unsent(Lane& lane, uint32_t chunk_id);
  void leave_window(Lane& lane, Chunk& chunk);
  void open_window(Lane& lane, uint64_t now_ns);
  void fill_probes(Lane& lane, uint64_t now_ns);
  void fill_pushes(Lane& lane, uint64_t now_ns);
  void address(Lane& lane, const Chunk& chunk, wire::PacketType type, uint64_t now_ns,
               nic::TxPacket& packet);
  void arm(Lane& lane, Chunk& chunk, uint64_t now_ns);
  void set_deadline(Lane& lane, Chunk& chunk, uint64_t deadline_ns);
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
  bool out_of_cache_ = false;  // the job's tensors together are larger than caches are
  Statistics statistics_;
  Rng rng_;
};

}  // namespace pbox::worker
