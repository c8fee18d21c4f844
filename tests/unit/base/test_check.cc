#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

#include "base/check.h"

namespace pbox {
namespace {

// Runs `work` in a child process without its stderr. Returns the signal that ended the child, or 0.
template <typename Work>
int signal_that_ends(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);  // instead of Catch2's handler
    work();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

// PBOX_BUILD_CHECKS_DATAPATH comes from CMakeLists.txt: false for the build type Release.
TEST_CASE("data-path checks are on in every build but release") {
  CHECK(kDatapathChecksOn == PBOX_BUILD_CHECKS_DATAPATH);
  CHECK(signal_that_ends([] { PBOX_DCHECK(1 + 1 == 3); }) == (kDatapathChecksOn ? SIGABRT : 0));
}

TEST_CASE("set-up checks are on in every build") {
  CHECK(signal_that_ends([] { PBOX_CHECK(1 + 1 == 3); }) == SIGABRT);
  CHECK(signal_that_ends([] { PBOX_CHECK(1 + 1 == 2); }) == 0);
}

TEST_CASE("a data-path check that is off does not evaluate its expression") {
  int evaluations = 0;
  const auto count = [&] { return ++evaluations > 0; };
  PBOX_DCHECK(count());
  PBOX_CHECK(count());
  CHECK(evaluations == (kDatapathChecksOn ? 2 : 1));
}

}  // namespace
}  // namespace pbox
