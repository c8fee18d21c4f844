// Relays to other boxes while this process has no descriptors left.
#include <catch2/catch.hpp>
#include <optional>

#include "appliance/relay/box_relay.h"
#include "tests/support/no_free_descriptors.h"

namespace pbox::relay::box_relay_test {

TEST_CASE("a relay without descriptors reports that, and the box goes on") {
  boost::asio::io_context context;
  std::optional<Status> reported;
  {
    const test::NoFreeDescriptors none;
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
