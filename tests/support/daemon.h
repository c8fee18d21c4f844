// A real pboxd in a process of its own, on free ports of loopback.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace pbox::test {

using Arguments = std::vector<std::string>;

// A program that was started, with its output kept. Killed by id when it goes out of scope.
class Program {
 public:
  // With `name_space` it runs inside that network namespace.
  Program(const std::string& path, const Arguments& arguments, const std::string& name_space = "");
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Exit status (128 + N after signal N); nothing if it still runs after `timeout_ms`.
  std::optional<int> wait_exit(int timeout_ms);
  // The next line of standard output without its end; nothing at its end or after `timeout_ms`.
  std::optional<std::string> read_line(int timeout_ms);
  // Everything written to standard error so far.
  std::string errors() const;
  // True once standard error contains `text`.
  bool await_errors(const std::string& text, int timeout_ms) const;

 private:
  pid_t pid_ = -1;
  int output_fd_ = -1;
  int errors_fd_ = -1;
  std::string output_;
  std::optional<int> status_;
};

// Runs a program, words[0], to its end; false unless it exits with 0.
bool run_tool(const Arguments& words);
// The same for what must succeed: throws with its standard error.
void must_run(const Arguments& words);

class Daemon {
 public:
  // Starts it and waits until it is ready; throws std::runtime_error with its standard error if it
  // does not get there. `arguments` come after the ports and two pipelines, and win.
  explicit Daemon(const Arguments& arguments = {}, const std::string& name_space = "");

  const std::string& control() const { return control_; }  // HOST:PORT
  const std::string& admin() const { return admin_; }
  Program& program() { return program_; }
  const Program& program() const { return program_; }

  // The body of an answer of the admin server.
  std::string get(const std::string& path) const;
  // The same of a POST of JSON.
  std::string post(const std::string& path, const std::string& json) const;
  std::vector<uint16_t> data_ports() const;
  // Sum over all series of a metric; with `label`, as reason="vlan", over those that have it.
  uint64_t metric(const std::string& name, const std::string& label = "") const;
  // Jobs end a little after the last worker has gone.
  bool await_no_jobs(int timeout_ms) const;
  uint64_t resident_bytes() const;  // huge pages too

 private:
  // `rest`: what follows the headers that every request has.
  std::string ask(const std::string& what, const std::string& rest) const;

  Program program_;
  std::string control_;
  std::string admin_;
};

// How pboxd is called by Daemon, for tests of a start that fails.
Arguments daemon_arguments(const Arguments& more);
const char* daemon_path();

// A program's whole run; -1: it did not end in time.
struct Output {
  int status = -1;
  std::string text, errors;
};
Output run(const std::string& path, const Arguments& words);
// `pboxctl`, which is at that path, asks the daemon's admin port.
Output ask(const Daemon& daemon, const std::string& pboxctl, Arguments words);

// A connected TCP socket to HOST:PORT of a Daemon, or -1.
int connect_to(const std::string& where);

constexpr int kDeadlineMs = 30'000;  // for what takes milliseconds on a machine at rest

}  // namespace pbox::test
