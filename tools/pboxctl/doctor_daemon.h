// A pboxd that lives as long as this object: the box as it is configured, but with a control port
// that nobody knows and no admin server, so that no worker finds it by accident.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "config/config.h"

namespace pboxctl {

class PrivateBox {
 public:
  // Runs the pboxd beside this program, else the one in PATH, and returns when it is ready, which
  // may take `timeout_ms`. The error holds what pboxd said.
  static pbox::Result<std::unique_ptr<PrivateBox>> start(const pbox::config::Config& config,
                                                         uint32_t timeout_ms);
  ~PrivateBox();  // SIGTERM; SIGKILL if it is not gone in time
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
