// A port's lanes with workers of its host, honest and hostile.
#include <catch2/catch.hpp>

#include "tests/unit/nic/shm/lane_worker.h"

namespace pbox::nic {

TEST_CASE("packets from lanes arrive whole, and their sender is the lane") {
  ShmPort box = open_box();
  LaneWorker one(box, 1);
  LaneWorker two(box, 2, kLaneSpi + 1);
  const uint32_t sizes[] = {0, 8, 455, 456, 457, 1408, 8192, limits::kFragmentBytesMax};
  std::vector<Endpoint> senders;
  for (const uint32_t size : sizes) {
    const LanePayload first(size + 1, size);
    const LanePayload second(size + 2, size, kLaneSpi + 1);
    one.send(first);
    two.send(second);
    LaneBurst burst;
    REQUIRE(box.rx_burst(burst) == 2);
    const size_t of_one = bytes_of(burst[0]) == first.on_wire() ? 0 : 1;
    CHECK((bytes_of(burst[of_one]) == first.on_wire()));
    CHECK((bytes_of(burst[1 - of_one]) == second.on_wire()));
    for (const RxPacket& packet : std::span(burst).first(2)) {
      CHECK(is_lane(packet.from));
      CHECK(packet.to == kNoLocalAddress);
      CHECK(packet.to_port == 0);
    }
    CHECK(burst[0].from != burst[1].from);
    if (senders.empty()) senders = {burst[of_one].from, burst[1 - of_one].from};
    CHECK(burst[of_one].from == senders[0]);
    CHECK(burst[1 - of_one].from == senders[1]);
  }
  CHECK(box.counters().get(PortCounter::kLanes) == 2);
}

TEST_CASE("small packets and rows are copied, and large payloads stay in the ring") {
  ShmPort box = open_box();
  LaneWorker worker(box, 1);
  const LanePayload small(1, 456);
  const LanePayload rows(2, 8192, kLaneSpi, wire::flag::kRows);
  const LanePayload large(3, 8192);
  for (const LanePayload* payload : {&small, &rows, &large}) worker.send(*payload);
  LaneBurst burst;
  REQUIRE(box.rx_burst(burst) == 3);
  CHECK(burst[0].payload == nullptr);
  CHECK(burst[1].payload == nullptr);
  REQUIRE(burst[2].payload != nullptr);
  CHECK((bytes_of(burst[2]) == large.on_wire()));
  CHECK(reinterpret_cast<uintptr_t>(burst[2].payload) % kCacheLineBytes == 0);
  std::memset(worker.own.ring(), 0xee, kRingBytesMin);
  CHECK((bytes_of(burst[0]) == small.on_wire()));
  CHECK((bytes_of(burst[1]) == rows.on_wire()));
  CHECK(std::memcmp(burst[2].data, &large.packet.header, limits::kHeaderBytes) == 0);
  CHECK(burst[2].payload[0] == std::byte{0xee});
  // The next burst gives the ring's room back.
  CHECK(worker.box.head().released == 0);
  CHECK(box.rx_burst(burst) == 0);
  CHECK(worker.box.head().released == worker.own.head().written);
}

TEST_CASE("a packet of another session than the lane's is dropped and counted") {
  ShmPort box = open_box();
  LaneWorker worker(box, 1);
  const LanePayload honest(9, 1408);
  for (const uint32_t size : {8u, 1408u}) {
    worker.send(LanePayload(1, size, kLaneSpi + 1));
    worker.send(LanePayload(2, size, 0));
  }
  worker.send(honest);
  const TakenPackets taken = take_packets(box, 1);
  REQUIRE(taken.bytes.size() == 1);
  CHECK((taken.bytes[0] == honest.on_wire()));
  CHECK(box.counters().get(PortCounter::kDropSource) == 4);
  CHECK_FALSE(worker.sees_the_end());
}

TEST_CASE("a lane with many packets lets another lane have its turn") {
  ShmPort box = open_box();
  LaneWorker busy(box, 1), other(box, 2);
  const LanePayload packet(777, 8);
  for (uint64_t number = 0; number < 200; ++number) busy.send(LanePayload(number, 8));
  other.send(packet);
  const TakenPackets taken = take_packets(box, 40);
  CHECK(std::count(taken.bytes.begin(), taken.bytes.end(), packet.on_wire()) == 1);
}

TEST_CASE("answers reach each worker in the order of the burst, over lanes and over UDP") {
  ShmPort box = open_box();
  LaneWorker one(box, 1), two(box, 2);
  SocketPort remote = open_udp_worker(box);
  const Endpoint to_one = endpoint_of(box, one);
  const Endpoint to_two = endpoint_of(box, two);
  const Endpoint to_remote = remote.local();
  const LanePayload a(1, 1408), b(2, 32'768), c(3, 0), d(4, 1408), e(5, 1408), f(6, 777);
  const auto packets = addressed({&a, &b, &c, &d, &e, &f},
                                 {&to_one, &to_two, &to_remote, &to_remote, &to_one, &to_two});
  REQUIRE(box.tx_burst(packets) == packets.size());
  CHECK((one.receive() == a.on_wire()));
  CHECK((one.receive() == e.on_wire()));
  CHECK(one.receive().empty());
  CHECK((two.receive() == b.on_wire()));
  CHECK((two.receive() == f.on_wire()));
  CHECK(two.receive().empty());
  REQUIRE(becomes_readable(remote.event_fd(), kWakeMs));
  LaneBurst burst;
  REQUIRE(remote.rx_burst(burst) == 2);
  CHECK((bytes_of(burst[0]) == c.on_wire()));
  CHECK((bytes_of(burst[1]) == d.on_wire()));
}

TEST_CASE("packets for a full or a closed lane are counted, and others leave") {
  ShmPort box = open_box();
  LaneWorker full(box, 1), closed(box, 2), other(box, 3);
  const Endpoint to_full = endpoint_of(box, full);
  const Endpoint to_closed = endpoint_of(box, closed);
  const Endpoint to_other = endpoint_of(box, other);
  Endpoint to_nobody = to_other;
  to_nobody.scope_id += 1;
  CHECK(box.close(2));
  const LanePayload large(1, 30'000);
  const size_t room = kRingBytesMin / ring_record_bytes(30'056);
  for (size_t count = 0; count < room; ++count) {
    REQUIRE(box.tx_burst(addressed({&large}, {&to_full})) == 1);
  }
  CHECK(box.counters().get(PortCounter::kLaneFull) == 0);
  const LanePayload last(2, 1408);
  REQUIRE(box.tx_burst(addressed({&large, &last, &last, &last},
                                 {&to_full, &to_closed, &to_nobody, &to_other})) == 4);
  CHECK(box.counters().get(PortCounter::kLaneFull) == 1);
  CHECK(box.counters().get(PortCounter::kSendFailures) == 2);
  CHECK((other.receive() == last.on_wire()));
  // Once its worker has read, the lane takes packets again.
  for (size_t count = 0; count < room; ++count) REQUIRE((full.receive() == large.on_wire()));
  REQUIRE(box.tx_burst(addressed({&large}, {&to_full})) == 1);
  CHECK(box.counters().get(PortCounter::kLaneFull) == 1);
}

TEST_CASE("a port with lanes receives over UDP as before") {
  ShmPort box = open_box();
  LaneWorker worker(box, 1);
  SocketPort remote = open_udp_worker(box);
  for (uint64_t number = 1; number < 20; ++number) {
    const LanePayload local(number, 4096);  // its payload stays in the ring
    const LanePayload far(1000 + number, 1408);
    worker.send(local);
    REQUIRE(remote.tx_burst(std::span(&far.packet, 1)) == 1);
    const TakenPackets taken = take_packets(box, 2);
    REQUIRE(taken.bytes.size() == 2);
    const size_t of_lane = is_lane(taken.from[0]) ? 0 : 1;
    CHECK((taken.bytes[of_lane] == local.on_wire()));
    CHECK((taken.bytes[1 - of_lane] == far.on_wire()));
    CHECK(taken.from[1 - of_lane] == remote.local());
  }
}

TEST_CASE("a worker that publishes wakes a port that sleeps, each time") {
  ShmPort box = open_box();
  LaneWorker one(box, 1), two(box, 2);
  LaneBurst burst;
  for (int count = 0; count < 5; ++count) {
    LaneWorker& worker = count % 2 == 0 ? one : two;
    const int fd = box.event_fd();
    CHECK_FALSE(becomes_readable(fd, 0));
    worker.send(LanePayload(1, 100));
    worker.send(LanePayload(2, 100));
    CHECK(becomes_readable(fd, kWakeMs));
    REQUIRE(box.rx_burst(burst) == 2);
    CHECK(box.rx_burst(burst) == 0);
  }
  CHECK_FALSE(becomes_readable(box.event_fd(), 0));
}

TEST_CASE("a port may not sleep if a worker has published before") {
  ShmPort box = open_box();
  LaneWorker worker(box, 1);
  LaneBurst burst;
  for (int count = 0; count < 3; ++count) {
    worker.send(LanePayload(1, 100));
    CHECK(becomes_readable(box.event_fd(), kWakeMs));
    REQUIRE(box.rx_burst(burst) == 1);
  }
  // A bell that was rung while the port was awake wakes it once at most.
  if (becomes_readable(box.event_fd(), 0)) CHECK(box.rx_burst(burst) == 0);
  CHECK_FALSE(becomes_readable(box.event_fd(), 0));
}

TEST_CASE("a packet over UDP wakes a port that sleeps on its lanes") {
  ShmPort box = open_box();
  const LaneWorker worker(box, 1);
  SocketPort remote = open_udp_worker(box);
  const LanePayload packet(1, 1408);
  for (int count = 0; count < 3; ++count) {
    const int fd = box.event_fd();
    CHECK_FALSE(becomes_readable(fd, 0));
    REQUIRE(remote.tx_burst(std::span(&packet.packet, 1)) == 1);
    CHECK(becomes_readable(fd, kWakeMs));
    CHECK(take_packets(box, 1).bytes.size() == 1);
  }
}

TEST_CASE("a closed lane is freed once the polling thread has released it") {
  ShmPort box = open_box();
  LaneWorker worker(box, 1), other(box, 2);
  LaneBurst burst;
  CHECK_FALSE(box.close(3));
  worker.send(LanePayload(1, 4096));
  REQUIRE(box.rx_burst(burst) == 1);
  CHECK(box.close(1));
  CHECK_FALSE(box.close(1));
  CHECK(box.reap() == 1);
  CHECK(box.reap() == 1);
  CHECK((bytes_of(burst[0]) == LanePayload(1, 4096).on_wire()));
  CHECK_FALSE(worker.sees_the_end());
  worker.send(LanePayload(2, 8));
  other.send(LanePayload(3, 8));
  CHECK(box.rx_burst(burst) == 1);  // the closed lane's packet is not received
  CHECK(box.rx_burst(burst) == 0);
  CHECK(box.reap() == 0);
  CHECK(worker.sees_the_end());
  CHECK_FALSE(other.sees_the_end());
}

TEST_CASE("a new lane of the same owner replaces its earlier one") {
  ShmPort box = open_box();
  LaneWorker earlier(box, 1);
  const Endpoint to_earlier = endpoint_of(box, earlier);
  LaneWorker later(box, 1);
  const Endpoint to_later = endpoint_of(box, later);
  CHECK(to_later != to_earlier);
  CHECK(box.reap() == 0);
  CHECK(earlier.sees_the_end());
  CHECK_FALSE(later.sees_the_end());
  const LanePayload packet(1, 8);
  REQUIRE(box.tx_burst(addressed({&packet, &packet}, {&to_earlier, &to_later})) == 2);
  CHECK((later.receive() == packet.on_wire()));
  CHECK(later.receive().empty());
  CHECK(box.counters().get(PortCounter::kSendFailures) == 1);
}

TEST_CASE("a worker that breaks its ring loses its lane, and other lanes go on") {
  ShmPort box = open_box();
  LaneWorker other(box, 2);
  LaneBurst burst;
  for (const uint64_t written : {UINT64_MAX, kRingBytesMin, kRingBytesMin + 64, uint64_t{64}}) {
    LaneWorker hostile(box, 1);
    const uint64_t broken = box.counters().get(PortCounter::kLanesBroken);
    hostile.own.head().written = written;  // the ring has zeros only
    hostile.ring();
    const LanePayload packet(written, 1408);
    other.send(packet);
    const TakenPackets taken = take_packets(box, 1);
    REQUIRE(taken.bytes.size() == 1);
    CHECK((taken.bytes[0] == packet.on_wire()));
    while (box.rx_burst(burst) > 0) continue;
    CHECK(box.counters().get(PortCounter::kLanesBroken) == broken + 1);
    CHECK(hostile.sees_the_end());
    CHECK_FALSE(other.sees_the_end());
    // A broken lane does not keep the port awake.
    hostile.own.head().written.fetch_add(64);
    CHECK_FALSE(becomes_readable(box.event_fd(), 0));
    CHECK(box.rx_burst(burst) == 0);
    CHECK(box.close(1));
  }
}

TEST_CASE("a worker that claims to have read too much loses its lane") {
  ShmPort box = open_box();
  LaneWorker hostile(box, 1);
  const Endpoint to_hostile = endpoint_of(box, hostile);
  hostile.own.head().released = uint64_t{1} << 40;
  const LanePayload large(1, 30'000);
  LaneBurst burst;
  for (int count = 0; count < 20; ++count) {
    REQUIRE(box.tx_burst(addressed({&large}, {&to_hostile})) == 1);
    CHECK(box.rx_burst(burst) == 0);
  }
  CHECK(box.counters().get(PortCounter::kLanesBroken) == 1);
  CHECK(hostile.sees_the_end());
}

TEST_CASE("a hello that the port refuses leaves the connection to the caller") {
  ShmPort box = open_box();
  const OwnSegment segment = std::move(*OwnSegment::make(kRingBytesMin));
  SeqpacketPair sockets;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{100}, kRingBytesMin + 64, kRingBytesMin / 2,
                               2 * kRingBytesMax, 2 * kRingBytesMin}) {
    ReceivedHello hello = hello_with(segment);
    hello.hello.ring_bytes = bytes;
    const Status attached = box.attach(1, {.spi = kLaneSpi}, hello, sockets.box);
    REQUIRE_FALSE(attached.ok());
    CHECK(attached.error().code == ErrorCode::kInvalidArgument);
    CHECK(sockets.box.ok());
  }
  CHECK(box.counters().get(PortCounter::kLanes) == 0);
}

TEST_CASE("a hello that finds no place for its lane leaves the connection to the caller") {
  ShmPort box = open_box();
  const OwnSegment segment = std::move(*OwnSegment::make(kRingBytesMin));
  for (uint64_t owner = 0; owner < LaneSet::kLanesMax; ++owner) {
    SeqpacketPair sockets;
    REQUIRE(box.attach(owner, {.spi = kLaneSpi}, hello_with(segment), sockets.box).ok());
  }
  SeqpacketPair sockets;
  const Status attached = box.attach(999, {.spi = kLaneSpi}, hello_with(segment), sockets.box);
  REQUIRE_FALSE(attached.ok());
  CHECK(attached.error().code == ErrorCode::kResourceExhausted);
  CHECK(sockets.box.ok());  // so that the worker can be told
}

}  // namespace pbox::nic
