// One connection of a client: reads a request, answers it, and starts again. Control thread.
//
// Its pending operations own it, so it is destroyed when the last of them ends. One deadline covers
// a whole read or a whole write, so a client that sends or takes one byte at a time does not extend
// it.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "appliance/admin/routes.h"
#include "appliance/admin/source.h"
#include "appliance/admin/web_origin.h"
#include "appliance/audit/record.h"
#include "nic/tls/connection.h"

namespace pbox::admin {

class Session;

// The state that the connections share with their listener. It outlives both.
struct Shared {
  AdminSource* source;
  OwnNames names;
  std::chrono::milliseconds timeout;
  // Called for a client that speaks TLS to a server without it; `why` contains the remedy.
  std::function<void(const std::string& client, const std::string& why)> on_refused;
  audit::Sink audit;
};

// The open connections of one listener.
using Sessions = std::unordered_set<Session*>;

struct Peer {
  boost::asio::generic::stream_protocol::socket socket;
  Principal client;
  bool is_local = false;                           // a UNIX socket, which no web page can reach
  std::unique_ptr<tls::Connection> tls = nullptr;  // established; null: without TLS
  std::string plain = {};                          // bytes that came with the end of the handshake
};

class Session {
 public:
  virtual ~Session() = default;
  virtual void close() = 0;

  // Begins to read. The session enters itself in `sessions` and leaves it when it ends.
  static void open(Peer peer, std::shared_ptr<const Shared> shared,
                   std::shared_ptr<Sessions> sessions);
};

struct AnswerForm {
  bool is_http_1_0 = false;
  bool keeps_alive = false;  // the connection serves further requests
  bool has_body = true;      // false for HEAD: the answer has only the body's length
};
// Returns the text of an answer with its headers.
std::string answer_text(const AdminResponse& answer, const AnswerForm& form);

}  // namespace pbox::admin
