// The scatter/gather tables of a SocketPort, allocated once. Private to nic/socket.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>

#include "base/limits.h"
#include "nic/port.h"
#include "nic/socket/port.h"

namespace pbox::nic {

// A coalesced message has at most 64 KiB, and a receive buffer must hold all of it.
inline constexpr size_t kMessageBytes = 64 * 1024;
inline constexpr size_t kReceiveMessages = 8;
inline constexpr size_t kSegmentsMax = 64;  // the kernel's UDP_MAX_SEGMENTS
// Room for UDP_GRO and the address that the packet was sent to, or for UDP_SEGMENT and the address
// to send from.
inline constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(in6_pktinfo));

struct SocketPort::Buffers {
  struct Receive {
    sockaddr_storage address;
    iovec vector;
    alignas(cmsghdr) std::array<char, kControlBytes> control;
  };
  struct Send {
    sockaddr_storage address;
    alignas(cmsghdr) std::array<char, kControlBytes> control;
    size_t packet_count;
  };

  std::array<mmsghdr, kReceiveMessages> receive_headers{};
  std::array<Receive, kReceiveMessages> receive{};
  std::unique_ptr<std::byte[]> receive_bytes;

  // Received and not yet returned by rx_burst: messages [message_next, message_count), the first of
  // them from byte segment_offset on.
  size_t message_next = 0;
  size_t message_count = 0;
  size_t segment_offset = 0;
  size_t segment_bytes = 0;   // packet length within message_next
  Endpoint segment_from;      // sender of message_next
  LocalAddress segment_to{};  // the address that message_next came to, if the port has several
  // The last system call has emptied the socket, so the next rx_burst need not make one.
  bool is_drained = false;

  std::array<mmsghdr, limits::kBurstPackets> send_headers{};
  std::array<Send, limits::kBurstPackets> send{};
  std::array<iovec, 3 * limits::kBurstPackets> send_vectors{};
};

}  // namespace pbox::nic
