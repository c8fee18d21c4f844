// Linked into a test program: it runs where networks can be made, and elsewhere says why not and
// counts as skipped (SKIP_RETURN_CODE of pbox_veth_test).
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // listeners
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/support/veth.h"

namespace pbox::test {
namespace {

class SkipWithoutVeth : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  void testRunStarting(const Catch::TestRunInfo& /*info*/) override {
    const std::string reason = veth_is_impossible();
    if (reason.empty()) return;
    std::printf("skipped: %s\n", reason.c_str());
    std::fflush(stdout);
    _exit(PBOX_SKIP_STATUS);
  }
};

CATCH_REGISTER_LISTENER(SkipWithoutVeth)

}  // namespace
}  // namespace pbox::test
