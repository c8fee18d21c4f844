// A process that has no descriptors left, for tests of what then fails.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>

namespace pbox::test {

// While it lives, the process can open no further descriptor. Those that are open stay usable.
class NoFreeDescriptors {
 public:
  NoFreeDescriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int lowest_free = dup(STDERR_FILENO);
    REQUIRE(lowest_free >= 0);
    close(lowest_free);
    const rlimit full{static_cast<rlim_t>(lowest_free), before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &full) == 0);
  }
  NoFreeDescriptors(const NoFreeDescriptors&) = delete;
  NoFreeDescriptors& operator=(const NoFreeDescriptors&) = delete;
  ~NoFreeDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace pbox::test
