#include "worker/transport/control_channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "nic/socket/address.h"
#include "worker/process/fork_guard.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kPollNs = 100 * kNanosPerMilli;

// Waits until the addresses are known, but not longer than until end_ns.
Result<BoxAddresses::Addresses> await_addresses(const std::string& box, BoxAddresses& addresses,
                                                uint64_t end_ns,
                                                const std::atomic<bool>* cancelled) {
  for (;;) {
    if (const auto found = addresses.find(box)) return *found;
    const uint64_t now_ns = monotonic_ns();
    if (now_ns >= end_ns || (cancelled != nullptr && *cancelled)) return unresolved(box);
    pollfd wait{addresses.fd(), POLLIN, 0};
    poll(&wait, 1, static_cast<int>(std::min(end_ns - now_ns, kPollNs) / kNanosPerMilli) + 1);
  }
}

}  // namespace

Error unresolved(const std::string& box) {
  return {ErrorCode::kUnavailable, "the name of box '" + box +
                                       "' is not resolved yet; check that the name server answers, "
                                       "or name the box by its IP address"};
}

Result<ControlChannel> ControlChannel::open(const ControlTarget& target,
                                            BoxAddresses::Addresses addresses, uint64_t end_ns) {
  ControlChannel channel(target, end_ns);
  channel.addresses_ = std::move(addresses);
  if (const Status begun = channel.try_next(); !begun) return begun.error();
  return channel;
}

Error ControlChannel::unreachable(int error_number) const {
  return {ErrorCode::kUnavailable, "cannot reach the box at " + target_.box + ": " +
                                       std::strerror(error_number) +
                                       "; check that pboxd runs there and that the port is open"};
}

// Starts to connect to the first of the remaining addresses for which that is possible.
Status ControlChannel::try_next() {
  int error = EADDRNOTAVAIL;
  while (tried_ < addresses_.size()) {
    const BoxAddresses::Address& address = addresses_[tried_++];
    const int fd = socket(address.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const auto* to = reinterpret_cast<const sockaddr*>(&address.address);
    if (::connect(fd, to, address.length) != 0 && errno != EINPROGRESS) {
      error = errno;
      ::close(fd);
      continue;
    }
    const uint64_t now_ns = std::min(monotonic_ns(), end_ns_);
    next_ns_ = now_ns + (end_ns_ - now_ns) / (addresses_.size() - tried_ + 1);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    close_in_child(fd);
    fd_ = fd;
    peer_ = nic::from_sockaddr(address.address);
    return ok_status();
  }
  return unreachable(error);
}

Result<bool> ControlChannel::connected() {
  if (is_connected_) return true;
  if (is_reached_) return shake_hands();
  PBOX_CHECK(fd_ >= 0 && tried_ <= addresses_.size());
  pollfd wait{fd_, POLLOUT, 0};
  int error = 0;
  if (poll(&wait, 1, 0) == 0) {
    if (tried_ == addresses_.size() || monotonic_ns() < next_ns_) return false;
    error = ETIMEDOUT;
  } else {
    socklen_t size = sizeof(error);
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  if (error == 0) {
    is_reached_ = true;
    if (target_.keys == nullptr) return is_connected_ = true;
    tls_ = target_.keys->connect(target_.name);
    take({});
    return shake_hands();
  }
  forget_in_child(fd_);
  ::close(std::exchange(fd_, -1));
  if (tried_ == addresses_.size()) return unreachable(error);
  if (const Status begun = try_next(); !begun) return begun.error();
  return false;
}

// Another address of the box would prove the same identity, so none is tried after a failure.
Result<bool> ControlChannel::shake_hands() {
  PBOX_CHECK(tls_ != nullptr && !is_connected_);
  read_socket();
  if (const Status sent = flush(); !sent && !broken_) return sent.error();
  is_connected_ = tls_->is_established();
  if (is_connected_ || !broken_) return is_connected_;
  if (broken_->code != ErrorCode::kBoxLost) return *broken_;
  return Error{
      ErrorCode::kUnavailable,
      broken_->message +
          " during the TLS handshake; check that it has keys ([security] keys), and see its log"};
}

short ControlChannel::events() const {
  if (!is_reached_) return POLLOUT;
  return outgoing_.empty() ? POLLIN : POLLIN | POLLOUT;
}

nic::Endpoint ControlChannel::local() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return nic::from_sockaddr(address);
}

Result<ControlChannel> ControlChannel::connect(const ControlTarget& target, BoxAddresses& addresses,
                                               uint32_t timeout_ms,
                                               const std::atomic<bool>* cancelled) {
  const std::string& box = target.box;
  const uint64_t end_ns = monotonic_ns() + timeout_ms * kNanosPerMilli;
  const auto found = await_addresses(box, addresses, end_ns, cancelled);
  if (!found) return found.error();
  auto channel = open(target, *found, end_ns);
  while (channel) {
    const auto established = channel->connected();
    if (!established) {
      channel = established.error();
      break;
    }
    if (*established) return channel;
    const uint64_t now_ns = monotonic_ns();
    const bool is_cancelled = cancelled != nullptr && *cancelled;
    if (now_ns >= end_ns || is_cancelled) {
      channel = channel->unreachable(is_cancelled ? ECANCELED : ETIMEDOUT);
      break;
    }
    pollfd wait{channel->fd(), channel->events(), 0};
    const uint64_t wait_ns = std::min(end_ns - now_ns, kPollNs);
    poll(&wait, 1, static_cast<int>(wait_ns / kNanosPerMilli) + 1);
  }
  addresses.refresh(box);
  return channel;
}

ControlChannel::ControlChannel(ControlChannel&& other) noexcept
    : addresses_(std::move(other.addresses_)),
      tried_(other.tried_),
      end_ns_(other.end_ns_),
      next_ns_(other.next_ns_),
      is_reached_(other.is_reached_),
      is_connected_(other.is_connected_),
      fd_(std::exchange(other.fd_, -1)),
      peer_(other.peer_),
      target_(std::move(other.target_)),
      tls_(std::move(other.tls_)),
      outgoing_(std::move(other.outgoing_)),
      reader_(std::move(other.reader_)),
      broken_(std::move(other.broken_)) {}

ControlChannel& ControlChannel::operator=(ControlChannel&& other) noexcept {
  std::swap(fd_, other.fd_);
  addresses_ = std::move(other.addresses_);
  tried_ = other.tried_;
  end_ns_ = other.end_ns_;
  next_ns_ = other.next_ns_;
  is_reached_ = other.is_reached_;
  is_connected_ = other.is_connected_;
  peer_ = other.peer_;
  target_ = std::move(other.target_);
  tls_ = std::move(other.tls_);
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

Status ControlChannel::send(const proto::WorkerMessage& message) {
  auto framed = wire::frame(message);
  if (!framed) return framed.error();
  if (tls_ == nullptr) {
    outgoing_ += *framed;
  } else if (const Status sealed = tls_->send(*framed, outgoing_); !sealed) {
    return Error{sealed.error().code,
                 "TLS with box " + target_.box + ": " + sealed.error().message};
  }
  return flush();
}

Status ControlChannel::flush() {
  PBOX_CHECK(fd_ >= 0);
  while (!outgoing_.empty()) {
    const ssize_t written = ::send(fd_, outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (written > 0) {
      outgoing_.erase(0, static_cast<size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return ok_status();
    } else if (errno != EINTR) {
      return Error{ErrorCode::kBoxLost,
                   "the connection to box " + target_.box + " broke: " + std::strerror(errno)};
    }
  }
  return ok_status();
}

void ControlChannel::end() const {
  PBOX_CHECK(outgoing_.empty());
  shutdown(fd_, SHUT_WR);
}

void ControlChannel::read_socket() {
  PBOX_CHECK(fd_ >= 0);
  const std::string box = "box " + target_.box;
  char buffer[16 * 1024];
  while (!broken_) {
    const ssize_t bytes = recv(fd_, buffer, sizeof(buffer), 0);
    if (bytes > 0) {
      take({buffer, static_cast<size_t>(bytes)});
    } else if (bytes == 0) {
      broken_ = Error{ErrorCode::kBoxLost, box + " closed the connection"};
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      broken_ = Error{ErrorCode::kBoxLost, box + " broke the connection: " + std::strerror(errno)};
    }
  }
}

// Takes bytes from the socket. With TLS it may queue bytes for the box: the handshake's, and
// alerts.
void ControlChannel::take(std::string_view bytes) {
  if (tls_ == nullptr) return reader_.append(bytes.data(), bytes.size());
  std::string plain;
  const Status taken = tls_->receive(bytes, plain, outgoing_);
  reader_.append(plain.data(), plain.size());
  if (!taken) {
    broken_ =
        Error{taken.error().code, "TLS with box " + target_.box + ": " + taken.error().message};
  }
}

Result<std::vector<proto::BoxMessage>> ControlChannel::receive() {
  const std::string box = "box " + target_.box;
  read_socket();
  std::vector<proto::BoxMessage> messages;
  for (;;) {
    auto body = reader_.next();
    if (!body) {
      broken_ = Error{ErrorCode::kBoxLost,
                      box + " sent data that cannot be decoded: " + body.error().message};
      break;
    }
    if (!body->has_value()) break;
    if (!messages.emplace_back().ParseFromString(**body)) {
      broken_ =
          Error{ErrorCode::kBoxLost,
                box + " sent a message that cannot be parsed; check that the address is a pboxd's"};
      messages.pop_back();
      break;
    }
  }
  if (messages.empty() && broken_) return *broken_;
  return messages;
}

}  // namespace pbox::worker
