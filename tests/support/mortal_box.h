// A box that a test kills and starts again with the same port and state.
#pragma once

#include <signal.h>
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/daemon.h"

namespace pbox::test {

class MortalBox {
 public:
  explicit MortalBox(Arguments flags = {}) : flags_(std::move(flags)) {
    std::string name = std::filesystem::temp_directory_path() / "pbox-recovery-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    folder_ = name;
    start("0");
  }
  ~MortalBox() { std::filesystem::remove_all(folder_); }

  Daemon& daemon() { return *daemon_; }
  void kill() {
    daemon_->program().signal(SIGKILL);
    REQUIRE(daemon_->program().wait_exit(kDeadlineMs) == 128 + SIGKILL);
  }
  void stop() {
    daemon_->program().signal(SIGTERM);
    REQUIRE(daemon_->program().wait_exit(kDeadlineMs) == 0);
  }
  void start_again() {
    const std::string control = daemon_->control();
    start(control.substr(control.rfind(':') + 1));
  }

 private:
  void start(const std::string& port) {
    Arguments arguments = flags_;
    arguments.push_back("--control.port=" + port);
    arguments.push_back("--cluster.state_directory=" + folder_);
    daemon_ = std::make_unique<Daemon>(arguments);
  }

  Arguments flags_;
  std::string folder_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace pbox::test
