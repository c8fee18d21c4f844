#include "tests/support/worker_process.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

namespace pbox::test {
namespace {

constexpr std::chrono::seconds kProgressDeadline(300);

}  // namespace

void Line::say(const std::string& text) const {
  const std::string line = text + "\n";
  if (write(out_, line.data(), line.size()) < 0) throw std::runtime_error("the test has ended");
}

void Line::await_go() const {
  char byte = 0;
  if (read(in_, &byte, 1) != 1) throw std::runtime_error("the test has ended");
}

WorkerProcess::WorkerProcess(const std::function<void(Line&)>& body) {
  int to_child[2], from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) {
    throw std::runtime_error("cannot create pipes for the worker process");
  }
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("cannot fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_child[1]);
    close(from_child[0]);
    Line line(to_child[0], from_child[1]);
    int status = 0;
    try {
      body(line);
    } catch (const std::exception& exception) {
      status = 1;
      line.say(std::string("FAILED: ") + exception.what());
    }
    _exit(status);  // skips the test program's exit handlers, which must not run twice
  }
  close(to_child[0]);
  close(from_child[1]);
  in_ = from_child[0];
  out_ = to_child[1];
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      in_(std::exchange(other.in_, -1)),
      out_(std::exchange(other.out_, -1)),
      pending_(std::move(other.pending_)) {}

WorkerProcess::~WorkerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (in_ >= 0) close(in_);
  if (out_ >= 0) close(out_);
}

std::optional<std::string> WorkerProcess::heard(int timeout_ms) {
  for (;;) {
    const size_t newline = pending_.find('\n');
    if (newline != std::string::npos) {
      std::string line = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return line;
    }
    pollfd wait{in_, POLLIN, 0};
    if (poll(&wait, 1, timeout_ms) <= 0) return std::nullopt;
    char buffer[1024];
    const ssize_t bytes = read(in_, buffer, sizeof(buffer));
    if (bytes <= 0) return std::nullopt;
    pending_.append(buffer, static_cast<size_t>(bytes));
  }
}

void WorkerProcess::go() const {
  if (write(out_, "g", 1) != 1) throw std::runtime_error("the worker has ended");
}

void WorkerProcess::signal(int number) const {
  kill(pid_, number);
}

std::string WorkerProcess::finish(int timeout_ms) {
  std::string last;
  for (int waited_ms = 0; waited_ms <= timeout_ms; waited_ms += 2) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      while (auto line = heard(0)) last = *line;
      if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
      if (WEXITSTATUS(status) == 0) return "";
      return last.empty() ? "exit status " + std::to_string(WEXITSTATUS(status)) : last;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return "still runs after " + std::to_string(timeout_ms) + " ms";
}

const char* port_under_test() {
  const char* port = std::getenv("PBOX_TEST_PORT");
  return port != nullptr ? port : "socket";
}

AbiWorker::AbiWorker(const WorkerOptions& options) {
  pbox_options chosen;
  pbox_options_init(&chosen);
  chosen.box = options.box.c_str();
  chosen.job = options.job.c_str();
  chosen.rank = options.rank;
  chosen.world_size = options.world_size;
  chosen.port = port_under_test();
  if (options.adjust) options.adjust(chosen);
  must(pbox_create(&chosen, &context_));
}

AbiWorker::~AbiWorker() {
  pbox_destroy(context_);
}

uint32_t AbiWorker::tensor(const std::string& name, uint64_t elements, pbox_dtype dtype,
                           int32_t priority) const {
  uint32_t id = 0;
  must(pbox_register_tensor(context_, name.c_str(), elements, dtype, priority, &id));
  return id;
}

void AbiWorker::join_with_sgd(float learning_rate, uint32_t tensor,
                              std::vector<float>& weights) const {
  pbox_optimizer_options sgd;
  pbox_optimizer_options_init(&sgd, PBOX_SGD);
  sgd.learning_rate = learning_rate;
  must(pbox_set_optimizer(context_, &sgd));
  join();
  must(pbox_init_weights(context_, tensor, weights.data(), nullptr, nullptr));
  wait(tensor);
}

pbox_statistics AbiWorker::statistics() const {
  pbox_statistics statistics{};
  statistics.struct_size = sizeof(statistics);
  must(pbox_get_statistics(context_, &statistics));
  return statistics;
}

std::string AbiWorker::must_be(pbox_status expected, pbox_status actual) const {
  std::string message = actual == PBOX_OK ? "" : pbox_last_error(context_);
  if (actual == expected) return message;
  throw std::runtime_error(std::string("expected ") + pbox_status_string(expected) + ", got " +
                           pbox_status_string(actual) + ": " + message);
}

Progress::Progress(size_t children) : children_(children) {
  const size_t bytes = children * sizeof(std::atomic<uint64_t>);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "no shared memory");
  counts_ = std::shared_ptr<std::atomic<uint64_t>[]>(
      new (memory) std::atomic<uint64_t>[children] {},
      [bytes](std::atomic<uint64_t>* counts) { munmap(counts, bytes); });
}

uint64_t Progress::least() const {
  return std::min_element(counts_.get(), counts_.get() + children_)->load();
}

void Progress::await(uint64_t count) const {
  const auto end = std::chrono::steady_clock::now() + kProgressDeadline;
  while (least() < count) {
    require(std::chrono::steady_clock::now() < end,
            "a child has done " + std::to_string(least()) + " of " + std::to_string(count));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void enter_name_space(const std::string& name) {
  const int fd = open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  require(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, "cannot enter network namespace " + name);
  close(fd);
}

void become_nobody() {
  constexpr uid_t kNobody = 65534;
  require(setgroups(0, nullptr) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 &&
              setresuid(kNobody, kNobody, kNobody) == 0,
          "cannot become nobody");
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the change of the user reset it
}

void require(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error(text);
}

void require_contains(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, "'" + text + "' does not contain '" + part + "'");
}

}  // namespace pbox::test
