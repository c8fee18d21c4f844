#include "nic/shm/hello.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace pbox::nic {
namespace {

constexpr size_t kDescriptorsMax = 3;
constexpr int kBacklog = 256;

struct Address {
  sockaddr_un value{};
  socklen_t bytes = 0;
};

// An abstract name begins with a zero byte, and only its length says where it ends.
Address address_of(const std::string& name) {
  PBOX_CHECK(!name.empty() && name.size() <= kLaneSocketBytesMax);
  Address address;
  address.value.sun_family = AF_UNIX;
  std::memcpy(&address.value.sun_path[1], name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor lane_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

struct Control {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kDescriptorsMax * sizeof(int))> bytes{};
};

Status send_message(int socket, const void* data, size_t bytes,
                    const std::vector<int>& descriptors) {
  PBOX_CHECK(descriptors.size() <= kDescriptorsMax);
  iovec piece{const_cast<void*>(data), bytes};
  Control control;
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t length = descriptors.size() * sizeof(int);
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(length);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(length);
    std::memcpy(CMSG_DATA(header), descriptors.data(), length);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(bytes)) return ok_status();
  return system_error("cannot send a message about a lane", errno);
}

// Receives one message and all descriptors that came with it, so that none leaks. Returns false if
// no message has arrived.
Result<bool> receive_message(int socket, void* data, size_t bytes,
                             std::vector<Descriptor>& descriptors) {
  iovec piece{data, bytes};
  Control control;
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t count = 0;
  do {
    count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (count < 0) return system_error("cannot receive a message about a lane", errno);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t length = header->cmsg_len - CMSG_LEN(0);
    for (size_t at = 0; at + sizeof(int) <= length; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof(fd));
      descriptors.emplace_back(fd);
    }
  }
  if (count == 0) return Error{ErrorCode::kClosed, "the other end has closed the lane"};
  if (static_cast<size_t>(count) != bytes) {
    return Error{ErrorCode::kInvalidArgument, "a message about a lane has " +
                                                  std::to_string(count) + " bytes instead of " +
                                                  std::to_string(bytes)};
  }
  // The kernel drops descriptors for which the message or this process has no room.
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    if (descriptors.size() >= kDescriptorsMax) {
      return Error{ErrorCode::kInvalidArgument, "a message about a lane has more than " +
                                                    std::to_string(kDescriptorsMax) +
                                                    " descriptors"};
    }
    return Error{ErrorCode::kResourceExhausted,
                 "no descriptors are left for those of a message about a lane; raise the limit of "
                 "the process that receives it (LimitNOFILE, ulimit -n)"};
  }
  return true;
}

Error wrong_descriptors(size_t count, size_t expected) {
  return {ErrorCode::kInvalidArgument, "a message about a lane has " + std::to_string(count) +
                                           " descriptors instead of " + std::to_string(expected)};
}

}  // namespace

Result<Descriptor> listen_for_lanes(const std::string& name) {
  Descriptor socket = lane_socket();
  if (!socket.ok()) return system_error("cannot open a UNIX socket", errno);
  const Address address = address_of(name);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.value), address.bytes) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return system_error("cannot listen on the abstract UNIX socket '" + name + "'", errno);
  }
  return socket;
}

Result<Descriptor> connect_lane(const std::string& name, bool& would_block) {
  would_block = false;
  Descriptor socket = lane_socket();
  if (!socket.ok()) return system_error("cannot open a UNIX socket", errno);
  const Address address = address_of(name);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.value), address.bytes) ==
      0) {
    return socket;
  }
  would_block = errno == EAGAIN;
  return system_error("cannot connect to the abstract UNIX socket '" + name + "'", errno);
}

Status send_hello(int socket, const LaneHello& hello, const std::vector<int>& descriptors) {
  return send_message(socket, &hello, sizeof(hello), descriptors);
}

Status send_answer(int socket, const LaneAnswer& answer, const std::vector<int>& descriptors) {
  return send_message(socket, &answer, sizeof(answer), descriptors);
}

Result<std::optional<ReceivedHello>> receive_hello(int socket) {
  LaneHello hello;
  std::vector<Descriptor> descriptors;
  const auto received = receive_message(socket, &hello, sizeof(hello), descriptors);
  if (!received) return received.error();
  if (!*received) return std::optional<ReceivedHello>();
  const size_t expected = hello.memory_bytes > 0 ? 2 : 1;
  if (descriptors.size() != expected) return wrong_descriptors(descriptors.size(), expected);
  ReceivedHello out{hello, std::move(descriptors[0])};
  if (expected == 2) out.memory = std::move(descriptors[1]);
  return std::optional(std::move(out));
}

Result<std::optional<ReceivedAnswer>> receive_answer(int socket) {
  LaneAnswer answer;
  std::vector<Descriptor> descriptors;
  const auto received = receive_message(socket, &answer, sizeof(answer), descriptors);
  if (!received) return received.error();
  if (!*received) return std::optional<ReceivedAnswer>();
  answer.refusal.back() = 0;
  const size_t shown = answer.memory_bytes > 0 ? 3 : 2;
  const size_t expected = answer.refusal[0] == 0 ? shown : 0;
  if (descriptors.size() != expected) return wrong_descriptors(descriptors.size(), expected);
  ReceivedAnswer out;
  out.answer = answer;
  if (expected >= 2) {
    out.segment = std::move(descriptors[0]);
    out.bell = std::move(descriptors[1]);
  }
  if (expected == 3) out.memory = std::move(descriptors[2]);
  return std::optional(std::move(out));
}

}  // namespace pbox::nic
