// A child process with pipes to its standard input and output; it shares standard error. The
// destructor stops it (SIGTERM, then SIGKILL), but only in the process that started it, not in a
// fork of that process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace pbox::perf {

class Program {
 public:
  // Starts the program. command[0] is a path or is looked up in PATH. `network` is a descriptor of
  // the network namespace to run in, or -1; the caller keeps it. Throws std::runtime_error if no
  // process can be created. If the command cannot be run, read_line() throws.
  explicit Program(const std::vector<std::string>& command, int network = -1);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // Throws std::runtime_error if the program has exited.
  void write_line(const std::string& line);
  // Returns the next line without its newline. Throws std::runtime_error if none arrives in time or
  // the program has closed its output.
  std::string read_line(int timeout_ms);
  // Closes the program's input and waits up to 10 s until it exits by itself.
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
