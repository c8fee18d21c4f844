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

using Base = Catch::TestEventListenerBase;  // the class has another name in Catch2 3

class SkipUnless : public Base {
 public:
  using Base::Base;

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
