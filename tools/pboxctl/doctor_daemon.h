// A pboxd that runs as long as this object exists. It has the box's configuration, but a free
// control port and no admin server, so that no worker connects to it by accident.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "config/config.h"

namespace pboxctl {

class PrivateBox {
 public:
  // Starts the pboxd beside this program, else the one in PATH. Returns when it is ready, or with
  // an error after `timeout_ms`. The error contains pboxd's own messages.
  static pbox::Result<std::unique_ptr<PrivateBox>> start(const pbox::config::Config& config,
                                                         uint32_t timeout_ms);
  ~PrivateBox();  // sends SIGTERM, and SIGKILL if pboxd does not exit in time
  PrivateBox(const PrivateBox&) = delete;
  PrivateBox& operator=(const PrivateBox&) = delete;

  uint16_t control_port() const { return control_port_; }

 private:
  PrivateBox(pid_t pid, int output_fd, int errors_fd)
      : pid_(pid), output_fd_(output_fd), errors_fd_(errors_fd) {}
  pbox::Status await_ready(uint32_t timeout_ms);
  bool await_exit(uint32_t timeout_ms);
  std::string errors() const;

  pid_t pid_;
  int output_fd_;
  int errors_fd_;
  bool exited_ = false;
  uint16_t control_port_ = 0;
};

}  // namespace pboxctl
