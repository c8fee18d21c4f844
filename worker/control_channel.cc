#include "worker/control_channel.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "nic/socket/address.h"
#include "worker/fork_guard.h"

namespace pbox::worker {
namespace {

struct HostPort {
  std::string host;
  std::string port;
};

Result<HostPort> split(const std::string& box) {
  const size_t colon = box.rfind(':');
  const Error malformed{ErrorCode::kInvalidArgument,
                        "box '" + box + "' must be HOST:PORT or [IPV6]:PORT"};
  if (colon == std::string::npos || colon == 0 || colon + 1 == box.size()) return malformed;
  HostPort parts{box.substr(0, colon), box.substr(colon + 1)};
  if (parts.host.front() == '[') {
    if (parts.host.back() != ']') return malformed;
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find(':') != std::string::npos) {
    return malformed;
  }
  return parts;
}

// 0 on success, else errno. The socket does not block.
int connect_within(int fd, const sockaddr* address, socklen_t length, uint32_t timeout_ms) {
  if (::connect(fd, address, length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{fd, POLLOUT, 0};
  const int ready = poll(&wait, 1, static_cast<int>(timeout_ms));
  if (ready == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (ready < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

}  // namespace

Result<ControlChannel> ControlChannel::connect(const std::string& box, uint32_t timeout_ms) {
  const auto parts = split(box);
  if (!parts) return parts.error();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  if (failed != 0) {
    return Error{ErrorCode::kUnavailable,
                 "cannot resolve box '" + box + "': " + gai_strerror(failed)};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::string last = "no address";
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int fd = socket(entry->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int error = connect_within(fd, entry->ai_addr, entry->ai_addrlen, timeout_ms);
    if (error != 0) {
      last = std::strerror(error);
      close(fd);
      continue;
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sockaddr_storage address{};
    std::memcpy(&address, entry->ai_addr, entry->ai_addrlen);
    close_in_child(fd);
    return ControlChannel(fd, nic::from_sockaddr(address), box);
  }
  return Error{ErrorCode::kUnavailable, "cannot reach the box at " + box + ": " + last +
                                            "; is pboxd running there and the port open?"};
}

ControlChannel::ControlChannel(ControlChannel&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      peer_(other.peer_),
      box_(std::move(other.box_)),
      outgoing_(std::move(other.outgoing_)),
      reader_(std::move(other.reader_)),
      broken_(std::move(other.broken_)) {}

ControlChannel& ControlChannel::operator=(ControlChannel&& other) noexcept {
  std::swap(fd_, other.fd_);
  peer_ = other.peer_;
  box_ = std::move(other.box_);
  outgoing_ = std::move(other.outgoing_);
  reader_ = std::move(other.reader_);
  broken_ = std::move(other.broken_);
  return *this;
}

ControlChannel::~ControlChannel() {
  if (fd_ < 0) return;
  forget_in_child(fd_);
  close(fd_);
}

Status ControlChannel::send(const control::WorkerMessage& message) {
  auto framed = wire::frame(message);
  if (!framed) return framed.error();
  outgoing_ += *framed;
  return flush();
}

Status ControlChannel::flush() {
  while (!outgoing_.empty()) {
    const ssize_t written = ::send(fd_, outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (written > 0) {
      outgoing_.erase(0, static_cast<size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return ok_status();
    } else if (errno != EINTR) {
      return Error{ErrorCode::kBoxLost,
                   "the connection to box " + box_ + " broke: " + std::strerror(errno)};
    }
  }
  return ok_status();
}

Result<std::vector<control::BoxMessage>> ControlChannel::receive() {
  char buffer[16 * 1024];
  while (broken_.empty()) {
    const ssize_t bytes = recv(fd_, buffer, sizeof(buffer), 0);
    if (bytes > 0) {
      reader_.append(buffer, static_cast<size_t>(bytes));
    } else if (bytes == 0) {
      broken_ = "closed the connection";
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      broken_ = std::string("broke the connection: ") + std::strerror(errno);
    }
  }
  std::vector<control::BoxMessage> messages;
  for (;;) {
    auto body = reader_.next();
    if (!body) {
      broken_ = "sent nonsense: " + body.error().message;
      break;
    }
    if (!body->has_value()) break;
    if (!messages.emplace_back().ParseFromString(**body)) {
      broken_ = "sent a message that cannot be parsed; is this address a pboxd?";
      messages.pop_back();
      break;
    }
  }
  if (messages.empty() && !broken_.empty()) {
    return Error{ErrorCode::kBoxLost, "box " + box_ + " " + broken_};
  }
  return messages;
}

}  // namespace pbox::worker
