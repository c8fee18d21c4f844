#include <catch2/catch.hpp>

#include "nic/rdma/device.h"
#include "nic/rdma/queue.h"

namespace pbox::nic {

TEST_CASE("the error for a missing device names the existing ones, and no object is leaked") {
  const auto device = RdmaDevice::open({.name = "no_such_device"});
  REQUIRE(!device);
  CHECK(device.error().code == ErrorCode::kNotFound);
  CHECK_THAT(device.error().message, Catch::Contains("no_such_device"));
  for (const auto& name : rdma_device_names()) {
    CHECK_THAT(device.error().message, Catch::Contains(name));
  }
  CHECK(verbs_objects() == 0);
}

TEST_CASE("an endpoint of a queue pair is not the source of any UDP packet") {
  CHECK(!is_queue_pair(*parse_endpoint("10.0.0.1", 9542)));
  CHECK(!is_queue_pair(*parse_endpoint("255.0.0.1", 9542)));
  CHECK(!is_queue_pair(*parse_endpoint("::1", 9542)));
  CHECK(!is_queue_pair(*parse_endpoint("fe80::1", 9542)));
  CHECK(is_queue_pair({.address = {0xff}, .scope_id = 17, .port = 3, .ipv6 = true}));
}

TEST_CASE("a queue takes exactly its buffers, and copies for a burst from landing slots") {
  RdmaQueueOptions options;
  options.receive_slots = 1;
  options.staging_slots = options.peers_max = 0;
  const uint64_t one = rdma_queue_bytes(options);
  CHECK(one >= limits::kPacketBytesMax);
  options.staging_slots = 3;
  CHECK(rdma_queue_bytes(options) == 4 * one);
  options.landing_slots = 2;
  CHECK(rdma_queue_bytes(options) == (6 + limits::kBurstPackets) * one);
}

}  // namespace pbox::nic
