// The TCP side of the control plane: accepts workers, frames messages, and carries out what the
// registry decides. One thread, that of the io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "appliance/control/job_registry.h"

namespace pbox::appliance {

struct ControlOptions {
  std::string listen;
  uint16_t port = limits::kControlPort;  // 0: a free one
  uint32_t connections_max = limits::kControlConnectionsMax;
  std::function<void(const RegistryEvent&)> on_event;  // for the log
};

class ControlServer {
 public:
  // `registry` and `context` outlive the server.
  static Result<std::unique_ptr<ControlServer>> start(boost::asio::io_context& context,
                                                      const ControlOptions& options,
                                                      JobRegistry& registry);
  ~ControlServer();

  uint16_t port() const;
  // Accepts nobody any more; connections that stand go on.
  void stop_accepting();
  // For connections from now on; those that stand stay.
  void set_connections_max(uint32_t connections_max);
  // True once every message has been handed to the kernel and every closing connection is closed.
  bool drained() const;
  // Carries out what the registry has queued, after a call into it from elsewhere.
  void flush();

 private:
  class Implementation;
  explicit ControlServer(std::shared_ptr<Implementation> implementation);
  std::shared_ptr<Implementation> implementation_;
};

}  // namespace pbox::appliance
