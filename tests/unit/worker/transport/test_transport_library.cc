// How a port's name is read, and the errors for names that lead nowhere.
// tests/integration/test_service_transport.cc tests a library that exists.
#include <catch2/catch.hpp>

#include "base/version.h"
#include "worker/transport/transport_library.h"

namespace pbox::worker {

using Catch::Contains;

TEST_CASE("the port 'socket' needs no library") {
  const auto transport = open_transport("socket");
  REQUIRE(transport.ok());
  CHECK((*transport)->rto_floor_ns() == 2'000'000);
}

TEST_CASE("a port that is not KIND:ARGUMENTS is refused by name") {
  for (const char* port : {"", "dpdk", ":x", "../evil:x", "DPDK:x", "socket2", "d p:x"}) {
    const auto transport = open_transport(port);
    REQUIRE_FALSE(transport.ok());
    CHECK(transport.error().code == ErrorCode::kInvalidArgument);
    CHECK_THAT(transport.error().message,
               Contains(std::string("'") + port + "'") && Contains("KIND:ARGUMENTS"));
  }
}

TEST_CASE("a missing library is named, with the loader's reason and the remedy") {
  const auto transport = open_transport("absent_kind:device=1:2");
  REQUIRE_FALSE(transport.ok());
  CHECK(transport.error().code == ErrorCode::kNotFound);
  CHECK_THAT(transport.error().message,
             Contains("'absent_kind:device=1:2'") && Contains("libpbox_absent_kind.so.1") &&
                 Contains("No such file") && Contains("package libpbox-absent_kind") &&
                 Contains("'socket'"));
}

TEST_CASE("a transport library serves the libpbox of its own release only") {
  char error[256] = "";
  CHECK_FALSE(refuse_other_release({.version = kVersion}, error, sizeof(error)));
  CHECK(std::string(error).empty());
  CHECK(refuse_other_release({.version = "0.0.7"}, error, sizeof(error)));
  CHECK_THAT(error,
             Contains("0.0.7") && Contains(kVersion) && Contains("install the same release"));
  char little[8];
  CHECK(refuse_other_release({.version = "0.0.7"}, little, sizeof(little)));
  CHECK(std::string(little).size() == sizeof(little) - 1);
}

}  // namespace pbox::worker
