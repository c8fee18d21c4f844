// A peer of a box with keys, without libpbox. It sends any message at any time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nic/seal/session_seal.h"
#include "nic/tls/credentials.h"
#include "nic/wire/control.pb.h"
#include "nic/wire/control_frame.h"

namespace pbox::test {

class SecurePeer {
 public:
  // Connects to a box, HOST:PORT on 127.0.0.1, and completes the handshake, unless a side refuses.
  SecurePeer(const std::string& control, const tls::Credentials& keys);
  ~SecurePeer();
  SecurePeer(const SecurePeer&) = delete;
  SecurePeer& operator=(const SecurePeer&) = delete;

  void say(const proto::WorkerMessage& message);
  // Sends any bytes through TLS. `flips_a_bit`: flips a bit after TLS has encrypted them.
  void say_bytes(const std::string& plain, bool flips_a_bit = false);
  // Returns the next message; nothing if the box has closed the connection or is too slow.
  std::optional<proto::BoxMessage> heard();
  // Sends the message and returns the text of the Failure that answers it; empty if a different
  // message answers it, "closed" if the box closes the connection without an answer.
  std::string refusal(const proto::WorkerMessage& message);

  bool is_established() const { return tls_->is_established(); }
  // Returns why TLS has failed; empty if it has not.
  const std::string& failure() const { return failure_; }
  const tls::Connection& tls() const { return *tls_; }
  int fd() const { return fd_; }
  // Returns all bytes that this end has sent, as an attacker on the path could have recorded them.
  const std::string& sent() const { return sent_; }

 private:
  void send_bytes(const std::string& bytes);
  // Waits for bytes and handles them. Returns false at the end of the stream, if none arrive in
  // time, or if TLS fails.
  bool take();

  int fd_;
  std::unique_ptr<tls::Connection> tls_;
  wire::FrameReader reader_;
  std::string failure_;
  std::string sent_;
};

// Returns a JOIN with one small tensor.
proto::WorkerMessage join_of(const std::string& job, uint32_t rank = 0, uint32_t world_size = 1);

// Makes the peer's end of its session on the first pipeline, for the incarnation that join_of()
// states for rank 0.
seal::SessionSeal make_seal(const SecurePeer& peer, const proto::Session& session,
                            const std::string& job);

// Sends the bytes to a box over plain TCP, and returns all that it answers until it closes the
// connection or is silent for `silence_ms`.
std::string answer_to(const std::string& control, const std::string& bytes, int silence_ms);

}  // namespace pbox::test
