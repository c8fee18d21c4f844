// The other end of the wire: all workers of a WireJob over one port, with as little work as
// possible. The load pushes chunk after chunk for every worker, round after round, as far ahead of
// the results as the window allows. It checks headers and the first value of each result. If no
// result arrives for a while, it pushes all chunks in flight again.
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

// P: a type with a port's rx_burst() and tx_burst().
template <typename P>
class WireLoad {
 public:
  // `port` and `job` must outlive the load. boxes: the destination of each worker. stall_ns: time
  // without a result after which packets count as lost.
  WireLoad(P& port, std::vector<nic::Endpoint> boxes, const WireJob& job,
           uint64_t stall_ns = 50 * kNanosPerMilli)
      : port_(port),
        boxes_(std::move(boxes)),
        job_(job),
        stall_ns_(stall_ns),
        results_(job.chunk_count() * size_t{job.shape().workers}),
        packet_numbers_(job.shape().workers, 1) {}

  // Restarts the stall timer; call it after a pause.
  void resume(uint64_t now_ns) { last_result_ns_ = now_ns; }

  // Receives all packets that have arrived, and sends all that the window allows. Throws if a
  // result is wrong.
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

  uint64_t stalls() const { return stalls_; }  // times that the chunks in flight were pushed again

 private:
  // The position of a fragment; `sequence` numbers the chunks of all rounds.
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
    if (first != job_.expected(header.chunk)) throw std::runtime_error("the box sent a wrong sum");
    const uint32_t worker = header.spi & ~wire::kSpiToWorker;
    results_[size_t{header.chunk} * job_.shape().workers + worker] |= uint64_t{1}
                                                                      << header.fragment;
    while (done_ < next_.sequence && is_complete(chunk_of(done_))) ++done_;
  }

  // Returns whether all workers have the chunk's whole result. If so, clears the chunk for its next
  // round.
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

  // Prepares the next burst once the last one is sent. Returns true if there are packets to send.
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

  // Returns false if the port accepts no more packets now.
  bool send() {
    sent_ += port_.tx_burst({packets_.data() + sent_, filled_ - sent_});
    return sent_ == filled_;
  }

  P& port_;
  std::vector<nic::Endpoint> boxes_;
  const WireJob& job_;
  const uint64_t stall_ns_;
  std::vector<uint64_t> results_;         // by chunk and worker: bit mask of received fragments
  std::vector<uint64_t> packet_numbers_;  // by worker
  Push next_;
  uint64_t done_ = 0;  // all workers have the results of all chunks before this sequence
  uint64_t stalls_ = 0;
  uint64_t last_result_ns_ = monotonic_ns();
  std::array<nic::RxPacket, limits::kBurstPackets> received_;
  std::array<nic::TxPacket, limits::kBurstPackets> packets_;
  size_t sent_ = 0;
  size_t filled_ = 0;
};

}  // namespace pbox::perf
