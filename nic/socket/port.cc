#include "nic/socket/port.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <cerrno>

#include "nic/socket/address.h"
#include "nic/socket/buffers.h"

namespace pbox::nic {
namespace {

void set_option(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

int get_option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  return getsockopt(fd, level, name, &value, &length) == 0 ? value : 0;
}

// The FORCE variant may exceed net.core.*mem_max but needs CAP_NET_ADMIN. Without the capability
// the plain variant sets the buffer up to that limit.
void set_buffer(int fd, int force_name, int name, uint32_t bytes) {
  const int value = static_cast<int>(bytes);
  if (setsockopt(fd, SOL_SOCKET, force_name, &value, sizeof(value)) != 0) {
    set_option(fd, SOL_SOCKET, name, value);
  }
}

// An unconnected socket has no single path. A job uses the smallest MTU of its workers' paths.
constexpr uint32_t kUnconnectedMtu = 65536;

}  // namespace

SocketPort::SocketPort(Descriptor descriptor)
    : descriptor_(std::move(descriptor)), buffers_(std::make_unique<Buffers>()) {}
SocketPort::SocketPort(SocketPort&&) noexcept = default;
SocketPort& SocketPort::operator=(SocketPort&&) noexcept = default;
SocketPort::~SocketPort() = default;

int SocketPort::event_fd() const {
  return descriptor_.get();
}

Result<SocketPort> SocketPort::open(const SocketOptions& options) {
  const int family = options.local.ipv6 ? AF_INET6 : AF_INET;
  const int fd = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return system_error("cannot open a UDP socket", errno);
  SocketPort port{Descriptor(fd)};
  if (const Status status = port.configure(options); !status) return status.error();
  port.size_buffers(options);
  return port;
}

Status SocketPort::configure(const SocketOptions& options) {
  const int fd = descriptor_.get();
  sockaddr_storage address{};
  socklen_t length = to_sockaddr(options.local, address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return system_error(
        "cannot bind UDP " + to_string(options.local) +
            "; check that no other program uses the port and that this host has the address",
        errno);
  }
  length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  local_ = from_sockaddr(address);

  // Never fragment: a packet that exceeds the path's MTU is a configuration error, which
  // fragmentation would hide. A port on :: sends to IPv4 addresses too.
  set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  if (options.local.ipv6) set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
  capabilities_.mtu = options.mtu != 0 ? options.mtu : kUnconnectedMtu;
  if (!options.remote) {
    has_all_addresses_ = options.local.address == kNoLocalAddress;
    if (has_all_addresses_ && options.local.ipv6) {
      set_option(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    } else if (has_all_addresses_) {
      set_option(fd, IPPROTO_IP, IP_PKTINFO, 1);
    }
    shared_networks_ = SharedNetworks::read();
  } else {
    length = to_sockaddr(*options.remote, address);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
      return system_error("cannot reach UDP " + to_string(*options.remote), errno);
    }
    connected_ = true;
    const int path_mtu = options.local.ipv6 ? get_option(fd, IPPROTO_IPV6, IPV6_MTU)
                                            : get_option(fd, IPPROTO_IP, IP_MTU);
    if (options.mtu == 0 && path_mtu > 0) capabilities_.mtu = static_cast<uint32_t>(path_mtu);
    length = sizeof(address);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
    local_ = from_sockaddr(address);
  }
  return ok_status();
}

// Passes half of the bytes, because the kernel doubles the value: it also counts its own memory for
// each packet.
void SocketPort::bound_send_buffer(uint64_t bytes) const {
  set_buffer(descriptor_.get(), SO_SNDBUFFORCE, SO_SNDBUF, static_cast<uint32_t>(bytes / 2));
}

void SocketPort::size_buffers(const SocketOptions& options) {
  const int fd = descriptor_.get();
  set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, options.receive_buffer_bytes);
  send_bound_ = SendBound(2 * uint64_t{options.send_buffer_bytes});
  bound_send_buffer(send_bound_.bytes());
  capabilities_.kind = "socket";
  capabilities_.receive_buffer_bytes = static_cast<uint32_t>(get_option(fd, SOL_SOCKET, SO_RCVBUF));
  if (options.segmentation_offload) {
    const int on = 1;
    capabilities_.receive_coalescing = setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)) == 0;
    int segment = 0;
    socklen_t length = sizeof(segment);
    capabilities_.segmentation_offload =
        getsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, &length) == 0;
  }

  buffers_->receive_bytes =
      std::make_unique_for_overwrite<std::byte[]>(kReceiveMessages * kMessageBytes);
  for (size_t index = 0; index < kReceiveMessages; ++index) {
    auto& receive = buffers_->receive[index];
    receive.vector = {buffers_->receive_bytes.get() + index * kMessageBytes, kMessageBytes};
    msghdr& header = buffers_->receive_headers[index].msg_hdr;
    header.msg_iov = &receive.vector;
    header.msg_iovlen = 1;
    header.msg_name = &receive.address;
    header.msg_control = receive.control.data();
  }
}

}  // namespace pbox::nic
