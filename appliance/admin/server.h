// The admin server: HTTP/1.1 for people, Prometheus and load balancers, over TCP and over a UNIX
// socket. GET only reads. POST starts a trace, a snapshot or a drain, or changes a job's priority
// policy or consistency model. Only a consistency model may change the result of a job.
//
// The server has no thread of its own, except one for TLS handshakes. Its handlers run on the
// thread that runs the io_context, which is the control thread, so AdminSource needs no lock. No
// request can block that thread: sockets never block, and a slow client is disconnected. Bounds:
// limits::kAdmin*, for TCP and for the UNIX socket each, so that clients of one cannot lock out
// those of the other.
//
//   auto server = AdminServer::start(io, {.listen = "127.0.0.1", .port = 9540}, source);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "appliance/admin/source.h"
#include "appliance/audit/record.h"
#include "base/limits.h"
#include "base/result.h"
#include "nic/tls/credentials.h"

namespace boost::asio {
class io_context;
}

namespace pbox::admin {

struct AdminOptions {
  std::string listen = "127.0.0.1";    // an IPv4 or IPv6 address; "::" takes both families
  uint16_t port = limits::kAdminPort;  // 0: the kernel chooses a free port
  uint32_t timeout_ms = limits::kAdminTimeoutMs;
  uint32_t connections_max = limits::kAdminConnectionsMax;  // others are closed (plain HTTP: 503)
  // Names of this box. A request over TCP must address it by one of them, by an IP address or as
  // localhost.
  std::vector<std::string> names = {};
  std::string socket = {};  // path of a UNIX socket; empty: none
  // Connections over TCP use TLS with these keys, and every client must show a certificate. Null:
  // no TLS.
  std::shared_ptr<const tls::Credentials> credentials = nullptr;
  // Called for a client that was refused before its request was read, with its address. `why`
  // contains the remedy.
  std::function<void(const std::string& client, const std::string& why)> on_refused = {};
  audit::Sink audit = {};  // empty: there is no audit log
};

class AdminServer {
 public:
  // `source` must live until stop(). The server must be destroyed before `io`.
  static Result<std::unique_ptr<AdminServer>> start(boost::asio::io_context& io,
                                                    const AdminOptions& options,
                                                    AdminSource& source);
  ~AdminServer();  // calls stop()
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  uint16_t port() const;
  // Returns the number of clients that were refused before their request was read.
  uint64_t refused() const;
  // With TLS, closes every connection over TCP and uses these keys for new ones. Clients connect
  // again.
  void set_credentials(std::shared_ptr<const tls::Credentials> credentials);

  // Closes the listeners and every connection, and removes the UNIX socket. The server does not use
  // `source` afterwards. Idempotent. Control thread, or any thread while no thread runs `io`.
  void stop();

 private:
  class Listener;
  class TcpListener;
  class LocalListener;
  AdminServer();

  std::shared_ptr<uint64_t> refused_ = std::make_shared<uint64_t>(0);
  std::shared_ptr<TcpListener> tcp_;      // shared with its pending handlers
  std::shared_ptr<LocalListener> local_;  // null without a UNIX socket
};

}  // namespace pbox::admin
