// TLS handshakes of the connections to one port, on a thread of their own: a signature takes longer
// than a message, and strangers can ask for as many as they like. Established connections leave for
// the control thread, so handshakes never delay them.
//
// Handshakes are bounded in number, in number for each source address, and in time. A new handshake
// displaces the oldest one of its address if that address has reached its bound. If all addresses
// together have reached theirs, it displaces the oldest one of the address that has most. So a peer
// that opens connections and is silent, or that floods the box with handshakes, takes places only
// from itself. A place costs little memory before the peer's first bytes.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "nic/endpoint.h"
#include "nic/tls/credentials.h"

namespace pbox::control {

struct HandshakeLimits {
  uint32_t most = 1024;
  uint32_t most_per_address = 256;  // IPv6: per /64 network. All ranks of a host join at once
  std::chrono::milliseconds time = std::chrono::seconds(5);
};

// The limits on peers, and the answer to those that do not speak TLS.
struct HandshakeOptions {
  HandshakeLimits limits = {};
  // The answer to a peer that does not speak TLS, in a form that it can read.
  std::string plain_text_answer = {};
  // The remedy for such a peer, for the log.
  std::string plain_text_remedy = {};
};

// A connection whose handshake is done. Its socket belongs to the control thread's io_context.
struct AcceptedPeer {
  boost::asio::ip::tcp::socket socket;
  nic::Endpoint endpoint;
  std::unique_ptr<tls::Connection> tls = nullptr;
  std::string plain = {};  // decrypted bytes that arrived with the end of the handshake
  // The box's keys in this handshake; the box may have different keys by now.
  std::shared_ptr<const tls::Credentials> credentials = nullptr;
};

class Handshakes {
 public:
  using OnAccepted = std::function<void(AcceptedPeer)>;
  // `why` states what is wrong, and the remedy.
  using OnRefused = std::function<void(const nic::Endpoint& peer, const std::string& why)>;

  // Both functions are called from `control`: `on_accepted` when a handshake has succeeded,
  // `on_refused` when the box ends one. A peer that closes its connection causes neither call.
  Handshakes(boost::asio::io_context& control, std::shared_ptr<const tls::Credentials> credentials,
             HandshakeOptions options, OnAccepted on_accepted, OnRefused on_refused);
  // Closes the connections whose handshakes are under way.
  ~Handshakes();

  // Takes the connection out of `socket`.
  void begin(boost::asio::ip::tcp::socket& socket, const nic::Endpoint& peer);
  // Handshakes that begin from now on use these keys.
  void set_credentials(std::shared_ptr<const tls::Credentials> credentials);
  // Returns the number of handshakes under way. May be called on any thread.
  uint32_t count() const { return count_; }

 private:
  struct Attempt;
  using Pointer = std::shared_ptr<Attempt>;

  void start(const Pointer& attempt);
  void make_room(const std::string& source);
  void read(const Pointer& attempt);
  void take(const Pointer& attempt, size_t bytes);
  void go_on(const Pointer& attempt);
  void hand_over(const Pointer& attempt);
  void refuse_plain_text(const Pointer& attempt);
  void refuse(const Pointer& attempt, const std::string& why);
  void discard(const Pointer& attempt);
  void note(const Pointer& attempt, const std::string& why);
  void end(const Pointer& attempt);

  boost::asio::io_context& control_;
  HandshakeOptions options_;
  OnAccepted on_accepted_;
  OnRefused on_refused_;
  std::atomic<uint32_t> count_{0};

  // Once the thread runs, only it uses the following members.
  std::shared_ptr<const tls::Credentials> credentials_;
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::map<uint64_t, Pointer> attempts_;  // by number, so the oldest first
  std::map<std::string, std::set<uint64_t>> by_source_;
  uint64_t next_number_ = 0;
  std::thread thread_;
};

}  // namespace pbox::control
