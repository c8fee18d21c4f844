// A real pboxd in a process of its own, on free ports of loopback.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace pbox::test {

using Arguments = std::vector<std::string>;

// A started program, with its output kept. The destructor kills it by process id.
class Program {
 public:
  // Runs in the network namespace `name_space`, if it is given.
  Program(const std::string& path, const Arguments& arguments, const std::string& name_space = "");
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Returns the exit status (128 + N after signal N); nothing if it still runs after `timeout_ms`.
  std::optional<int> wait_exit(int timeout_ms);
  // Returns the next line of standard output without its newline; nothing at the end of the output
  // or after `timeout_ms`.
  std::optional<std::string> read_line(int timeout_ms);
  // Returns everything that was written to standard error so far.
  std::string errors() const;
  // Waits until standard error contains `text`; returns false after `timeout_ms`.
  bool await_errors(const std::string& text, int timeout_ms) const;

 private:
  pid_t pid_ = -1;
  int output_fd_ = -1;
  int errors_fd_ = -1;
  std::string output_;
  std::optional<int> status_;
};

// Runs the program words[0] to its end. Returns whether it exits with 0.
bool run_tool(const Arguments& words);
// Does the same for a program that must succeed: throws with its standard error if it fails.
void must_run(const Arguments& words);

class Daemon {
 public:
  // Starts a pboxd and waits until it is ready. If it does not become ready, throws
  // std::runtime_error with its standard error. `arguments` follow the default ports and pipeline
  // count, and override them.
  explicit Daemon(const Arguments& arguments = {}, const std::string& name_space = "");

  const std::string& control() const { return control_; }  // HOST:PORT
  const std::string& admin() const { return admin_; }
  Program& program() { return program_; }
  const Program& program() const { return program_; }

  // Returns the body of the admin server's answer.
  std::string get(const std::string& path) const;
  // Does the same for a POST of JSON.
  std::string post(const std::string& path, const std::string& json) const;
  std::vector<uint16_t> data_ports() const;
  // Returns the sum over all series of a metric. With `label`, for example reason="vlan", only
  // series with that label count.
  uint64_t metric(const std::string& name, const std::string& label = "") const;
  // Waits until the box has no job, which takes a moment after the last worker has left. Returns
  // false after `timeout_ms`.
  bool await_no_jobs(int timeout_ms) const;
  uint64_t resident_bytes() const;  // includes huge pages

 private:
  // `rest` follows the headers that every request has.
  std::string ask(const std::string& what, const std::string& rest) const;

  Program program_;
  std::string control_;
  std::string admin_;
};

// Returns the arguments that Daemon passes to pboxd, for tests of a start that fails.
Arguments daemon_arguments(const Arguments& more);
const char* daemon_path();

// The result of a program's whole run. Its status is -1 if the program did not end in time.
struct Output {
  int status = -1;
  std::string text, errors;
};
Output run(const std::string& path, const Arguments& words);
// Runs pboxctl, found at the path `pboxctl`, against the daemon's admin port.
Output ask(const Daemon& daemon, const std::string& pboxctl, Arguments words);

// Returns a connected TCP socket to the HOST:PORT of a Daemon, or -1.
int connect_to(const std::string& where);

constexpr int kDeadlineMs = 30'000;  // for actions that take milliseconds on an idle machine

}  // namespace pbox::test
