#include <catch2/catch.hpp>

#include "nic/wire/control.pb.h"
#include "worker/rdma/transport.h"

namespace pbox::worker {

TEST_CASE("a transport without its device fails to open by name and sends no request") {
  RdmaTransport transport({.device = "no_such_device"});
  SessionSpec session;
  session.fragment_bytes = 32 * 1024;
  session.pipelines.push_back({.box = *nic::parse_endpoint("127.0.0.1", 9542)});
  const Status opened = transport.open(session, {.deadline_ns = 0, .keep_alive = ok_status});
  REQUIRE(!opened);
  CHECK_THAT(opened.error().message, Catch::Contains("no_such_device"));
  proto::QueuePairs request;
  CHECK(!transport.take_request(request));
}

TEST_CASE("a transport that has no connection has sent nothing and reads no memory") {
  RdmaTransport transport({.device = "no_such_device"});
  const std::byte byte{};
  std::unique_ptr<DeviceMemory> released;
  CHECK(transport.remove_memory(&byte, false, released));
  CHECK(released == nullptr);
  CHECK(transport.memory_registrar() == nullptr);
  CHECK(transport.payload_counts().direct == 0);
  CHECK(transport.payload_counts().staged == 0);
}

TEST_CASE("answers to requests that were not made change nothing") {
  RdmaTransport transport({.device = "no_such_device"});
  proto::QueuePairs answer;
  answer.add_pairs()->set_pipeline(7);
  transport.on_answer(answer);
  answer.set_sequence(1);
  answer.set_refusal("no");
  transport.on_answer(answer);
  proto::QueuePairs request;
  CHECK(!transport.take_request(request));
}

}  // namespace pbox::worker
