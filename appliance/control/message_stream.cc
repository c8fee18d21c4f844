#include "appliance/control/message_stream.h"

#include <utility>

#include "base/check.h"
#include "nic/tls/credentials.h"

namespace pbox::control {
namespace {

// Limit on the bytes that TLS adds by itself between two messages to the peer, for example to
// confirm new keys.
constexpr size_t kSealedBytesMax = 16 * 1024;
// The header of a TLS record and the type of its message, which is 1 for a ClientHello. The first
// control message of a connection does not begin like this: it would have to be longer than 64 KiB.
constexpr size_t kHelloBytes = 6;
constexpr char kClientHello = 1;

}  // namespace

Status MessageStream::take(std::string_view bytes) {
  if (tls_ == nullptr) {
    if (first_bytes_.size() < kHelloBytes) {
      if (const Status plain = check_first_bytes(bytes); !plain) return plain.error();
    }
    take_plain(bytes);
    return ok_status();
  }
  std::string plain;
  const Status opened = tls_->receive(bytes, plain, sealed_);
  if (!opened) return Error{opened.error().code, "TLS: " + opened.error().message};
  // TLS's own answers wait for the next message to the peer. A peer that causes more of them than
  // this is hostile.
  if (sealed_.size() > kSealedBytesMax) {
    return Error{ErrorCode::kInvalidArgument, "TLS: the peer asks for new keys again and again"};
  }
  take_plain(plain);
  return ok_status();
}

// Refuses a peer that speaks TLS to a box without keys. Otherwise this box would take its bytes for
// half of a message, and the peer would wait for an answer.
Status MessageStream::check_first_bytes(std::string_view bytes) {
  first_bytes_ += bytes.substr(0, kHelloBytes - first_bytes_.size());
  if (first_bytes_.size() < kHelloBytes || !tls::may_be_tls(first_bytes_) ||
      first_bytes_[kHelloBytes - 1] != kClientHello) {
    return ok_status();
  }
  return Error{ErrorCode::kInvalidArgument,
               "the peer has keys (PBOX_KEYS), but this box has none; give it some ([security] "
               "keys), or unset PBOX_KEYS there"};
}

void MessageStream::take_plain(std::string_view bytes) {
  if (is_reading_) reader_.append(bytes.data(), bytes.size());
}

void MessageStream::push(std::string framed) {
  queued_bytes_ += framed.size();
  outgoing_.push_back(std::move(framed));
}

// A message is encrypted only when its turn comes, because TLS allows no gaps: the peer would miss
// an encrypted record that was dropped.
const std::string& MessageStream::begin_write() {
  PBOX_CHECK(!outgoing_.empty() && in_flight_.empty());
  if (tls_ == nullptr) return outgoing_.front();
  // If TLS fails here, the next read fails too and ends the connection.
  static_cast<void>(tls_->send(outgoing_.front(), sealed_));
  in_flight_ = std::exchange(sealed_, {});
  return in_flight_;
}

void MessageStream::end_write() {
  PBOX_CHECK(!outgoing_.empty());
  queued_bytes_ -= outgoing_.front().size();
  outgoing_.pop_front();
  in_flight_.clear();
}

void MessageStream::drop_waiting() {
  PBOX_CHECK(!outgoing_.empty());
  outgoing_.resize(1);
  queued_bytes_ = outgoing_.front().size();
}

}  // namespace pbox::control
