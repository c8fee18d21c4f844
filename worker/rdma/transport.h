// A worker's packets over reliable connections of an RDMA device: a lane for each pipeline of the
// box, each with queues of its own. The two ends of a lane find each other on the control
// connection. A connection that breaks is made anew there while operations wait; what was under way
// is sent again by the protocol's own timers.
//
// Payloads in memory that the caller has registered leave from there, others are copied into the
// lane's buffers first: a device may read them after the operation is done, when memory that nobody
// has promised to keep may be gone. What it reads then nobody takes (exchange_receive.cc, place()).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nic/rdma/queue.h"
#include "worker/rdma/port_settings.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// As Transport says of threads.
class RdmaTransport : public Transport {
 public:
  explicit RdmaTransport(RdmaPortSettings settings) : settings_(std::move(settings)) {}
  ~RdmaTransport() override;

  // No bound: a message may be longer than a packet of the network.
  Result<uint32_t> path_mtu(const nic::Endpoint& box) override;
  // Opens the device and connects a queue pair to each pipeline. Errors say which is refused, or
  // what of the device.
  Status open(const SessionSpec& session, const Opening& opening) override;
  uint64_t first_packet_number(uint32_t /*lane*/) const override { return 1; }
  uint32_t receivable_bytes(uint32_t lane) const override;
  uint64_t rto_floor_ns() const override;
  int event_fd(uint32_t lane) const override { return lanes_[lane].queue->event_fd(); }
  std::optional<Error> failure() override;
  bool take_request(proto::QueuePairs& request) override;
  void on_answer(const proto::QueuePairs& answer) override;
  Status add_memory(const std::byte* memory, size_t bytes) override;
  bool remove_memory(const std::byte* memory, bool break_off) override;
  PayloadCounts payload_counts() const override;
  size_t rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) override;
  size_t tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) override;

 private:
  struct Lane {
    enum class State { kMissing, kToAsk, kAsked, kConnected };
    State state = State::kMissing;
    std::unique_ptr<nic::RdmaQueue> queue;
    uint32_t landing_slots_wanted = 0;
    uint64_t owner = 0;  // of the newest queue pair; each has a number of its own
    nic::RdmaQueue::Prepared prepared;
    // Since a packet last came: how often it broke, and when first.
    uint32_t breaks = 0;
    uint64_t broken_ns = 0;
  };

  Status open_lane(const SessionSpec& session, size_t index);
  static void disconnect(Lane& lane);
  Status prepare(Lane& lane);
  void mend(uint64_t now_ns);
  void hear(uint64_t now_ns);
  void give_up(const std::string& why);
  bool is_connected() const;
  bool has_failed(const Lane& lane, uint64_t now_ns) const;

  RdmaPortSettings settings_;
  // In the order in which they stand on each other. Memory is registered once for all lanes, and
  // outlives their queue pairs: one that is made anew finds it there.
  std::shared_ptr<nic::RdmaDevice> device_;
  std::shared_ptr<nic::ProtectionDomain> domain_;
  std::map<const std::byte*, nic::MemoryRegion> memory_;  // without a region: refused
  std::vector<Lane> lanes_;
  uint64_t sequence_ = 0;     // of the newest question
  bool awaited_ = false;      // its answer
  std::string refusal_;       // why the last attempt failed; empty if it did not
  uint64_t next_try_ns_ = 0;  // after that
  uint64_t next_hearing_ns_ = 0;
  uint32_t receivable_bytes_ = 0;
};

}  // namespace pbox::worker
