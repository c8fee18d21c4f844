#include "tests/support/secure_peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

#include "nic/crypto/session_keys.h"
#include "nic/wire/control_versions.h"
#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

// Returns what has arrived; empty at the end of the stream, or after `timeout_ms`.
std::string receive(int fd, int timeout_ms) {
  pollfd wait{fd, POLLIN, 0};
  if (poll(&wait, 1, timeout_ms) <= 0) return "";
  char bytes[65'536];
  const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
  return count <= 0 ? "" : std::string(bytes, static_cast<size_t>(count));
}

}  // namespace

SecurePeer::SecurePeer(const std::string& control, const tls::Credentials& keys)
    : fd_(connect_to(control)), tls_(keys.connect("")) {
  require(fd_ >= 0, "cannot connect to " + control);
  std::string plain, to_box;
  require(tls_->receive("", plain, to_box).ok(), "no ClientHello");
  send_bytes(to_box);
  while (!tls_->is_established() && take()) {
  }
}

SecurePeer::~SecurePeer() {
  close(fd_);
}

void SecurePeer::send_bytes(const std::string& bytes) {
  sent_ += bytes;
  // A failure needs no report: a box that has closed the connection has sent the reason before.
  static_cast<void>(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

bool SecurePeer::take() {
  const std::string bytes = receive(fd_, kDeadlineMs);
  if (bytes.empty()) return false;
  std::string plain, to_box;
  const Status taken = tls_->receive(bytes, plain, to_box);
  send_bytes(to_box);
  reader_.append(plain.data(), plain.size());
  if (!taken) failure_ = taken.error().message;
  return taken.ok();
}

void SecurePeer::say(const proto::WorkerMessage& message) {
  say_bytes(*wire::frame(message));
}

void SecurePeer::say_bytes(const std::string& plain, bool flips_a_bit) {
  std::string sealed;
  require(tls_->is_established(), "no TLS: " + failure_);
  require(tls_->send(plain, sealed).ok(), "TLS cannot send");
  if (flips_a_bit) sealed.back() = static_cast<char>(sealed.back() ^ 1);
  send_bytes(sealed);
}

std::optional<proto::BoxMessage> SecurePeer::heard() {
  for (;;) {
    const auto body = reader_.next();
    require(body.ok(), "the box sent data that are no frames");
    if (*body) {
      proto::BoxMessage message;
      require(message.ParseFromString(**body), "the box sends what is no message");
      return message;
    }
    if (!take()) return std::nullopt;
  }
}

std::string SecurePeer::refusal(const proto::WorkerMessage& message) {
  say(message);
  const auto answer = heard();
  if (!answer) return "closed";
  return answer->has_failure() ? answer->failure().message() : "";
}

seal::SessionSeal make_seal(const SecurePeer& peer, const proto::Session& session,
                            const std::string& job) {
  const auto exporter = [&peer](std::span<const std::byte> context, crypto::TrafficSecret& to) {
    peer.tls().export_secret(context, to.bytes);
    return true;
  };
  auto made = crypto::make_session_keys(crypto::End::kWorker, exporter,
                                        std::make_shared<crypto::SecretPages>())
                  ->make({.box = session.box(),
                          .job = job,
                          .epoch = session.epoch(),
                          .incarnation = 7,
                          .suite = static_cast<seal::Suite>(session.suite())},
                         {0, session.pipelines(0).spi()});
  if (!made) throw std::runtime_error(made.error().message);
  return std::move(*made);
}

proto::WorkerMessage join_of(const std::string& job, uint32_t rank, uint32_t world_size) {
  proto::WorkerMessage message;
  proto::Join& join = *message.mutable_join();
  join.set_protocol_version(wire::kControlProtocolVersion);
  join.set_job(job);
  join.set_rank(rank);
  join.set_world_size(world_size);
  join.set_path_mtu(1500);
  join.set_incarnation(7 + rank);
  auto& tensor = *join.add_tensors();
  tensor.set_name("t");
  tensor.set_elements(1000);
  return message;
}

std::string answer_to(const std::string& control, const std::string& bytes, int silence_ms) {
  const int fd = connect_to(control);
  require(fd >= 0, "cannot connect to " + control);
  static_cast<void>(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  std::string answer;
  for (std::string more = receive(fd, silence_ms); !more.empty(); more = receive(fd, silence_ms)) {
    answer += more;
  }
  close(fd);
  return answer;
}

}  // namespace pbox::test
