// One pipeline's queues of a DPDK interface: frames in and out by polling, no kernel on the way.
//
// Received packets are used where the device put them. Results leave as a header, the chunk's own
// memory, and a tag, three pieces that the device gathers, where it can; else as one copied frame.
// Packets that must be answered by a host (ARP, NDP, echo) are, between the others.
#pragma once

#include <memory>
#include <span>

#include "nic/dpdk/interface.h"
#include "nic/payload_memory.h"
#include "nic/port.h"

namespace pbox::nic {

// Used by one thread, which holds a DpdkThread; what is said otherwise, by the control thread.
class DpdkPort {
 public:
  // `interface` outlives the port. pipeline: in [0, interface.pipeline_count()), one port for each.
  DpdkPort(DpdkInterface& interface, uint32_t pipeline);
  DpdkPort(DpdkPort&&) noexcept;
  ~DpdkPort();

  size_t rx_burst(std::span<RxPacket> packets);
  // Takes fewer than all only while the interface's only device takes none.
  size_t tx_burst(std::span<const TxPacket> packets);
  int event_fd() const { return -1; }
  Capabilities capabilities() const;
  const PortCounters& counters() const;

  // Payloads from there may be sent without a copy. Control thread, before the first is.
  Status add_memory(const std::byte* memory, size_t bytes);
  // After the last was handed to tx_burst: false while a device may still read there. Then the
  // memory stays, and this is asked again. Control thread.
  bool remove_memory(const std::byte* memory, size_t bytes);

  Endpoint local() const;  // the first address

 private:
  struct State;
  std::unique_ptr<State> state_;
};

static_assert(Port<DpdkPort>);

}  // namespace pbox::nic
