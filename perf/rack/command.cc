#include "perf/rack/command.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace pbox::perf {
namespace {

constexpr int kNoProgram = 127;
constexpr int kNoNamespace = 126;

struct Pipe {
  int ends[2];
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  }
};

[[noreturn]] void become(const std::vector<std::string>& command, int network, int input,
                         int errors) {
  if (setns(network, CLONE_NEWNET) != 0) _exit(kNoNamespace);
  dup2(input, STDIN_FILENO);
  dup2(errors, STDERR_FILENO);
  dup2(errors, STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(kNoProgram);
}

std::string read_all(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t count; (count = read(fd, bytes, sizeof(bytes))) > 0;) {
    text.append(bytes, static_cast<size_t>(count));
  }
  close(fd);
  return text;
}

}  // namespace

void run_command(const std::vector<std::string>& command, const std::string& input, int network) {
  Pipe in, errors;
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot start " + command[0]);
  if (child == 0) become(command, network, in.ends[0], errors.ends[1]);
  close(in.ends[0]);
  close(errors.ends[1]);
  // This write does not block: batches of ip and tc are much smaller than a pipe's 64 KiB.
  const bool written =
      write(in.ends[1], input.data(), input.size()) == static_cast<ssize_t>(input.size());
  close(in.ends[1]);
  const std::string said = read_all(errors.ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && written) return;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoProgram) {
    throw std::runtime_error(command[0] + " cannot be run: install iproute2");
  }
  throw std::runtime_error(command[0] + " failed: " + said + "input was:\n" + input);
}

}  // namespace pbox::perf
