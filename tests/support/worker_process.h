// Workers as users run them: one process each, using only libpbox's C ABI. The processes are
// forked, so the test program itself must have a single thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pbox/pbox.h"

namespace pbox::test {

// The child's connection to its test. The child sends lines, and the test sends go().
class Line {
 public:
  Line(int in, int out) : in_(in), out_(out) {}
  void say(const std::string& text) const;
  // Waits until the test calls go(); throws if the test has ended.
  void await_go() const;

 private:
  int in_;
  int out_;
};

class WorkerProcess {
 public:
  // Runs `body` in a child. An exception from it is reported as the child's failure.
  explicit WorkerProcess(const std::function<void(Line&)>& body);
  ~WorkerProcess();  // sends SIGKILL
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;

  pid_t pid() const { return pid_; }
  // Returns the next line from the child, or "FAILED: ..." if it threw; nothing if it has ended or
  // is too slow.
  std::optional<std::string> heard(int timeout_ms = 300'000);
  void go() const;
  void signal(int number) const;
  // Waits for the child's end. Returns its error; empty if the body returned.
  std::string finish(int timeout_ms = 300'000);

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string pending_;
};

// Counts what children have done, with one counter for each child, in memory that they share with
// the test. Must be made before the children. Copies share the counters.
class Progress {
 public:
  explicit Progress(size_t children);

  // Called by child `index`, in [0, children), when it has done one more.
  void advance(size_t index) const { counts_[index].fetch_add(1); }
  // Returns the smallest of the children's counts.
  uint64_t least() const;
  // Waits until each child has done `count`. Throws if that takes too long.
  void await(uint64_t count) const;

 private:
  size_t children_;
  std::shared_ptr<std::atomic<uint64_t>[]> counts_;
};

// Returns the port of workers whose test names none: the environment's PBOX_TEST_PORT, or "socket".
const char* port_under_test();

struct WorkerOptions {
  std::string box;
  std::string job = "job";
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::function<void(pbox_options&)> adjust = {};
};

// A context whose calls must succeed: a failure throws with the library's message.
class AbiWorker {
 public:
  explicit AbiWorker(const WorkerOptions& options);
  ~AbiWorker();
  AbiWorker(const AbiWorker&) = delete;
  AbiWorker& operator=(const AbiWorker&) = delete;

  pbox_context* context() const { return context_; }
  uint32_t tensor(const std::string& name, uint64_t elements, pbox_dtype dtype = PBOX_F32,
                  int32_t priority = 0) const;
  void join() const { must(pbox_join(context_)); }
  // Joins a job in mode optimize with plain SGD, and returns with the tensor's initial weights,
  // which are rank 0's, in `weights`.
  void join_with_sgd(float learning_rate, uint32_t tensor, std::vector<float>& weights) const;
  void push_pull(uint32_t tensor, const void* input, void* output) const {
    must(pbox_push_pull(context_, tensor, input, output, nullptr, nullptr));
  }
  void wait(uint32_t tensor) const { must(pbox_wait(context_, tensor, 0)); }
  // Use this if either of the two calls may fail.
  pbox_status push_pull_and_wait(uint32_t tensor, const void* input, void* output) const {
    const pbox_status status = pbox_push_pull(context_, tensor, input, output, nullptr, nullptr);
    return status == PBOX_OK ? pbox_wait(context_, tensor, 0) : status;
  }
  void wait_all() const { must(pbox_wait_all(context_, 0)); }
  void leave() const { must(pbox_leave(context_)); }
  pbox_statistics statistics() const;

  void must(pbox_status status) const { must_be(PBOX_OK, status); }
  // Returns the message that came with the status; throws if the status differs from `expected`.
  std::string must_be(pbox_status expected, pbox_status actual) const;

 private:
  pbox_context* context_ = nullptr;
};

// Moves the calling process into a network namespace.
void enter_name_space(const std::string& name);

// Drops root's rights permanently, by becoming the user nobody.
void become_nobody();

void require(bool condition, const std::string& text);
void require_contains(const std::string& text, const std::string& part);

}  // namespace pbox::test
