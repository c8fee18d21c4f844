// The box holds the weights. Workers get exactly the oracle's weights, bit for bit.
#include <catch2/catch.hpp>

#include "tests/support/daemon.h"
#include "tests/support/momentum.h"

namespace pbox::test {

TEST_CASE("the box's momentum steps equal a local oracle's, across a change of the learning rate") {
  Daemon daemon;
  CHECK(run_momentum(daemon.control()) == "");
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

}  // namespace pbox::test
