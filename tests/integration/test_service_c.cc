#include <catch2/catch.hpp>

#include "tests/support/daemon.h"

namespace pbox::test {

TEST_CASE("a C program works with the header and the library alone") {
  Daemon daemon;
  Program program(PBOX_C_PROGRAM_PATH, {daemon.control()});
  const auto status = program.wait_exit(kDeadlineMs);
  INFO(program.errors());
  CHECK(status == 0);
}

}  // namespace pbox::test
