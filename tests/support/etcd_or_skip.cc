// Linked into a test program: it runs where there is an etcd to start, and elsewhere says why not
// and counts as skipped (SKIP_RETURN_CODE).
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // listeners
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/support/etcd_cluster.h"

namespace pbox::test {
namespace {

class SkipWithoutEtcd : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  void testRunStarting(const Catch::TestRunInfo& /*info*/) override {
    const std::string reason = etcd_is_impossible();
    if (reason.empty()) return;
    std::printf("skipped: %s\n", reason.c_str());
    std::fflush(stdout);
    _exit(PBOX_SKIP_STATUS);
  }
};

CATCH_REGISTER_LISTENER(SkipWithoutEtcd)

}  // namespace
}  // namespace pbox::test
