// UDP over kernel sockets: one socket per pipeline on the box, one per (worker, pipeline) on a
// worker. recvmmsg/sendmmsg in bursts; UDP GSO and GRO carry many equal packets per system call
// where packets are small enough for that to pay.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "nic/port.h"

namespace pbox::nic {

struct SocketOptions {
  Endpoint local;                       // port 0: the kernel chooses
  std::optional<Endpoint> remote = {};  // set: a connected socket, which is what a worker uses
  uint32_t receive_buffer_bytes = 8u << 20;
  uint32_t send_buffer_bytes = 8u << 20;
  uint32_t mtu = 0;  // 0: what the path (connected) or the interface says
  bool segmentation_offload = true;
};

// Move-only; used by one thread. Set-up in port.cc, the data path in port_datapath.cc.
class SocketPort {
 public:
  static Result<SocketPort> open(const SocketOptions& options);

  SocketPort(SocketPort&&) noexcept;
  SocketPort& operator=(SocketPort&&) noexcept;
  ~SocketPort();

  size_t rx_burst(std::span<RxPacket> packets);
  size_t tx_burst(std::span<const TxPacket> packets);
  int event_fd() const;
  Capabilities capabilities() const { return capabilities_; }

  const Endpoint& local() const { return local_; }  // with the port the kernel chose
  // kSendFailures: refused by the kernel for good (no route, too long, the peer's port closed).
  const PortCounters& counters() const { return counters_; }

 private:
  struct Buffers;
  class Descriptor {  // owns a file descriptor
   public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(fd_, other.fd_);
      return *this;
    }
    ~Descriptor();
    int get() const { return fd_; }

   private:
    int fd_;
  };

  explicit SocketPort(Descriptor descriptor);
  Status configure(const SocketOptions& options);
  void size_buffers(const SocketOptions& options);
  bool receive_messages();
  bool take_segment(RxPacket& packet);
  size_t gather(std::span<const TxPacket> packets);
  size_t group_length(std::span<const TxPacket> packets) const;

  Descriptor descriptor_;
  std::unique_ptr<Buffers> buffers_;
  Capabilities capabilities_;
  Endpoint local_;
  bool connected_ = false;
  PortCounters counters_;
};

static_assert(Port<SocketPort>);

}  // namespace pbox::nic
