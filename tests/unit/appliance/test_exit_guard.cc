#include <catch2/catch.hpp>
#include <future>

#include "appliance/service_manager.h"

namespace pbox::appliance {

using std::chrono::milliseconds;

TEST_CASE("a stage of the end that lasts too long is named") {
  std::promise<std::string> named;
  ExitGuard guard(milliseconds(10), [&](const std::string& stage) { named.set_value(stage); });
  guard.enter("the disk");
  CHECK(named.get_future().get() == "the disk");
}

TEST_CASE("stages that end in time, and the time between stages, are not named") {
  bool is_named = false;
  {
    ExitGuard guard(std::chrono::minutes(10), [&](const std::string&) { is_named = true; });
    guard.enter("the disk");
    guard.enter("the store");
    guard.enter("");
  }
  {
    ExitGuard guard(milliseconds(0), [&](const std::string&) { is_named = true; });
    guard.enter("");
  }
  CHECK_FALSE(is_named);
}

}  // namespace pbox::appliance
