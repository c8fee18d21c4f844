// The Debian packages under systemd as the first process, in a guest of tests/vm: all packages are
// installed, a box becomes ready, outlives what kills it, is upgraded, removed, and purged.
// PBOX_DEBS names the folder of the packages.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

using Catch::Contains;

struct Outcome {
  int status = -1;
  std::string output;  // with standard error
};

Outcome shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char text[4096];
  while (fgets(text, sizeof(text), pipe) != nullptr) outcome.output += text;
  const int ended = pclose(pipe);
  outcome.status = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  return outcome;
}

void must(const std::string& command) {
  const Outcome outcome = shell(command);
  INFO(command << ": " << outcome.output);
  REQUIRE(outcome.status == 0);
}

// Prints each step before it is done, because the guest is slow.
void say(const char* step) {
  std::printf("%s\n", step);
  std::fflush(stdout);
}

std::string property(const std::string& name) {
  std::string value = shell("systemctl show pboxd --value -p " + name).output;
  while (value.ends_with('\n')) value.pop_back();
  return value;
}

void install_packages() {
  must("dpkg -i \"$PBOX_DEBS\"/*.deb");
}

// A shell command that prints the names of PBox's packages.
const std::string kInstalled =
    R"(for deb in "$PBOX_DEBS"/*.deb; do dpkg-deb -f "$deb" Package; done)";

SteadyTraining train() {
  return SteadyTraining({.box = "127.0.0.1:9541", .rounds = 20, .pause_us = 100'000});
}

// Returns a CPU to which a pipeline's thread is bound.
std::string cpu_of_a_pipeline() {
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/" + property("MainPID") + "/task")) {
    std::ifstream comm(thread.path() / "comm");
    std::string name;
    std::getline(comm, name);
    if (name.find("pipe") == std::string::npos) continue;
    return shell("awk '/^Cpus_allowed_list:/ { printf $2 }' " + thread.path().string() + "/status")
        .output;
  }
  return {};
}

void kill_box(SteadyTraining& training) {
  say("kill");
  training.begin_rounds();
  must("systemctl kill --kill-whom=main --signal=KILL pboxd");
  training.end_rounds();
  CHECK(property("NRestarts") == "1");
}

void wedge_a_pipeline(SteadyTraining& training, const std::string& cpu) {
  // The pipeline gets no more time, because a program of a higher scheduling class uses its CPU.
  say("wedge a pipeline");
  training.begin_rounds();
  must("echo -1 > /proc/sys/kernel/sched_rt_runtime_us");
  {
    Program hog("/usr/bin/taskset",
                {"-c", cpu, "/usr/bin/chrt", "-f", "50", "/bin/sh", "-c", "while :; do :; done"});
    CHECK(await([] {
      return shell("journalctl -u pboxd").output.find("Watchdog timeout") != std::string::npos;
    }));
  }
  training.end_rounds();
  CHECK(property("NRestarts") == "2");
}

void upgrade_under(SteadyTraining& training) {
  say("upgrade");
  const std::string process = property("MainPID");
  install_packages();
  CHECK(property("MainPID") == process);
  training.begin_rounds();
  must("systemctl restart pboxd");
  CHECK(property("MainPID") != process);
  training.kill();
}

void remove_and_install_again(const std::string& cpu) {
  // A removal leaves the configuration and what the box stored.
  say("remove");
  must("dpkg --remove $(" + kInstalled + ")");
  CHECK(shell("pidof pboxd").status == 1);
  for (const char* file : {"/usr/bin/pboxd", "/usr/bin/pboxctl", "/usr/lib/libpbox.so.1",
                           "/usr/lib/systemd/system/pboxd.service"}) {
    CAPTURE(file);
    CHECK_FALSE(std::filesystem::exists(file));
  }
  CHECK(std::filesystem::exists("/etc/pbox/pboxd.conf"));
  CHECK(std::filesystem::exists("/var/lib/pbox"));
  say("install again");
  install_packages();
  must("systemctl start pboxd");
  CHECK(cpu_of_a_pipeline() == cpu);  // the configuration from before the removal applies
}

void purge() {
  say("purge");
  must("dpkg --purge $(" + kInstalled + ")");
  CHECK(shell("pidof pboxd").status == 1);
  for (const char* file :
       {"/usr/bin/pboxd", "/usr/lib/systemd/system/pboxd.service", "/etc/pbox", "/var/lib/pbox"}) {
    CAPTURE(file);
    CHECK_FALSE(std::filesystem::exists(file));
  }
}

}  // namespace

TEST_CASE("a box is installed, killed, wedged, upgraded under its jobs, removed, and purged") {
  // Otherwise dpkg would index the host's manual pages anew each time, which takes minutes here.
  std::filesystem::remove("/var/lib/man-db/auto-update");
  say("install");
  install_packages();
  CHECK(property("ActiveState") == "inactive");  // an operator starts it
  std::ofstream("/etc/pbox/pboxd.conf") << "[pipeline]\ncount = 1\npin = on\ncores = 1\n";
  say("start");
  must("systemctl start pboxd");
  CHECK(property("ActiveState") == "active");
  const std::string cpu = cpu_of_a_pipeline();
  REQUIRE(cpu == "1");
  must("pboxctl version");
  CHECK_THAT(shell("ps -o user= -p " + property("MainPID")).output, Contains("pbox"));

  say("train");
  SteadyTraining training = train();
  training.rounds();

  kill_box(training);
  wedge_a_pipeline(training, cpu);
  upgrade_under(training);
  remove_and_install_again(cpu);
  purge();
}

}  // namespace pbox::test
