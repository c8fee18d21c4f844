// The messages of one control connection: those that have arrived, and those that wait to be sent.
// With TLS, the bytes on the wire are encrypted. The class has no socket: the server moves the
// bytes. Used on the control thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "nic/tls/connection.h"
#include "nic/wire/control_frame.h"

namespace pbox::control {

class MessageStream {
 public:
  // `tls`: an established connection; null if messages travel in plain text.
  explicit MessageStream(std::unique_ptr<tls::Connection> tls) : tls_(std::move(tls)) {}

  const tls::Connection* tls() const { return tls_.get(); }

  // Takes bytes from the wire. An error ends the connection: TLS fails, or the peer speaks TLS and
  // this box does not.
  Status take(std::string_view bytes);
  // Takes bytes that TLS has decrypted already.
  void take_plain(std::string_view bytes);
  // Like wire::FrameReader::next().
  Result<std::optional<std::string>> next() { return reader_.next(); }
  // Messages that arrive from now on are dropped.
  void stop_reading() { is_reading_ = false; }

  // Adds a message to those that wait. If it is the only one, call begin_write() next.
  void push(std::string framed);
  bool is_empty() const { return outgoing_.empty(); }
  size_t messages() const { return outgoing_.size(); }
  size_t queued_bytes() const { return queued_bytes_; }
  // Returns the bytes of the first message for the wire. The bytes and the message stay until
  // end_write().
  const std::string& begin_write();
  void end_write();
  // Forgets all messages except the first.
  void drop_waiting();

 private:
  Status check_first_bytes(std::string_view bytes);

  std::unique_ptr<tls::Connection> tls_;
  wire::FrameReader reader_;
  bool is_reading_ = true;
  std::deque<std::string> outgoing_;
  size_t queued_bytes_ = 0;
  std::string first_bytes_;  // without TLS: until they show whether the peer speaks it
  std::string sealed_;       // encrypted bytes that wait for begin_write()
  std::string in_flight_;    // encrypted bytes that are being written
};

}  // namespace pbox::control
