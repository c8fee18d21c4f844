// The TCP side of the control plane: accepts workers, frames messages and carries out the
// registry's actions. Runs on the io_context's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "appliance/control/job_registry.h"

namespace pbox::control {

struct ControlOptions {
  std::string listen;
  uint16_t port = limits::kControlPort;  // 0: any free port
  uint32_t connections_max = limits::kControlConnectionsMax;
  std::function<void(const RegistryEvent&)> on_event;  // called for each event, to log it
};

class ControlServer {
 public:
  // `registry` and `context` outlive the server.
  static Result<std::unique_ptr<ControlServer>> start(boost::asio::io_context& context,
                                                      const ControlOptions& options,
                                                      JobRegistry& registry);
  ~ControlServer();

  uint16_t port() const;
  // Accepts no further connections. Open connections stay open.
  void stop_accepting();
  // Applies to new connections; open connections stay open.
  void set_connections_max(uint32_t connections_max);
  // True once every message has been handed to the kernel and every closing connection is closed.
  bool drained() const;
  // Bytes of messages that wait until their peers read them.
  size_t queued_bytes() const;
  // Carries out the actions that the registry has queued. Must be called after a call into the
  // registry from outside this class.
  void flush();

 private:
  class Implementation;
  explicit ControlServer(std::shared_ptr<Implementation> implementation);
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace pbox::control
