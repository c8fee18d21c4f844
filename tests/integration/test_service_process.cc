// libpbox in a process that belongs to somebody else: its thread, its signals, its environment.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace {

// Threads that the process may still start; negative: any number.
std::atomic<int> threads_left = -1;

}  // namespace

// Takes the place of the C library's function for libpbox too.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left == 0) return EAGAIN;
  if (threads_left > 0) --threads_left;
  return create(thread, attributes, run, argument);
}

namespace pbox::test {
namespace {

// Returns the first line that begins with `start` of a file in /proc, without `start`.
std::string line_of(const std::string& path, const std::string& start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(start, 0) == 0) return line.substr(start.size());
  }
  throw std::runtime_error("no line '" + start + "' in " + path);
}

pid_t io_thread() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    if (line_of(entry.path() / "comm", "") == "pbox-io") return std::stoi(entry.path().filename());
  }
  throw std::runtime_error("the process has no thread of libpbox");
}

// Joins alone, and returns after the I/O thread has done some work.
void join_and_exchange(const AbiWorker& worker) {
  float value = 1;
  worker.tensor("t", 1);
  worker.join();
  worker.push_pull(0, &value, &value);
  worker.wait(0);
}

int cpus_of(pid_t thread) {
  cpu_set_t set;
  require(sched_getaffinity(thread, sizeof(set), &set) == 0, "sched_getaffinity");
  return CPU_COUNT(&set);
}

// Blocks the I/O thread from its first callback until release().
struct Blocker {
  std::promise<void> entered, released;
  pbox_context* context = nullptr;
  pbox_status statistics = PBOX_INTERNAL;  // returned within the callback

  static void on_done(void* user, uint32_t, pbox_status) {
    auto& self = *static_cast<Blocker*>(user);
    pbox_statistics counters{};
    counters.struct_size = sizeof(counters);
    self.statistics = pbox_get_statistics(self.context, &counters);
    self.entered.set_value();
    self.released.get_future().wait();
  }
};

}  // namespace

TEST_CASE("the I/O thread may run where the main thread may, whichever thread joins") {
  Daemon daemon;
  const auto failure =
      WorkerProcess([&](Line&) {
        const AbiWorker worker({.box = daemon.control()});
        std::string wrong;
        std::thread([&] {
          try {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
            require(sched_setaffinity(0, sizeof(one), &one) == 0, "sched_setaffinity");
            join_and_exchange(worker);
          } catch (const std::exception& error) {
            wrong = error.what();
          }
        }).join();
        require(wrong.empty(), wrong);
        require(cpus_of(io_thread()) == cpus_of(getpid()), "the I/O thread is pinned");
      }).finish();
  CHECK(failure == "");
}

TEST_CASE("the I/O thread blocks the signals of others, and no signal that it raises itself") {
  Daemon daemon;
  const auto failure =
      WorkerProcess([&](Line&) {
        const AbiWorker worker({.box = daemon.control()});
        join_and_exchange(worker);
        const std::string status = "/proc/self/task/" + std::to_string(io_thread()) + "/status";
        const uint64_t blocked = std::stoull(line_of(status, "SigBlk:"), nullptr, 16);
        const auto is_blocked = [&](int signal) { return (blocked >> (signal - 1) & 1) != 0; };
        for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM}) {
          require(is_blocked(signal), "signal " + std::to_string(signal) + " is not blocked");
        }
        for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) {
          require(!is_blocked(signal), "signal " + std::to_string(signal) + " is blocked");
        }
      }).finish();
  CHECK(failure == "");
}

TEST_CASE("no call waits for ever behind a callback that does not return") {
  Daemon daemon;
  const auto failure =
      WorkerProcess([&](Line&) {
        const AbiWorker worker({.box = daemon.control(), .adjust = [](pbox_options& options) {
                                  options.wait_timeout_ms = 100;
                                }});
        float value = 1;
        std::vector<float> memory(5000);
        worker.tensor("t", 1);
        worker.join();
        Blocker blocker;
        blocker.context = worker.context();
        worker.must(
            pbox_push_pull(worker.context(), 0, &value, &value, Blocker::on_done, &blocker));
        blocker.entered.get_future().wait();
        require(blocker.statistics == PBOX_OK, "statistics from within a callback");
        pbox_statistics counters{};
        counters.struct_size = sizeof(counters);
        const auto count = [&] { return pbox_get_statistics(worker.context(), &counters); };
        const auto add = [&] {
          return pbox_register_memory(worker.context(), memory.data(), memory.size() * 4);
        };
        require_contains(worker.must_be(PBOX_TIMEOUT, count()), "callback");
        require_contains(worker.must_be(PBOX_TIMEOUT, add()), "callback");
        blocker.released.set_value();
        pbox_status status = PBOX_TIMEOUT;
        while (status == PBOX_TIMEOUT) status = count();  // a busy machine may take longer
        worker.must(status);
        status = PBOX_TIMEOUT;
        while (status == PBOX_TIMEOUT) status = add();
        worker.must(status);  // the attempts that timed out have not registered it
      }).finish();
  CHECK(failure == "");
}

TEST_CASE("a callback cannot leave the job, but another thread still can") {
  Daemon daemon;
  const auto failure =
      WorkerProcess([&](Line&) {
        const AbiWorker worker({.box = daemon.control()});
        float value = 1;
        worker.tensor("t", 1);
        worker.join();
        struct Leaver {
          pbox_context* context;
          pbox_status status = PBOX_OK;
          std::string why = {};
        } leaver{worker.context()};
        const auto leave = [](void* user, uint32_t, pbox_status) {
          auto& self = *static_cast<Leaver*>(user);
          self.status = pbox_leave(self.context);
          self.why = pbox_last_error(self.context);
        };
        worker.must(pbox_push_pull(worker.context(), 0, &value, &value, leave, &leaver));
        worker.wait(0);
        worker.push_pull(0, &value, &value);  // ends after the callback of the one before
        worker.wait(0);
        require(leaver.status == PBOX_INVALID_ARGUMENT, "a callback has left the job");
        require_contains(leaver.why, "call pbox_leave from another thread");
        worker.leave();
      }).finish();
  CHECK(failure == "");
}

TEST_CASE("a join without the threads that it needs fails, and can be repeated") {
  Daemon daemon;
  const auto failure =
      WorkerProcess([&](Line&) {
        const AbiWorker worker({.box = daemon.control()});
        worker.tensor("t", 1);
        const char* const missing[] = {"a thread to open lanes", "a thread to exchange tensors"};
        for (int allowed = 0; allowed < 2; ++allowed) {
          threads_left = allowed;
          require_contains(worker.must_be(PBOX_RESOURCE_EXHAUSTED, pbox_join(worker.context())),
                           std::string("cannot start ") + missing[allowed]);
          require(daemon.await_no_jobs(kDeadlineMs), "the box still has the job");
        }
        threads_left = -1;
        worker.join();
        float value = 1;
        worker.push_pull(0, &value, &value);
        worker.wait(0);
        worker.leave();
      }).finish();
  CHECK(failure == "");
}

TEST_CASE("a malformed environment variable is named with its value and the remedy") {
  const auto refused = [](const char* name, const char* value) -> std::string {
    setenv(name, value, 1);
    pbox_options options;
    const pbox_status status = pbox_options_from_environment(&options);
    unsetenv(name);
    CHECK(status == PBOX_INVALID_ARGUMENT);
    return pbox_last_error(nullptr);
  };
  CHECK(refused("PBOX_RANK", "two") ==
        "the environment variable PBOX_RANK is 'two'; set it to a whole number from 0 to "
        "4294967295, or unset it");
  CHECK_THAT(refused("WORLD_SIZE", "-1"), Catch::Contains("WORLD_SIZE is '-1'"));
  CHECK_THAT(refused("PBOX_CHUNK_BYTES", "4294967296"), Catch::Contains("'4294967296'"));
  CHECK(refused("PBOX_RECOVERY", "maybe") ==
        "the environment variable PBOX_RECOVERY is 'maybe'; set it to one of copy, none, or unset "
        "it");
  CHECK(refused("PBOX_SYNC_PROBABILITY", "half") ==
        "the environment variable PBOX_SYNC_PROBABILITY is 'half'; set it to a number, or unset "
        "it");
  pbox_options options;
  CHECK(pbox_options_from_environment(&options) == PBOX_OK);
}

}  // namespace pbox::test
