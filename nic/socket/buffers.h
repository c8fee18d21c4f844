// The scatter/gather tables behind a SocketPort, allocated once.
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

// A coalesced datagram is at most 64 KiB; a receive message must hold a whole one.
inline constexpr size_t kMessageBytes = 64 * 1024;
inline constexpr size_t kReceiveMessages = 8;
inline constexpr size_t kSegmentsMax = 64;  // UDP_MAX_SEGMENTS of the kernel
inline constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(uint16_t));

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

  // The batch being handed out: messages [message_next, message_count), from segment_offset on.
  size_t message_next = 0;
  size_t message_count = 0;
  size_t segment_offset = 0;
  size_t segment_bytes = 0;
  Endpoint segment_from;

  std::array<mmsghdr, limits::kBurstPackets> send_headers{};
  std::array<Send, limits::kBurstPackets> send{};
  std::array<iovec, 3 * limits::kBurstPackets> send_vectors{};
};

}  // namespace pbox::nic
