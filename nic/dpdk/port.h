// The queues of one pipeline on a DPDK interface. Frames are received and sent by polling, without
// the kernel.
//
// Received packets stay in the device's buffers. Where the device can gather a packet from several
// buffers, a result leaves as three: headers, the chunk's own memory, and tag. Otherwise it is
// copied into one frame. The port also answers the requests that a host must answer (ARP, NDP,
// echo).
#pragma once

#include <memory>
#include <span>

#include "nic/dpdk/interface.h"
#include "nic/payload_memory.h"
#include "nic/port.h"

namespace pbox::nic {

// Satisfies Port. Used by one thread, which holds a DpdkThread, except for the functions that
// belong to the control thread.
class DpdkPort {
 public:
  // `interface` must outlive the port. `pipeline` is in [0, interface.pipeline_count()). Each
  // pipeline has exactly one port.
  DpdkPort(DpdkInterface& interface, uint32_t pipeline);
  DpdkPort(DpdkPort&&) noexcept;
  ~DpdkPort();

  size_t rx_burst(std::span<RxPacket> packets);
  // Takes fewer packets than given only if there are more than limits::kBurstPackets, if buffers
  // run out, or while the interface's only device accepts none.
  size_t tx_burst(std::span<const TxPacket> packets);
  int event_fd() const { return -1; }
  Capabilities capabilities() const;
  const PortCounters& counters() const;

  // Allows payloads in this memory to be sent without a copy. Call it before the first such payload
  // is sent. Control thread.
  Status add_memory(const std::byte* memory, size_t bytes);
  // Revokes add_memory(). Call it after the last payload was passed to tx_burst. Returns false
  // while a device may still read the memory: then keep the memory and call again. Control thread.
  bool remove_memory(const std::byte* memory, size_t bytes);

  Endpoint local() const;  // the interface's first address and the pipeline's UDP port

 private:
  struct State;
  std::unique_ptr<State> state_;
};

static_assert(Port<DpdkPort>);

}  // namespace pbox::nic
