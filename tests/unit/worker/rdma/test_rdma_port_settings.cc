#include <catch2/catch.hpp>

#include "worker/rdma/port_settings.h"

namespace pbox::worker {

TEST_CASE("a worker's RDMA port is a device, and a GID index if one is given") {
  const auto plain = parse_rdma_port("mlx5_0");
  REQUIRE(plain);
  CHECK(plain->device == "mlx5_0");
  CHECK(!plain->gid_index);
  const auto chosen = parse_rdma_port(" rxe0  gid=255 ");
  REQUIRE(chosen);
  CHECK(chosen->device == "rxe0");
  CHECK(chosen->gid_index == 255u);
}

TEST_CASE("an unknown word in a worker's RDMA port is refused") {
  CHECK_THAT(parse_rdma_port("").error().message, Catch::Contains("no device is named"));
  CHECK_THAT(parse_rdma_port("  ").error().message, Catch::Contains("no device is named"));
  for (const char* word : {"gid", "gid=", "gid=-1", "gid=256", "gid=1x", "1", "mtu=9000"}) {
    const auto port = parse_rdma_port(std::string("rxe0 ") + word);
    REQUIRE(!port);
    CHECK_THAT(port.error().message, Catch::Contains(std::string("'") + word + "'"));
  }
}

}  // namespace pbox::worker
