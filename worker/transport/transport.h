// Carries a worker's packets to the box: a lane for each of the box's pipelines, in the pipelines'
// order. Kernel sockets are built in (socket_transport.h). Other transports are libraries that are
// loaded on demand (transport_library.h).
//
// Used by one thread at a time: open() by one that may wait (lane_opener.h), everything else by the
// thread that calls pbox_join until the join is over, then by the I/O thread. As in nic/port.h,
// received bytes are valid until the lane's next rx_burst. Sent bytes belong to the caller and must
// not change until tx_burst has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "nic/port.h"
#include "worker/protocol/session_spec.h"

namespace pbox::proto {
class QueuePairs;
}

namespace pbox::worker {

class SharedHeap;

struct Opening {
  uint64_t deadline_ns = 0;  // monotonic_ns()
  // Passes requests and answers on, and returns an error if open() should not go on. open() calls
  // it at least every 100 ms and ends with its error.
  std::function<Status()> keep_alive;
  // Memory that the caller's inputs may lie in; null: there is none. Outlives the transport.
  const SharedHeap* heap = nullptr;
};

// Packets sent, by how their payload reached the device. Small packets are not counted, nor are
// those of transports that need no registered memory.
struct PayloadCounts {
  uint64_t direct = 0;          // read in place by the device
  uint64_t staged = 0;          // copied, because the memory is not registered
  uint64_t staged_refused = 0;  // copied, because the device refused to register the memory

  void add(const PayloadCounts& other) {
    direct += other.direct;
    staged += other.staged;
    staged_refused += other.staged_refused;
  }
};

// Memory that a device may read. The destructor revokes that, which takes about as long as
// registering did. Any thread may destroy it.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
};

// Registers memory with a device. The kernel locks the memory's pages, which takes a second for
// some gigabytes. So any thread but the I/O thread may call this. It may outlive its transport.
class MemoryRegistrar {
 public:
  virtual ~MemoryRegistrar() = default;
  virtual Result<std::unique_ptr<DeviceMemory>> add(const std::byte* memory, size_t bytes) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Before JOIN: returns the size of the largest IP packet that can reach this address, in bytes.
  virtual Result<uint32_t> path_mtu(const nic::Endpoint& box) = 0;
  // After JOIN, once: opens a lane for each of session.pipelines, leading to that pipeline's queue.
  virtual Status open(const SessionSpec& session, const Opening& opening) = 0;

  // After open(): bytes of packets that may arrive between two calls of rx_burst without loss.
  // Bounds the window.
  virtual uint32_t receivable_bytes(uint32_t lane) const = 0;
  // Returns the minimum time before an answer counts as late.
  virtual uint64_t rto_floor_ns() const = 0;
  // Returns a descriptor that is readable when rx_burst would return packets, and writable when
  // tx_burst would take some; -1 if the lane must be polled.
  virtual int event_fd(uint32_t lane) const = 0;

  // After open(): returns the reason if the transport can no longer carry packets.
  virtual std::optional<Error> failure() { return std::nullopt; }

  // After open(): returns the reason if this host has lost its path to the box, so that the kernel
  // refuses to send packets. Called between bursts.
  virtual std::optional<Error> path_failure() { return std::nullopt; }
  // After open(): returns this host's addresses that the lanes send from, if its kernel knows them.
  virtual std::vector<nic::Endpoint> local_endpoints() const { return {}; }

  // From open() on: fills in a request to the box on the control connection; returns false if there
  // is none. Only transports that must set up connections with the box have requests.
  virtual bool take_request(proto::QueuePairs& /*request*/) { return false; }
  virtual void on_answer(const proto::QueuePairs& /*answer*/) {}

  // After open(): returns the registrar of this transport's device, always the same one. Null for
  // transports that need no registered memory.
  virtual std::shared_ptr<MemoryRegistrar> memory_registrar() { return nullptr; }
  // After open(), between bursts: from now on, payloads in this memory are sent without a copy,
  // until remove_memory(). `registered`: the registrar's result. If it is an error, payloads there
  // are copied and counted apart. At most limits::kMemoryRegionsMax regions, which must not
  // overlap.
  virtual void add_memory(const std::byte* /*memory*/, size_t /*bytes*/,
                          Result<std::unique_ptr<DeviceMemory>> /*registered*/) {}
  // From now on, payloads in this memory are copied. Returns false while the device may still read
  // a payload from it; call again after further bursts. `force` makes the device stop, at the price
  // of what is in flight. After true, `released` has the region, if any, for the caller to destroy.
  virtual bool remove_memory(const std::byte* /*memory*/, bool /*force*/,
                             std::unique_ptr<DeviceMemory>& /*released*/) {
    return true;
  }
  // After open(): returns the memory whose payloads this process does not read to send them, unless
  // it sends them again; empty if there is none.
  virtual std::span<const std::byte> unread_memory() const { return {}; }
  virtual PayloadCounts payload_counts() const { return {}; }

  // The data path: these neither block, throw nor allocate. They fill or send a prefix of the span
  // and return its length.
  virtual size_t rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) = 0;
  virtual size_t tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) = 0;
};

}  // namespace pbox::worker
