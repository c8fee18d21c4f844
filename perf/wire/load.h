// The other end of the wire: all workers of a WireJob over one port, as light as they can be.
// Pushes chunk after chunk for every worker, as far ahead of the results as the window allows,
// round after round. Looks at headers and at the first value of each result. Lost packets are
// pushed again after a while.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "base/clock.h"
#include "nic/port.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/tag.h"
#include "perf/wire/job.h"

namespace pbox::perf {

// P: a port, or what of one sends and receives bursts.
template <typename P>
class WireLoad {
 public:
  // port and job outlive it. boxes: where each worker sends to. stall_ns: so long without a result
  // means that something got lost.
  WireLoad(P& port, std::vector<nic::Endpoint> boxes, const WireJob& job,
           uint64_t stall_ns = 50 * kNanosPerMilli)
      : port_(port),
        boxes_(std::move(boxes)),
        job_(job),
        stall_ns_(stall_ns),
        results_(job.chunk_count() * size_t{job.shape().workers}),
        packet_numbers_(job.shape().workers, 1) {}

  // After a pause: nothing is overdue.
  void resume(uint64_t now_ns) { last_result_ns_ = now_ns; }

  // Receives all that waits and sends all that may leave. Throws if a result is wrong.
  void turn(uint64_t now_ns) {
    size_t count = 0;
    while ((count = port_.rx_burst(received_)) > 0) {
      for (size_t index = 0; index < count; ++index) take(received_[index]);
      last_result_ns_ = now_ns;
    }
    if (now_ns - last_result_ns_ > stall_ns_) push_again(now_ns);
    while (fill() && send()) {
    }
  }

  uint64_t stalls() const { return stalls_; }  // times that something was pushed again

 private:
  // Chunks of all rounds in one sequence.
  struct Push {
    uint64_t sequence = 0;
    uint32_t worker = 0;
    uint32_t fragment = 0;
  };

  uint32_t chunk_of(uint64_t sequence) const {
    return static_cast<uint32_t>(sequence % job_.chunk_count());
  }
  uint32_t round_of(uint64_t sequence) const {
    return static_cast<uint32_t>(sequence / job_.chunk_count());
  }

  void take(const nic::RxPacket& packet) {
    wire::Parsed parsed;
    if (wire::parse(packet.data, packet.bytes, parsed) != wire::Reject::kNone) return;
    const wire::Header& header = parsed.header;
    if (header.type() != wire::PacketType::kResult) return;
    const uint64_t sequence = uint64_t{header.round} * job_.chunk_count() + header.chunk;
    if (sequence < done_ || sequence >= next_.sequence + 1) return;
    float first = 0;
    std::memcpy(&first, parsed.payload, sizeof(first));
    if (first != job_.expected(header.chunk)) throw std::runtime_error("a sum is wrong");
    const uint32_t worker = header.spi & ~wire::kSpiToWorker;
    results_[size_t{header.chunk} * job_.shape().workers + worker] |= uint64_t{1}
                                                                      << header.fragment;
    while (done_ < next_.sequence && is_complete(chunk_of(done_))) ++done_;
  }

  // If so, it is made ready for its next round.
  bool is_complete(uint32_t chunk) {
    const uint64_t full = UINT64_MAX >> (64 - job_.fragments(chunk));
    const uint32_t workers = job_.shape().workers;
    const auto begin = results_.begin() + static_cast<ptrdiff_t>(size_t{chunk} * workers);
    const auto end = begin + static_cast<ptrdiff_t>(workers);
    if (!std::all_of(begin, end, [full](uint64_t mask) { return mask == full; })) return false;
    std::fill(begin, end, 0);
    return true;
  }

  void push_again(uint64_t now_ns) {
    ++stalls_;
    last_result_ns_ = now_ns;
    next_ = {done_};
  }

  // The next burst, unless the last one has not left. True if there is something to send.
  bool fill() {
    if (sent_ < filled_) return true;
    sent_ = filled_ = 0;
    while (filled_ < packets_.size() && next_.sequence < done_ + job_.shape().window_chunks) {
      make(next_, packets_[filled_++]);
      if (++next_.fragment < job_.fragments(chunk_of(next_.sequence))) continue;
      next_.fragment = 0;
      if (++next_.worker < job_.shape().workers) continue;
      next_ = {next_.sequence + 1};
    }
    return filled_ > 0;
  }

  void make(const Push& push, nic::TxPacket& packet) {
    const uint32_t chunk = chunk_of(push.sequence);
    wire::Header header;
    header.set_type(wire::PacketType::kPush);
    header.payload_bytes = static_cast<uint16_t>(
        wire::fragment_length(job_.chunk_bytes(chunk), job_.shape().fragment_bytes, push.fragment));
    header.spi = push.worker;
    header.packet_number = packet_numbers_[push.worker]++;
    header.epoch = 1;
    header.generation = 1;
    header.chunk = chunk;
    header.round = round_of(push.sequence);
    header.fragment = static_cast<uint16_t>(push.fragment);
    packet.to = &boxes_[push.worker];
    packet.header = header;
    packet.payload = job_.payload(push.worker, chunk, push.fragment);
    packet.tag = wire::make_tag({}, header, packet.payload);
  }

  // False if the port takes no more now.
  bool send() {
    sent_ += port_.tx_burst({packets_.data() + sent_, filled_ - sent_});
    return sent_ == filled_;
  }

  P& port_;
  std::vector<nic::Endpoint> boxes_;
  const WireJob& job_;
  const uint64_t stall_ns_;
  std::vector<uint64_t> results_;         // by chunk and worker: fragments of the result at hand
  std::vector<uint64_t> packet_numbers_;  // by worker
  Push next_;
  uint64_t done_ = 0;  // every chunk before has come back to everybody
  uint64_t stalls_ = 0;
  uint64_t last_result_ns_ = monotonic_ns();
  std::array<nic::RxPacket, limits::kBurstPackets> received_;
  std::array<nic::TxPacket, limits::kBurstPackets> packets_;
  size_t sent_ = 0;
  size_t filled_ = 0;
};

}  // namespace pbox::perf
