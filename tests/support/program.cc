#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tests/support/daemon.h"

namespace pbox::test {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return left.count() > 0 ? static_cast<int>(left.count()) : 0;
}

#ifdef __SANITIZE_THREAD__
bool runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  return file >> number >> name >> state && state == "R";
}

// Waits until the program's first thread sleeps. The thread sanitizer of gcc 12 may lose a signal
// that arrives while this thread is between two system calls: it notes the signal, and then does
// not call the handler.
void await_sleep(pid_t pid) {
  const auto end = Clock::now() + std::chrono::milliseconds(kDeadlineMs);
  for (int looks = 0; looks < 3 && Clock::now() < end; looks = runs(pid) ? 0 : looks + 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}
#endif

}  // namespace

Program::Program(const std::string& path, const Arguments& arguments,
                 const std::string& name_space) {
  Arguments words;
  if (!name_space.empty()) words = {"ip", "netns", "exec", name_space};
  words.push_back(path);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  int pipe_fds[2];
  errors_fd_ = memfd_create("errors", MFD_CLOEXEC);
  if (errors_fd_ < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0)
    throw std::runtime_error("cannot create pipes for the program");
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // so that a crashed test leaves no process behind
    dup2(pipe_fds[1], STDOUT_FILENO);
    dup2(errors_fd_, STDERR_FILENO);
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  close(pipe_fds[1]);
  output_fd_ = pipe_fds[0];
  if (pid_ < 0) throw std::runtime_error("cannot fork");
}

Program::~Program() {
  if (!status_) {
    kill(pid_, SIGKILL);
    wait_exit(kDeadlineMs);
  }
  close(output_fd_);
  close(errors_fd_);
}

void Program::signal(int number) const {
#ifdef __SANITIZE_THREAD__
  await_sleep(pid_);
#endif
  kill(pid_, number);
}

std::optional<int> Program::wait_exit(int timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!status_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (milliseconds_until(end) == 0) {
      break;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  return status_;
}

std::optional<std::string> Program::read_line(int timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const size_t newline = output_.find('\n');
    if (newline != std::string::npos) {
      std::string line = output_.substr(0, newline);
      output_.erase(0, newline + 1);
      return line;
    }
    pollfd wait{output_fd_, POLLIN, 0};
    if (poll(&wait, 1, milliseconds_until(end)) <= 0) return std::nullopt;
    char buffer[1024];
    const ssize_t bytes = read(output_fd_, buffer, sizeof(buffer));
    if (bytes <= 0) return std::nullopt;
    output_.append(buffer, static_cast<size_t>(bytes));
  }
}

std::string Program::errors() const {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t bytes =
        pread(errors_fd_, buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (bytes <= 0) return text;
    text.append(buffer, static_cast<size_t>(bytes));
  }
}

bool Program::await_errors(const std::string& text, int timeout_ms) const {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (errors().find(text) == std::string::npos) {
    if (milliseconds_until(end) == 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool run_tool(const Arguments& words) {
  Program program(words[0], Arguments(words.begin() + 1, words.end()));
  return program.wait_exit(kDeadlineMs) == 0;
}

void must_run(const Arguments& words) {
  Program program(words[0], Arguments(words.begin() + 1, words.end()));
  if (program.wait_exit(kDeadlineMs) == 0) return;
  std::string text;
  for (const std::string& word : words) text += word + ' ';
  throw std::runtime_error(text + "failed: " + program.errors());
}

}  // namespace pbox::test
