// Carries a worker's packets over reliable connections of an RDMA device: a lane with queues of its
// own for each pipeline of the box. The two ends of a lane find each other over the control
// connection. A connection that breaks is replaced while operations wait. The protocol's own timers
// send again what was in flight.
//
// Payloads in memory that the caller has registered are sent from there. Others are copied into the
// lane's buffers first, because the device may read them after the operation is done, and
// unregistered memory may be freed by then. Bytes that the device reads from registered memory
// after that are dropped by the box (exchange_receive.cc, store_fragment()).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nic/rdma/queue.h"
#include "worker/rdma/port_settings.h"
#include "worker/transport/transport.h"

namespace pbox::worker {

// Threads may use it as Transport says.
class RdmaTransport : public Transport {
 public:
  explicit RdmaTransport(RdmaPortSettings settings) : settings_(std::move(settings)) {}
  ~RdmaTransport() override;

  // Returns the maximum: a message may be larger than a packet of the network.
  Result<uint32_t> path_mtu(const nic::Endpoint& box) override;
  // Opens the device and connects a queue pair to each pipeline. Errors say which pipeline refuses,
  // or what is wrong with the device.
  Status open(const SessionSpec& session, const Opening& opening) override;
  uint32_t receivable_bytes(uint32_t lane) const override;
  uint64_t rto_floor_ns() const override;
  int event_fd(uint32_t lane) const override { return lanes_[lane].queue->event_fd(); }
  std::optional<Error> failure() override;
  bool take_request(proto::QueuePairs& request) override;
  void on_answer(const proto::QueuePairs& answer) override;
  std::shared_ptr<MemoryRegistrar> memory_registrar() override { return registrar_; }
  void add_memory(const std::byte* memory, size_t bytes,
                  Result<std::unique_ptr<DeviceMemory>> registered) override;
  bool remove_memory(const std::byte* memory, bool force,
                     std::unique_ptr<DeviceMemory>& released) override;
  PayloadCounts payload_counts() const override;
  size_t rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) override;
  size_t tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) override;

 private:
  struct Lane {
    enum class State { kMissing, kToAsk, kAsked, kConnected };
    State state = State::kMissing;
    std::unique_ptr<nic::RdmaQueue> queue;
    uint32_t landing_slots_wanted = 0;
    uint64_t owner = 0;  // number of the newest queue pair; never used twice
    nic::RdmaQueue::Prepared prepared;
    // Since a packet last arrived: how often the connection broke, and when for the first time.
    uint32_t breaks = 0;
    uint64_t broken_ns = 0;
  };

  Status open_lane(const SessionSpec& session, size_t index);
  static void disconnect(Lane& lane);
  Status prepare(Lane& lane);
  void reconnect_lanes(uint64_t now_ns);
  void poll_events(uint64_t now_ns);
  void give_up(const std::string& why);
  bool is_connected() const;
  bool has_failed(const Lane& lane, uint64_t now_ns) const;

  RdmaPortSettings settings_;
  // These members are in the order of their dependencies. Memory is registered once for all lanes
  // and outlives their queue pairs, so a new queue pair finds it registered.
  std::shared_ptr<nic::RdmaDevice> device_;
  std::shared_ptr<nic::ProtectionDomain> domain_;
  std::shared_ptr<MemoryRegistrar> registrar_;
  // By address; null: the device has refused the memory.
  std::map<const std::byte*, std::unique_ptr<DeviceMemory>> memory_;
  std::vector<Lane> lanes_;
  uint64_t sequence_ = 0;       // number of the newest request
  bool awaits_answer_ = false;  // the answer to that request has not arrived
  std::string refusal_;         // why the last attempt failed; empty if it succeeded
  uint64_t next_try_ns_ = 0;    // when to try again after a failed attempt
  uint64_t next_poll_ns_ = 0;
  uint32_t receivable_bytes_ = 0;
};

}  // namespace pbox::worker
