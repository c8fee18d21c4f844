// A program that was started, with pipes to its standard input and output; standard error is
// shared. Stopped (SIGTERM, then SIGKILL) by the process that started it, never by a fork of that.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace pbox::perf {

class Program {
 public:
  // command[0] is a path or is looked up in PATH. With `network`, a descriptor of a network
  // namespace that stays the caller's, it runs there. Throws std::runtime_error.
  explicit Program(const std::vector<std::string>& command, int network = -1);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Throws std::runtime_error if the program is gone.
  void write_line(const std::string& line);
  // Without its end; throws std::runtime_error if none comes in time or the program is gone.
  std::string read_line(int timeout_ms);
  // Ends its input and waits, within reason, until it has stopped by itself.
  void finish();

 private:
  bool wait_exit(int timeout_ms);

  pid_t owner_ = -1;
  pid_t pid_ = -1;
  int input_fd_ = -1;
  int output_fd_ = -1;
  std::string name_;
  std::string unread_;
};

}  // namespace pbox::perf
