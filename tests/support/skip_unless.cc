// Linked into a test program that has requirements. The build defines PBOX_SKIP_HEADER and
// PBOX_SKIP_REASON. If the reason function returns a text, the program prints it and counts as
// skipped.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // for listeners
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include PBOX_SKIP_HEADER

namespace pbox::test {
namespace {

class SkipUnless : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  void testRunStarting(const Catch::TestRunInfo& /*info*/) override {
    const std::string reason = PBOX_SKIP_REASON();
    if (reason.empty()) return;
    std::printf("skipped: %s\n", reason.c_str());
    std::fflush(stdout);
    _exit(PBOX_SKIP_STATUS);
  }
};

CATCH_REGISTER_LISTENER(SkipUnless)

}  // namespace
}  // namespace pbox::test
