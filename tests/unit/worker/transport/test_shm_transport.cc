// A worker's lanes to a box on the same host: opening, waking, loss and the end.
#include <catch2/catch.hpp>

#include "tests/unit/worker/transport/lane_box.h"

namespace pbox::worker {
namespace {

std::string error_of(LaneBox& box, ErrorCode code, uint64_t patience_ns = 10 * kNanosPerSecond) {
  ShmTransport transport;
  const Status opened = box.open(transport, patience_ns);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().code == code);
  return opened.error().message;
}

bool names(const std::string& message, const std::string& part) {
  INFO(message);
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a transport of shared memory asks the box once, and makes a lane for each pipeline") {
  LaneBox box(3);
  ShmTransport transport;
  proto::QueuePairs request;
  CHECK_FALSE(transport.take_request(request));  // before open()
  REQUIRE(box.open(transport).ok());
  CHECK(box.requests == 1);
  CHECK(box.pipelines_asked == std::vector<uint32_t>{0, 1, 2});
  CHECK_FALSE(transport.take_request(request));
  CHECK_FALSE(transport.failure().has_value());
  for (const nic::ShmPort& port : box.ports) {
    CHECK(port.counters().get(nic::PortCounter::kLanes) == 1);
  }
  CHECK(*transport.path_mtu({}) > limits::kPacketBytesMax);
  CHECK(transport.rto_floor_ns() > 0);
  CHECK(transport.memory_registrar() == nullptr);
}

TEST_CASE("packets pass lanes of shared memory both ways, each on its own lane") {
  LaneBox box(2);
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  ShmBurst burst;
  for (uint32_t lane = 0; lane < 2; ++lane) {
    nic::ShmPort& port = box.ports[lane];
    const nic::Endpoint from = introduce(transport, lane, box);
    for (const uint32_t bytes : {0u, 8u, 1408u, 8192u, limits::kFragmentBytesMax}) {
      const ShmPacket first(bytes, bytes, kShmSpi + lane, &from);
      const ShmPacket second(bytes + 1, 100, kShmSpi + lane, &from);
      const nic::TxPacket both[] = {first.packet, second.packet};
      REQUIRE(transport.tx_burst(lane, both) == 2);
      REQUIRE(port.rx_burst(burst) == 2);
      CHECK(first.is_same(burst[0]));
      CHECK(second.is_same(burst[1]));
      REQUIRE(port.tx_burst(both) == 2);
      CHECK(transport.rx_burst(1 - lane, burst) == 0);
      REQUIRE(transport.rx_burst(lane, burst) == 2);
      CHECK(first.is_same(burst[0]));
      CHECK(second.is_same(burst[1]));
      CHECK(transport.rx_burst(lane, burst) == 0);
    }
  }
}

TEST_CASE("packets that a burst has no room for are in the next burst") {
  LaneBox box(1);
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  const nic::Endpoint from = introduce(transport, 0, box);
  for (uint64_t number = 0; number < 10; ++number) {
    send_from_box(box.ports[0], ShmPacket(number, 300, kShmSpi, &from));
  }
  ShmBurst burst;
  for (uint64_t number = 0; number < 10;) {
    const size_t count = transport.rx_burst(0, std::span(burst).first(4));
    REQUIRE(count > 0);
    for (size_t index = 0; index < count; ++index) {
      CHECK(ShmPacket(number++, 300, kShmSpi).is_same(burst[index]));
    }
  }
}

TEST_CASE("the box wakes a worker that sleeps, each time") {
  LaneBox box(1);
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  const nic::Endpoint from = introduce(transport, 0, box);
  ShmBurst burst;
  for (uint64_t number = 0; number < 5; ++number) {
    const int fd = transport.event_fd(0);
    REQUIRE(fd >= 0);
    CHECK_FALSE(is_readable(fd, 0));
    const ShmPacket packet(number, 1408, kShmSpi, &from);
    send_from_box(box.ports[0], packet);
    send_from_box(box.ports[0], packet);
    CHECK(is_readable(fd, kBellMs));
    REQUIRE(transport.rx_burst(0, burst) == 2);
    CHECK(packet.is_same(burst[1]));
    CHECK(transport.rx_burst(0, burst) == 0);
  }
  CHECK_FALSE(is_readable(transport.event_fd(0), 0));
  CHECK_FALSE(transport.failure().has_value());
}

TEST_CASE("a worker may not sleep if the box has sent before") {
  LaneBox box(1);
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  const nic::Endpoint from = introduce(transport, 0, box);
  ShmBurst burst;
  for (uint64_t number = 0; number < 3; ++number) {
    send_from_box(box.ports[0], ShmPacket(number, 1408, kShmSpi, &from));
    CHECK(is_readable(transport.event_fd(0), kBellMs));
    CHECK(transport.rx_burst(0, burst) == 1);
  }
  // A bell that was rung while the worker was awake wakes it once at most.
  if (is_readable(transport.event_fd(0), 0)) CHECK(transport.rx_burst(0, burst) == 0);
  CHECK_FALSE(is_readable(transport.event_fd(0), 0));
}

TEST_CASE("a worker wakes a box that sleeps") {
  LaneBox box(1);
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  introduce(transport, 0, box);
  ShmBurst burst;
  if (is_readable(box.ports[0].event_fd(), 0)) CHECK(box.ports[0].rx_burst(burst) == 0);
  for (uint64_t number = 0; number < 3; ++number) {
    const int fd = box.ports[0].event_fd();
    CHECK_FALSE(is_readable(fd, 0));
    const ShmPacket packet(number, 1408, kShmSpi);
    REQUIRE(transport.tx_burst(0, std::span(&packet.packet, 1)) == 1);
    CHECK(is_readable(fd, kBellMs));
    CHECK(box.ports[0].rx_burst(burst) == 1);
  }
}

TEST_CASE("as many bytes as the transport says may arrive unread, and none is lost") {
  for (const uint32_t fragment_bytes : {512u, 1408u, 8192u, limits::kFragmentBytesMax}) {
    LaneBox box(1);
    box.session.fragment_bytes = fragment_bytes;
    ShmTransport transport;
    REQUIRE(box.open(transport).ok());
    const nic::Endpoint from = introduce(transport, 0, box);
    const uint32_t count = transport.receivable_bytes(0) / fragment_bytes;
    INFO(count << " fragments of " << fragment_bytes);
    REQUIRE(count > 0);
    const ShmPacket packet(1, fragment_bytes, kShmSpi, &from);
    for (uint32_t sent = 0; sent < count; ++sent) send_from_box(box.ports[0], packet);
    CHECK(box.ports[0].counters().get(nic::PortCounter::kLaneFull) == 0);
  }
}

TEST_CASE("packets for which the box has no room are lost, and the lane goes on") {
  LaneBox box(1);
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  const ShmPacket packet(1, limits::kFragmentBytesMax, kShmSpi);
  const std::vector<nic::TxPacket> many(200, packet.packet);
  CHECK(transport.tx_burst(0, many) == many.size());
  ShmBurst burst;
  size_t received = 0;
  while (const size_t count = box.ports[0].rx_burst(burst)) received += count;
  CHECK(received > 0);
  CHECK(received < many.size());
  introduce(transport, 0, box);
  CHECK_FALSE(transport.failure().has_value());
}

TEST_CASE("a refusal of the box becomes the error of the opening") {
  LaneBox box(1);
  box.answer.set_refusal("this box offers no shared memory");
  CHECK(error_of(box, ErrorCode::kNotFound) == "this box offers no shared memory");
  CHECK(box.connections.empty());

  LaneBox other(2);
  other.take_instead = [](const nic::ReceivedHello&, Descriptor& connection) {
    nic::LaneAnswer answer;
    const std::string reason = "no place is left";
    std::memcpy(answer.refusal.data(), reason.data(), reason.size());
    REQUIRE(nic::send_answer(connection.get(), answer, {}).ok());
  };
  CHECK(error_of(other, ErrorCode::kUnavailable) == "no place is left");
  CHECK(other.pipelines_asked == std::vector<uint32_t>{0});
}

TEST_CASE("an answer that offers no shared memory is from an older release") {
  LaneBox box(1);
  const std::string socket = box.answer.shared_memory().socket();
  const std::string token = box.answer.shared_memory().token();
  box.answer.clear_shared_memory();
  CHECK(names(error_of(box, ErrorCode::kNotFound), "older release"));
  proto::SharedMemory& shared = *box.answer.mutable_shared_memory();
  shared.set_socket(socket);
  CHECK(names(error_of(box, ErrorCode::kNotFound), "older release"));
  shared.set_token(token + "x");
  CHECK(names(error_of(box, ErrorCode::kNotFound), "older release"));
  shared.set_token(token);
  shared.set_socket(std::string(nic::kLaneSocketBytesMax + 1, 's'));
  CHECK(names(error_of(box, ErrorCode::kNotFound), "older release"));
  shared.set_socket(socket);
  ShmTransport transport;
  CHECK(box.open(transport).ok());
}

TEST_CASE("a socket on which nobody listens is of a box on another host") {
  LaneBox box(1);
  box.stop_listening();
  const std::string message = error_of(box, ErrorCode::kNotFound);
  CHECK(names(message, "the box is not on this host, or in another network namespace"));
  CHECK(names(message, box.answer.shared_memory().socket()));
  CHECK(names(message, "use the port 'socket'"));
}

TEST_CASE("a box whose address this host does not have is not asked for shared memory") {
  LaneBox box(1);
  box.session.pipelines[0].box = *nic::parse_endpoint("198.51.100.7", 9542);
  const std::string message = error_of(box, ErrorCode::kNotFound);
  CHECK(names(message, "the box is not on this host"));
  CHECK(names(message, "198.51.100.7"));
  CHECK(names(message, "use the port 'socket'"));
  CHECK(box.requests == 0);
}

TEST_CASE("a box that does not answer in time is reported, with the step that it owes") {
  LaneBox box(1);
  box.answers = false;
  CHECK(names(error_of(box, ErrorCode::kTimeout, 20 * kNanosPerMilli), "answered the request"));
  box.answers = true;
  box.accepts = false;
  CHECK(names(error_of(box, ErrorCode::kTimeout, 20 * kNanosPerMilli), "made a lane"));
}

TEST_CASE("an opening ends with the error that its caller reports") {
  LaneBox box(1);
  box.status = Error{ErrorCode::kClosed, "not needed any more"};
  for (const bool answers : {false, true}) {
    box.answers = answers;
    box.accepts = false;
    CHECK(error_of(box, ErrorCode::kClosed) == "not needed any more");
  }
}

TEST_CASE("a box that closes the connection, or sends an unfit segment, fails the opening") {
  LaneBox box(1);
  box.take_instead = [](const nic::ReceivedHello&, Descriptor& connection) {
    connection = Descriptor();
  };
  CHECK(names(error_of(box, ErrorCode::kClosed), "has closed the lane"));

  LaneBox other(1);
  other.take_instead = [](const nic::ReceivedHello&, Descriptor& connection) {
    const Descriptor bell(eventfd(0, EFD_CLOEXEC));
    REQUIRE(nic::send_answer(connection.get(), {}, {bell.get(), bell.get()}).ok());
  };
  CHECK(names(error_of(other, ErrorCode::kInvalidArgument), "segment of the other end"));
}

TEST_CASE("a transport fails if the box has closed a lane, but not at once") {
  LaneBox box(2);
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  ShmBurst burst;
  const int fd = transport.event_fd(1);
  CHECK_FALSE(transport.failure().has_value());
  const uint64_t before_ns = monotonic_ns();
  CHECK(box.ports[1].close(1));
  CHECK(box.ports[1].rx_burst(burst) == 0);
  CHECK(box.ports[1].reap() == 0);
  CHECK(is_readable(fd, kBellMs));
  CHECK(transport.rx_burst(1, burst) == 0);
  // The descriptor would stay readable.
  CHECK(transport.event_fd(1) == -1);
  std::optional<Error> failure;
  while (!failure && monotonic_ns() - before_ns < 60 * kNanosPerSecond) {
    const ShmPacket packet(1, 1408, kShmSpi + 1);
    REQUIRE(transport.tx_burst(1, std::span(&packet.packet, 1)) == 1);
    REQUIRE(transport.rx_burst(0, burst) == 0);
    REQUIRE(transport.rx_burst(1, burst) == 0);
    poll(nullptr, 0, 1);
    failure = transport.failure();
  }
  REQUIRE(failure.has_value());
  CHECK(failure->code == ErrorCode::kUnavailable);
  CHECK(names(failure->message, "closed a lane"));
  // The control connection had time to show that the box has ended.
  CHECK(monotonic_ns() - before_ns >= kNanosPerSecond / 2);
}

TEST_CASE("a transport fails once the box breaks the rules of a ring") {
  LaneBox box(1);
  std::optional<nic::OwnSegment> segment;
  box.take_instead = [&](const nic::ReceivedHello& received, Descriptor& connection) {
    auto made = nic::OwnSegment::make(received.hello.ring_bytes);
    REQUIRE(made.ok());
    segment = std::move(*made);
    const Descriptor bell(eventfd(0, EFD_CLOEXEC));
    const std::vector<int> files = {segment->file().get(), bell.get()};
    REQUIRE(nic::send_answer(connection.get(), {}, files).ok());
  };
  ShmTransport transport;
  REQUIRE(box.open(transport).ok());
  ShmBurst burst;
  CHECK(transport.rx_burst(0, burst) == 0);
  CHECK_FALSE(transport.failure().has_value());
  segment->head().written = 64;  // a record without a length
  CHECK(transport.rx_burst(0, burst) == 0);
  CHECK(transport.failure().has_value());
}

}  // namespace pbox::worker
