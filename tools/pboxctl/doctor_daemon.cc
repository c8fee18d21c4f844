#include "tools/pboxctl/doctor_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

#include "base/clock.h"
#include "config/parse.h"
#include "tools/pboxctl/doctor_report.h"

namespace pboxctl {

using pbox::Error;
using pbox::ErrorCode;
using pbox::Result;
using pbox::Status;

namespace {

constexpr int kPollMs = 20;

std::string find_pboxd() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = self.parent_path() / "pboxd";
  return !error && access(beside.c_str(), X_OK) == 0 ? beside.string() : "pboxd";
}

// Returns the descriptor of an unnamed file with the configuration, which a child inherits; -1 on
// failure. The daemon that gets it stands alone and writes no files: it must not get parts of a
// cluster's jobs, nor create files that the service's user could not open.
int configuration_file(pbox::config::Config config) {
  config.control.port = 0;
  config.cluster = {};
  config.cluster.state_directory.clear();
  config.upstream = {};
  config.admin.enabled = false;
  config.log.audit.clear();
  config.recorder.directory.clear();
  config.snapshots.directory.clear();
  const std::string text = pbox::config::print(config);
  const int fd = memfd_create("pboxd.conf", 0);
  if (fd >= 0 && write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    close(fd);
    return -1;
  }
  return fd;
}

// Turns the child process into pboxd. Does not return.
[[noreturn]] void become(const std::string& program, const std::string& flag, int output_fd,
                         int errors_fd) {
  setpgid(0, 0);                     // a terminal's SIGINT goes to pboxctl, which ends this child
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // the child ends if pboxctl dies
  dup2(output_fd, STDOUT_FILENO);
  dup2(errors_fd, STDERR_FILENO);
  execlp(program.c_str(), "pboxd", flag.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

// Returns PORT of "pboxd ready control=HOST:PORT"; 0 if there is none.
uint16_t ready_port(const std::string& line) {
  const size_t word = line.find("control=");
  if (word == std::string::npos) return 0;
  const size_t end = std::min(line.find_first_of(" \n", word), line.size());
  const size_t colon = line.rfind(':', end);
  uint16_t port = 0;
  std::from_chars(line.data() + colon + 1, line.data() + end, port);
  return port;
}

}  // namespace

Result<std::unique_ptr<PrivateBox>> PrivateBox::start(const pbox::config::Config& config,
                                                      uint32_t timeout_ms) {
  const std::string program = find_pboxd();
  const int config_fd = configuration_file(config);
  const int errors_fd = memfd_create("pboxd.err", MFD_CLOEXEC);
  int pipe_fds[2] = {-1, -1};
  if (config_fd < 0 || errors_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return pbox::system_error("cannot create the files for a pboxd", errno);
  }
  const std::string flag = "--config=/proc/self/fd/" + std::to_string(config_fd);
  const pid_t pid = fork();
  if (pid == 0) become(program, flag, pipe_fds[1], errors_fd);
  close(pipe_fds[1]);
  close(config_fd);
  if (pid < 0) return pbox::system_error("cannot fork", errno);
  std::unique_ptr<PrivateBox> box(new PrivateBox(pid, pipe_fds[0], errors_fd));
  if (const Status ready = box->await_ready(timeout_ms); !ready) return ready.error();
  return box;
}

Status PrivateBox::await_ready(uint32_t timeout_ms) {
  std::string line;
  const uint64_t deadline_ns = pbox::monotonic_ns() + timeout_ms * pbox::kNanosPerMilli;
  while (line.find('\n') == std::string::npos) {
    if (stop_requested) return Error{ErrorCode::kClosed, "interrupted"};
    if (pbox::monotonic_ns() > deadline_ns) {
      return Error{ErrorCode::kTimeout, "pboxd is not ready after " +
                                            std::to_string(timeout_ms / 1'000) + " s. " + errors()};
    }
    pollfd wait{output_fd_, POLLIN, 0};
    if (poll(&wait, 1, kPollMs) <= 0) continue;
    char buffer[256];
    const ssize_t bytes = read(output_fd_, buffer, sizeof(buffer));
    if (bytes <= 0) {
      constexpr uint32_t kExitMs = 1'000;
      await_exit(kExitMs);
      const std::string words = errors();
      return Error{ErrorCode::kUnavailable,
                   words.empty() ? "cannot run pboxd: it is neither beside pboxctl nor in PATH"
                                 : "pboxd did not start: " + words};
    }
    line.append(buffer, static_cast<size_t>(bytes));
  }
  control_port_ = ready_port(line);
  if (control_port_ == 0) {
    return Error{ErrorCode::kInternal, "pboxd printed '" + line + "' instead of its addresses"};
  }
  return pbox::ok_status();
}

bool PrivateBox::await_exit(uint32_t timeout_ms) {
  const uint64_t deadline_ns = pbox::monotonic_ns() + timeout_ms * pbox::kNanosPerMilli;
  for (;;) {
    if (exited_ || waitpid(pid_, nullptr, WNOHANG) == pid_) {
      exited_ = true;
      return true;
    }
    if (pbox::monotonic_ns() > deadline_ns) return false;
    usleep(kPollMs * 1'000);
  }
}

// Returns the end of what pboxd wrote to standard error.
std::string PrivateBox::errors() const {
  constexpr off_t kBytesMax = 2'000;
  const off_t size = lseek(errors_fd_, 0, SEEK_END);
  std::string text(static_cast<size_t>(std::min(size, kBytesMax)), '\0');
  const ssize_t bytes =
      pread(errors_fd_, text.data(), text.size(), size - static_cast<off_t>(text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

PrivateBox::~PrivateBox() {
  constexpr uint32_t kDrainMs = 5'000;  // pboxd exits within three seconds
  if (!exited_) kill(pid_, SIGTERM);
  if (!await_exit(kDrainMs)) {
    kill(pid_, SIGKILL);
    await_exit(kDrainMs);
  }
  close(output_fd_);
  close(errors_fd_);
}

}  // namespace pboxctl
