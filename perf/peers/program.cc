#include "perf/peers/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace pbox::perf {
namespace {

constexpr int kStopLimitMs = 10'000;

std::runtime_error failure(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

[[noreturn]] void become(const std::vector<std::string>& command, int network, int input,
                         int output) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // stops when the parent dies
  if (network >= 0 && setns(network, CLONE_NEWNET) != 0) _exit(126);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

Program::Program(const std::vector<std::string>& command, int network)
    : owner_(getpid()), name_(std::filesystem::path(command.at(0)).filename()) {
  signal(SIGPIPE, SIG_IGN);
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) throw failure("cannot make a pipe");
  if (pipe2(out, O_CLOEXEC) != 0) throw failure("cannot make a pipe");
  pid_ = fork();
  if (pid_ < 0) throw failure("cannot start " + name_);
  if (pid_ == 0) become(command, network, in[0], out[1]);
  close(in[0]);
  close(out[1]);
  input_fd_ = in[1];
  output_fd_ = out[0];
}

Program::~Program() {
  if (getpid() != owner_) return;
  if (input_fd_ >= 0) close(input_fd_);
  close(output_fd_);
  if (pid_ < 0) return;
  kill(pid_, SIGTERM);
  if (wait_exit(kStopLimitMs)) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Program::finish() {
  close(input_fd_);
  input_fd_ = -1;
  if (wait_exit(kStopLimitMs)) pid_ = -1;
}

bool Program::wait_exit(int timeout_ms) {
  constexpr int kLookEveryMs = 10;
  for (int waited_ms = 0; waited_ms < timeout_ms; waited_ms += kLookEveryMs) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) return true;
    usleep(kLookEveryMs * 1000);
  }
  return false;
}

void Program::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (write(input_fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw failure(name_ + ": cannot write a command");
  }
}

std::string Program::read_line(int timeout_ms) {
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    pollfd wait{output_fd_, POLLIN, 0};
    if (poll(&wait, 1, timeout_ms) <= 0) {
      throw std::runtime_error(name_ + " printed nothing for " + std::to_string(timeout_ms) +
                               " ms");
    }
    char bytes[4096];
    const ssize_t count = read(output_fd_, bytes, sizeof(bytes));
    if (count <= 0) throw std::runtime_error(name_ + " closed its output; see its error above");
    unread_.append(bytes, static_cast<size_t>(count));
  }
}

}  // namespace pbox::perf
