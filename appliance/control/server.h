// The TCP side of the control plane: accepts workers, frames messages and carries out the
// registry's actions. Runs on the io_context's thread; TLS handshakes have one of their own.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "appliance/audit/record.h"
#include "appliance/control/handshakes.h"
#include "appliance/control/job_registry.h"
#include "appliance/control/secret_source.h"

namespace pbox::control {

struct ControlOptions {
  std::string listen;
  uint16_t port = limits::kControlPort;  // 0 for any free port
  uint32_t connections_max = limits::kControlConnectionsMax;
  std::function<void(const RegistryEvent&)> on_event;  // called for each event, to log it
  // The box's keys. If they are set, every connection has TLS and every peer a certificate. Null:
  // there is no TLS.
  std::shared_ptr<const tls::Credentials> credentials = nullptr;
  HandshakeLimits handshakes = {};
  audit::Sink audit = {};  // empty if there is no audit log
};

class ControlServer : public SecretSource {
 public:
  // `registry` and `context` must outlive the server.
  static Result<std::unique_ptr<ControlServer>> start(boost::asio::io_context& context,
                                                      const ControlOptions& options,
                                                      JobRegistry& registry);
  ~ControlServer() override;

  uint16_t port() const;
  // Accepts no further connections. Open connections stay open.
  void stop_accepting();
  // Applies to new connections; open connections stay open.
  void set_connections_max(uint32_t connections_max);
  // Replaces the credentials of a server that has some. Connections that begin from now on use the
  // new ones. Open connections whose peers the new ones do not accept
  // (tls::Credentials::check_peer) are closed soon afterwards. Each is logged, and its rank counts
  // as lost.
  void set_credentials(std::shared_ptr<const tls::Credentials> credentials);
  // Returns whether every message has been handed to the kernel and every closing connection is
  // closed.
  bool drained() const;
  // Returns the bytes of messages that wait until their peers read them.
  size_t queued_bytes() const;
  // Returns the number of handshakes that were refused, too slow, or displaced by others. Attempts
  // to speak TLS with a box without keys count too.
  uint64_t handshakes_refused() const;
  bool export_secret(ConnectionId connection, std::span<const std::byte> context,
                     std::span<std::byte, tls::kExportedSecretBytes> to) const override;
  // Carries out the actions that the registry has queued. Must be called after a call into the
  // registry from outside this class.
  void flush();

 private:
  class Implementation;
  explicit ControlServer(std::shared_ptr<Implementation> implementation);
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace pbox::control
