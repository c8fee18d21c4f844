// Relays to other boxes while this process has no descriptors left.
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <optional>

#include "appliance/relay/box_relay.h"

namespace pbox::relay::box_relay_test {
namespace {

// While it exists, the process gets no new descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &former_) == 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = former_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &former_); }

 private:
  rlimit former_{};
};

}  // namespace

TEST_CASE("a relay without descriptors reports that, and the box goes on") {
  boost::asio::io_context context;
  std::optional<Status> reported;
  {
    const NoDescriptors none;
    BoxRelay relay(
        context, {}, "", {}, [&](const Status& status) { reported = status; },
        [](const std::function<void()>& function) { function(); });
    CHECK_FALSE(relay.view().is_joined);
  }
  context.run();
  REQUIRE(reported);
  REQUIRE_FALSE(*reported);
  CHECK(reported->error().code == ErrorCode::kSystem);
  CHECK_THAT(reported->error().message, Catch::Contains("eventfd"));
}

}  // namespace pbox::relay::box_relay_test
