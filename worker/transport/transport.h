// What carries a worker's packets to the box: a lane for each of the box's pipelines, in their
// order. Kernel sockets are built in (socket_transport.h); others are libraries of their own,
// loaded when asked for (transport_library.h).
//
// Threads. One at a time: set-up on the thread that calls pbox_join, everything after on the I/O
// thread. Ownership of bytes is as nic/port.h says: received ones are valid until the lane's next
// rx_burst, sent ones are the caller's and unchanged until tx_burst has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/result.h"
#include "nic/port.h"
#include "worker/protocol/session_spec.h"

namespace pbox::proto {
class QueuePairs;
}

namespace pbox::worker {

struct Opening {
  uint64_t deadline_ns = 0;  // monotonic
  // Keeps the control connection alive. open() calls it at least every 100 ms; what it fails with
  // ends open().
  std::function<Status()> tend;
};

// Packets by what became of their payloads; small ones, and those of transports that need no
// registered memory, are not counted.
struct PayloadCounts {
  uint64_t direct = 0;          // read by the device where they lay
  uint64_t staged = 0;          // copied first: not in registered memory
  uint64_t staged_refused = 0;  // copied first: the device has refused to register that memory

  void add(const PayloadCounts& other) {
    direct += other.direct;
    staged += other.staged;
    staged_refused += other.staged_refused;
  }
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Before JOIN: bytes of the largest IP packet on the way to this address.
  virtual Result<uint32_t> path_mtu(const nic::Endpoint& box) = 0;
  // After JOIN, once: a lane for each of session.pipelines, leading to that pipeline's queue.
  virtual Status open(const SessionSpec& session, const Opening& opening) = 0;

  // After open. The first packet number of the lane that open has not used.
  virtual uint64_t first_packet_number(uint32_t lane) const = 0;
  // Bytes of packets that may arrive between two rx_bursts without one being dropped; bounds the
  // window.
  virtual uint32_t receivable_bytes(uint32_t lane) const = 0;
  // The least time before an answer counts as late.
  virtual uint64_t rto_floor_ns() const = 0;
  // Readable when rx_burst would return packets, writable when tx_burst would take some; -1 if the
  // lane must be polled.
  virtual int event_fd(uint32_t lane) const = 0;

  // After open: it cannot carry packets any more, and why.
  virtual std::optional<Error> failure() { return std::nullopt; }

  // What the transport has to say to the box on the control connection, from open() on: true if
  // there is something. Transports whose packets find the box by themselves have nothing to say.
  virtual bool take_request(proto::QueuePairs& /*request*/) { return false; }
  virtual void on_answer(const proto::QueuePairs& /*answer*/) {}

  // The caller's memory, after open and between bursts, for transports whose device reads payloads
  // after tx_burst has returned: they leave from there without a copy, until remove_memory. Others
  // have nothing to do. An error: the device refuses; payloads from there go on being copied, and
  // are counted apart. At most limits::kMemoryRegionsMax, none twice, none across another.
  virtual Status add_memory(const std::byte* /*memory*/, size_t /*bytes*/) { return ok_status(); }
  // From here on payloads from there are copied. False while the device may still read what was
  // sent from there: to be asked again, after bursts; `break_off` ends that, at the price of what
  // is under way.
  virtual bool remove_memory(const std::byte* /*memory*/, bool /*break_off*/) { return true; }
  virtual PayloadCounts payload_counts() const { return {}; }

  // The data path: neither blocks, throws or allocates. Fills or sends a prefix, returns its
  // length.
  virtual size_t rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) = 0;
  virtual size_t tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) = 0;
};

}  // namespace pbox::worker
