// The messages that a box sends to systemd. The test owns the socket that NOTIFY_SOCKET names. A
// pipeline is wedged by stopping its thread with ptrace.
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/daemon.h"

namespace pbox::test {
namespace {

using Catch::Contains;

// The socket of a service manager, and the environment variables that name it to children.
class Manager {
 public:
  explicit Manager(const char* watchdog_us) {
    char folder[] = "/tmp/pbox_manager_XXXXXX";
    REQUIRE(mkdtemp(folder) != nullptr);
    folder_ = folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (folder_ + "/notify").copy(address.sun_path, sizeof(address.sun_path) - 1);
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    const timeval limit{kDeadlineMs / 1000, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    setenv("WATCHDOG_USEC", watchdog_us, 1);
  }
  ~Manager() {
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    close(fd_);
    std::filesystem::remove_all(folder_);
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // Returns the next message; empty after the deadline.
  std::string heard() const {
    char text[4096];
    const ssize_t bytes = recv(fd_, text, sizeof(text), 0);
    return bytes > 0 ? std::string(text, static_cast<size_t>(bytes)) : "";
  }
  // Collects messages until one contains `part`; returns all of them.
  std::string heard_until(const std::string& part) const {
    for (;;) {
      std::string text = heard();
      if (text.empty() || text.find(part) != std::string::npos) return text;
    }
  }

 private:
  std::string folder_;
  int fd_ = -1;
};

// Stops one thread of a child for the lifetime of this object.
class WedgedThread {
 public:
  WedgedThread(pid_t process, const std::string& name) {
    const auto tasks = "/proc/" + std::to_string(process) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      std::string line;
      std::getline(std::ifstream(task.path() / "comm") >> std::ws, line);
      if (line == name) thread_ = std::stoi(task.path().filename().string());
    }
    REQUIRE(thread_ > 0);
    stop();
  }
  explicit WedgedThread(pid_t thread) : thread_(thread) { stop(); }
  ~WedgedThread() { ptrace(PTRACE_DETACH, thread_, nullptr, nullptr); }
  WedgedThread(const WedgedThread&) = delete;
  WedgedThread& operator=(const WedgedThread&) = delete;

 private:
  void stop() const {
    REQUIRE(ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0);
    REQUIRE(ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0);
    REQUIRE(waitpid(thread_, nullptr, __WALL) == thread_);
  }

  pid_t thread_ = 0;
};

}  // namespace

TEST_CASE(
    "the service manager learns that ports are up, that pipelines are alive, and of the end") {
  const Manager manager("4000000");
  Daemon daemon;
  const std::string ready = manager.heard();
  CHECK_THAT(ready, Contains("READY=1"));
  CHECK_THAT(ready, Contains(daemon.control()));
  CHECK(manager.heard() == "WATCHDOG=1");
  CHECK(manager.heard() == "WATCHDOG=1");
  daemon.program().signal(SIGTERM);
  CHECK_THAT(manager.heard_until("STOPPING=1"), Contains("SIGTERM"));
  CHECK(daemon.program().wait_exit(kDeadlineMs) == 0);
}

TEST_CASE("while a pipeline is wedged the watchdog is not fed, and the status names the pipeline") {
  const Manager manager("4000000");
  Daemon daemon;
  CHECK_THAT(manager.heard(), Contains("READY=1"));
  {
    const WedgedThread wedged(daemon.program().pid(), "pipeline-1");
    CHECK(manager.heard_until("STATUS") == "STATUS=pipeline 1 makes no progress");
    for (int looks = 0; looks < 2; ++looks) {
      CHECK(manager.heard() == "STATUS=pipeline 1 makes no progress");
    }
  }
  CHECK_THAT(manager.heard_until("WATCHDOG=1"), Contains("all threads make progress again"));
  CHECK(manager.heard() == "WATCHDOG=1");
}

TEST_CASE("a control thread that is wedged for long is not fed either, and the status says so") {
  const Manager manager("1000000");
  Daemon daemon;
  CHECK_THAT(manager.heard(), Contains("READY=1"));
  {
    const WedgedThread wedged(daemon.program().pid());  // the first thread of the process
    CHECK(manager.heard_until("control") == "STATUS=the control thread makes no progress");
  }
  CHECK_THAT(manager.heard_until("WATCHDOG=1"), Contains("make progress again"));
}

TEST_CASE("without a service manager or its watchdog the box serves all the same") {
  Daemon alone;
  CHECK_THAT(alone.get("/readyz"), Contains("true"));
  const Manager manager("0");
  Daemon unwatched;
  CHECK_THAT(manager.heard(), Contains("READY=1"));
  unwatched.program().signal(SIGTERM);
  CHECK_THAT(manager.heard(), Contains("STOPPING=1"));
}

}  // namespace pbox::test
