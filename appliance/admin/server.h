// The admin server: HTTP/1.1 for people, Prometheus and load balancers. GET only reads. POST starts
// a trace, a snapshot or a drain, or changes the order in which a job's tensors are sent. None of
// these changes the result of a job.
//
// The server has no thread. Its handlers run on the thread that runs the io_context, which is the
// control thread, so AdminSource needs no lock. No request can block that thread: sockets never
// block, and a slow client is disconnected. Bounds: limits::kAdmin*.
//
//   auto server = AdminServer::start(io, {.listen = "127.0.0.1", .port = 9540}, source);
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "appliance/admin/source.h"
#include "base/limits.h"
#include "base/result.h"

namespace boost::asio {
class io_context;
}

namespace pbox::admin {

struct AdminOptions {
  std::string listen = "127.0.0.1";    // an IPv4 or IPv6 address; "::" takes both families
  uint16_t port = limits::kAdminPort;  // 0: the kernel chooses a free port
  uint32_t timeout_ms = limits::kAdminTimeoutMs;
  uint32_t connections_max = limits::kAdminConnectionsMax;  // more are answered 503 and closed
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

  // Closes the listener and every connection. The server does not use `source` afterwards.
  // Idempotent. Control thread, or any thread while no thread runs `io`.
  void stop();

 private:
  class Listener;
  explicit AdminServer(std::shared_ptr<Listener> listener);

  std::shared_ptr<Listener> listener_;  // shared with its pending handlers
};

}  // namespace pbox::admin
