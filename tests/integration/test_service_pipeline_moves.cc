// Chunks of a job that move between the pipelines of one real box, because a pipeline is slow.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

// Returns the number of a thread of the process; 0 if there is none of this name.
pid_t thread_of(pid_t process, const std::string& name) {
  const std::string folder = "/proc/" + std::to_string(process) + "/task";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path() / "comm");
    std::string found;
    std::getline(file, found);
    if (found == name) return std::stoi(entry.path().filename());
  }
  return 0;
}

// Lets one thread of another process run for a quarter of the time only, while this object lives.
// The rest of that process goes on.
class SlowThread {
 public:
  explicit SlowThread(pid_t thread) : thread_([this, thread] { run(thread); }) {}
  ~SlowThread() {
    ends_ = true;
    thread_.join();
  }
  SlowThread(const SlowThread&) = delete;
  SlowThread& operator=(const SlowThread&) = delete;

  bool has_failed() const { return has_failed_; }

 private:
  // Only the thread that has attached may stop the other one.
  void run(pid_t thread) {
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0) {
      has_failed_ = true;
      return;
    }
    while (!ends_) {
      int status = 0;
      if (ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0) break;
      if (waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status)) break;
      usleep(30'000);
      ptrace(PTRACE_CONT, thread, 0, 0);
      usleep(10'000);
    }
    int status = 0;
    ptrace(PTRACE_INTERRUPT, thread, 0, 0);
    waitpid(thread, &status, __WALL);
    ptrace(PTRACE_DETACH, thread, 0, 0);
  }

  std::atomic<bool> ends_ = false, has_failed_ = false;
  std::thread thread_;
};

nlohmann::json inside_of(const Daemon& box) {
  return nlohmann::json::parse(box.get("/api/v1/rebalancing"))["inside"];
}

size_t groups_on(const Daemon& box, size_t pipeline) {
  const auto jobs = inside_of(box)["jobs"];
  if (jobs.empty() || jobs[0]["boxes"].size() <= pipeline) return 0;
  return jobs[0]["boxes"][pipeline]["parts"].get<size_t>();
}

Arguments flags(const char* rebalance) {
  return {"--pipeline.count=2", std::string("--pipeline.rebalance=") + rebalance,
          "--cluster.rebalance_interval_ms=100", "--control.heartbeat_interval_ms=100"};
}

}  // namespace

TEST_CASE("a slow pipeline loses chunks while a job trains, and every sum stays right") {
  Daemon box(flags("true"));
  SteadyTraining training(
      {.box = box.control(), .ranks = 2, .elements = {300'000, 40'000, 7, 250'001}, .rounds = 20});
  training.rounds();
  const pid_t slow = thread_of(box.program().pid(), "pipeline-1");
  REQUIRE(slow != 0);
  bool has_moved = false;
  {
    const SlowThread slowed(slow);
    for (int turn = 0; turn < 400 && !has_moved; ++turn) {
      training.rounds();
      if (slowed.has_failed()) {
        WARN("skipped: this process may not stop threads of its children (ptrace)");
        training.kill();
        return;
      }
      has_moved = groups_on(box, 0) > 2 * groups_on(box, 1);
    }
  }
  CHECK(has_moved);
  training.rounds();
  CHECK(inside_of(box)["enabled"] == true);
  CHECK(inside_of(box)["groups_moved"] >= 1);
  CHECK(box.metric("pbox_rebalance_groups_moved_total") >= 1);
  const Output why = ask(box, PBOX_CTL_PATH, {"boxes", "--why"});
  CHECK(why.status == 0);
  CHECK_THAT(why.text, Catch::Contains("between the pipelines of this box") &&
                           Catch::Contains("exploit") && Catch::Contains("pipeline 1"));
  training.kill();
}

TEST_CASE("chunks stay on their pipelines if the configuration says so") {
  const Daemon box(flags("false"));
  SteadyTraining training({.box = box.control(), .ranks = 2, .elements = {300'000}});
  training.rounds();
  CHECK(inside_of(box)["enabled"] == false);
  CHECK(inside_of(box)["jobs"].empty());
  const Output why = ask(box, PBOX_CTL_PATH, {"boxes", "--why"});
  CHECK_THAT(why.text, Catch::Contains("pipeline.rebalance is off"));
  training.kill();
}

}  // namespace pbox::test
