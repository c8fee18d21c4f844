// UDP over kernel sockets. A box has one socket for each pipeline; a worker has one for each
// pipeline of each box. Bursts use recvmmsg and sendmmsg. Where the kernel has UDP GSO and GRO,
// many packets of equal size share one message.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/result.h"
#include "nic/port.h"
#include "nic/socket/send_bound.h"
#include "nic/socket/shared_networks.h"

namespace pbox::nic {

struct SocketOptions {
  Endpoint local;                       // port 0: the kernel chooses a port
  std::optional<Endpoint> remote = {};  // if set, the socket is connected, as a worker's is
  uint32_t receive_buffer_bytes = 8u << 20;
  uint32_t send_buffer_bytes = 8u << 20;  // upper limit; see SendBound
  uint32_t mtu = 0;  // bytes; 0: the kernel's path MTU if connected, else 65536
  bool segmentation_offload = true;
};

// Move-only; used by one thread. Set-up is in port.cc, the data path in port_datapath.cc.
//
// A port that is bound to a wildcard address reports in RxPacket::to which address a packet came
// to, and sends from TxPacket::from. If several interfaces are in the receiver's network, a port
// that is not connected sends through the one that has the source address.
class SocketPort {
 public:
  // Opens, binds and sizes the socket. Errors name the address. Control thread.
  static Result<SocketPort> open(const SocketOptions& options);

  SocketPort(SocketPort&&) noexcept;
  SocketPort& operator=(SocketPort&&) noexcept;
  ~SocketPort();

  // Makes no system call right after one that has emptied the socket.
  size_t rx_burst(std::span<RxPacket> packets);
  size_t tx_burst(std::span<const TxPacket> packets);
  int event_fd() const;
  Capabilities capabilities() const { return capabilities_; }

  const Endpoint& local() const { return local_; }  // with the port that the kernel chose
  // kSendFailures counts packets that the kernel refused permanently: no route, too long, or the
  // peer's port is closed.
  const PortCounters& counters() const { return counters_; }
  // For a port that is built on this one and counts in the same counters.
  PortCounters& counters() { return counters_; }
  // Returns the errno of the last permanent refusal since the last call; 0 if there was none.
  int take_refusal() { return std::exchange(refusal_, 0); }

 private:
  struct Buffers;

  explicit SocketPort(Descriptor descriptor);
  Status configure(const SocketOptions& options);
  void size_buffers(const SocketOptions& options);
  void bound_send_buffer(uint64_t bytes) const;
  bool receive_messages();
  bool take_segment(RxPacket& packet);
  size_t gather(std::span<const TxPacket> packets);
  size_t group_length(std::span<const TxPacket> packets) const;
  const LocalAddress& source_of(const TxPacket& packet) const;
  size_t send_unsegmented(std::span<const TxPacket> packets);
  size_t write_source(const TxPacket& packet, cmsghdr* control) const;

  Descriptor descriptor_;
  std::unique_ptr<Buffers> buffers_;
  Capabilities capabilities_;
  Endpoint local_;
  bool connected_ = false;
  bool has_all_addresses_ = false;  // bound to a wildcard, not connected
  SharedNetworks shared_networks_;  // empty if connected
  SendBound send_bound_{0};
  PortCounters counters_;
  int refusal_ = 0;
};

static_assert(Port<SocketPort>);

}  // namespace pbox::nic
