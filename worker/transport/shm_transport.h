// Shared memory: a lane (nic/shm) to each pipeline of a box on the same host. No system call is
// needed to send a packet while the box is awake. Payloads in the shared heap stay there, others
// are copied into this worker's ring; the box adds from either. Results are read from the box's
// memory, or from its ring.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nic/shm/hello.h"
#include "nic/shm/lane.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// Threads may use it as Transport says.
class ShmTransport : public Transport {
 public:
  ~ShmTransport() override;

  // Returns the maximum: no link limits a packet.
  Result<uint32_t> path_mtu(const nic::Endpoint& box) override;
  // Asks the box where to make lanes, and makes one for each pipeline. kNotFound: the box is on
  // another host, in another network namespace, or offers no shared memory.
  Status open(const SessionSpec& session, const Opening& opening) override;
  uint32_t receivable_bytes(uint32_t lane) const override;
  uint64_t rto_floor_ns() const override;
  int event_fd(uint32_t lane) const override;
  std::optional<Error> failure() override;
  bool take_request(proto::QueuePairs& request) override;
  void on_answer(const proto::QueuePairs& answer) override;
  std::span<const std::byte> unread_memory() const override { return unread_; }
  PayloadCounts payload_counts() const override;
  size_t rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) override;
  size_t tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) override;

 private:
  struct Lane {
    std::unique_ptr<nic::ShmLane> ends;
    bool is_asleep = false;  // since event_fd()
    bool is_closed = false;  // by the box
  };

  Status await_offer(const Opening& opening);
  Status open_lane(uint32_t index, const Opening& opening);
  Status make_lane(uint32_t index, const Opening& opening, Descriptor& connection);
  Status take_lane(nic::ReceivedAnswer received, const SharedHeap* heap, nic::OwnSegment own,
                   Descriptor& connection);
  Result<Descriptor> connect(const Opening& opening) const;
  void wake_up(Lane& lane);

  enum class Ask { kNo, kToAsk, kAsked, kAnswered };
  Ask ask_ = Ask::kNo;
  std::string refusal_;  // the box's, or why its answer is of no use; empty: none
  std::string socket_;   // the box's socket for lanes
  nic::LaneToken token_{};
  uint32_t fragment_bytes_ = limits::kFragmentBytesMax;
  mutable std::vector<Lane> lanes_;    // mutable, because event_fd() notes that a lane sleeps
  std::span<const std::byte> unread_;  // the heap, if the box reads it
  uint64_t closed_ns_ = 0;  // when this end saw that the box had closed a lane; 0: it has not
  Descriptor ready_;        // always readable
};

}  // namespace pbox::worker
