// Sockets that find their queues, against a box in the same thread. The box receives what its NIC
// leads to the right pipeline, and answers whenever the transport keeps the control connection
// alive.
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <set>

#include "base/clock.h"
#include "worker/transport/socket_transport.h"

namespace pbox::worker {
namespace {

using Catch::Contains;
using nic::QueueAffinity;

constexpr uint32_t kPipelines = 4;
constexpr uint32_t kFirstSpi = 0x3001;

class HashingBox {
 public:
  explicit HashingBox(QueueAffinity affinity) {
    nic::RssTable table;
    for (uint8_t byte = 0; byte < 40; ++byte) {
      table.key.push_back(static_cast<uint8_t>(0x9d * byte + 0x35));
    }
    for (uint16_t entry = 0; entry < 128; ++entry) table.queues.push_back(entry % kPipelines);
    rss_ = std::make_shared<const nic::RssTable>(std::move(table));
    session_.fragment_bytes = 1024;
    session_.probes_path = false;  // HashingBox does not answer these probes
    session_.chunk_bytes = 4096;
    session_.chunk_pipeline = {0, 1, 2, 3};
    for (uint32_t index = 0; index < kPipelines; ++index) {
      auto port = nic::SocketPort::open({.local = *nic::parse_endpoint("127.0.0.1", 0)});
      REQUIRE(port.ok());
      session_.pipelines.push_back(
          {kFirstSpi + index, 65536, port->local(), affinity, index, rss_});
      ports_.push_back(std::move(*port));
    }
  }

  SessionSpec& session() { return session_; }
  // Indexed by pipeline: the source ports of packets on the right queue, and the numbers of all
  // packets.
  std::vector<std::set<uint16_t>> right_sources{kPipelines};
  std::vector<std::set<uint64_t>> numbers{kPipelines};
  uint64_t next_number(uint32_t lane) const { return session_.pipelines[lane].seal->next_number(); }
  uint64_t heard = 0, misdirected = 0;
  std::set<uint32_t> deaf;    // pipelines that do not answer
  uint64_t lost_answers = 0;  // how many packets on the right queue will still get no answer

  Status serve() {
    for (uint32_t index = 0; index < kPipelines; ++index) {
      std::array<nic::RxPacket, 32> burst;
      for (size_t count = ports_[index].rx_burst(burst); count > 0;
           count = ports_[index].rx_burst(burst)) {
        for (size_t at = 0; at < count; ++at) hear(index, burst[at]);
      }
    }
    return ok_status();
  }

  Opening opening(uint64_t limit_ns = 20 * kNanosPerSecond) {
    return {monotonic_ns() + limit_ns, [this] { return serve(); }};
  }

 private:
  void hear(uint32_t index, const nic::RxPacket& packet) {
    wire::Parsed parsed;
    REQUIRE(wire::parse(packet.data, packet.bytes, parsed) == wire::Reject::kNone);
    ++heard;
    REQUIRE(numbers[index].insert(parsed.header.packet_number).second);
    if (deaf.contains(index)) return;
    if (nic::rss_queue(*rss_, packet.from, session_.pipelines[index].box) != index) {
      ++misdirected;
      return;
    }
    right_sources[index].insert(packet.from.port);
    if (lost_answers > 0) {
      --lost_answers;
      return;
    }
    const wire::StatusPayload status;
    nic::TxPacket answer;
    answer.to = &packet.from;
    answer.header = parsed.header;
    answer.header.set_type(wire::PacketType::kStatus);
    answer.header.spi |= wire::kSpiToWorker;
    answer.header.payload_bytes = sizeof(status);
    answer.payload = reinterpret_cast<const std::byte*>(&status);
    answer.tag = wire::make_tag(session_.tag, answer.header, answer.payload);
    REQUIRE(ports_[index].tx_burst({&answer, 1}) == 1);
  }

  std::shared_ptr<const nic::RssTable> rss_;
  SessionSpec session_;
  std::vector<nic::SocketPort> ports_;
};

// Sends one packet from each lane, as the worker's exchange would send it next.
void send_from_each_lane(SocketTransport& transport, HashingBox& box) {
  for (uint32_t lane = 0; lane < kPipelines; ++lane) {
    nic::TxPacket packet;
    packet.header.set_type(wire::PacketType::kPush);
    packet.header.spi = box.session().pipelines[lane].spi;
    box.session().pipelines[lane].seal->seal(box.session().tag, packet, nullptr);
    REQUIRE(transport.tx_burst(lane, {&packet, 1}) == 1);
  }
}

}  // namespace

TEST_CASE("a trial ends with a socket per pipeline whose packets reach it, and unused numbers") {
  for (const QueueAffinity affinity : {QueueAffinity::kSourceTrial, QueueAffinity::kSenderQueue}) {
    HashingBox box(affinity);
    box.lost_answers = 5;
    SocketTransport transport;
    REQUIRE(transport.open(box.session(), box.opening()).ok());
    CHECK(box.misdirected > 0);  // otherwise nothing was tried
    static_cast<void>(box.serve());
    const uint64_t misdirected = box.misdirected;
    const uint64_t heard = box.heard;
    send_from_each_lane(transport, box);
    static_cast<void>(box.serve());
    CHECK(box.heard == heard + kPipelines);
    CHECK(box.misdirected == misdirected);
    for (uint32_t lane = 0; lane < kPipelines; ++lane) {
      CHECK(*box.numbers[lane].rbegin() + 1 == box.next_number(lane));
      CHECK(*box.numbers[lane].begin() == 1);
      CHECK(transport.event_fd(lane) >= 0);
    }
  }
}

TEST_CASE("nothing is tried if the destination port alone decides the queue") {
  for (const QueueAffinity affinity : {QueueAffinity::kUdpPort, QueueAffinity::kDispatch}) {
    HashingBox box(affinity);
    SocketTransport transport;
    REQUIRE(transport.open(box.session(), box.opening()).ok());
    static_cast<void>(box.serve());
    CHECK(box.heard == 0);
    CHECK(box.next_number(kPipelines - 1) == 1);
  }
}

TEST_CASE("a published RSS hash is followed without a trial") {
  HashingBox box(QueueAffinity::kRssHash);
  SocketTransport transport;
  REQUIRE(transport.open(box.session(), box.opening()).ok());
  static_cast<void>(box.serve());
  CHECK(box.heard == 0);
  send_from_each_lane(transport, box);
  static_cast<void>(box.serve());
  CHECK(box.heard == kPipelines);
  CHECK(box.misdirected == 0);
}

TEST_CASE("a source port that another worker of the host uses is skipped") {
  HashingBox box(QueueAffinity::kRssHash);
  std::vector<std::unique_ptr<SocketTransport>> transports;
  for (int worker = 0; worker < 8; ++worker) {
    transports.push_back(std::make_unique<SocketTransport>());
    REQUIRE(transports.back()->open(box.session(), box.opening()).ok());
    send_from_each_lane(*transports.back(), box);
    static_cast<void>(box.serve());
    for (auto& numbers : box.numbers) numbers.clear();  // each one is a session of its own
  }
  for (const auto& sources : box.right_sources) CHECK(sources.size() == 8);
}

TEST_CASE("a queue that is missing in the box's RSS table is an error that names it") {
  HashingBox box(QueueAffinity::kRssHash);
  box.session().pipelines[2].queue = 9;
  SocketTransport transport;
  const Status opened = transport.open(box.session(), box.opening());
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().code == ErrorCode::kUnavailable);
  CHECK_THAT(opened.error().message, Contains("pipeline 2") && Contains("queue 9") &&
                                         Contains(to_string(box.session().pipelines[2].box)));
}

TEST_CASE("a pipeline that does not answer is named, with the ports tried and the remedy") {
  HashingBox box(QueueAffinity::kSourceTrial);
  box.deaf = {2};
  SocketTransport transport;
  const Status opened = transport.open(box.session(), box.opening(400 * kNanosPerMilli));
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().code == ErrorCode::kTimeout);
  CHECK_THAT(opened.error().message,
             Contains("pipeline 2") && Contains(" source ports within") && Contains("firewall"));
  CHECK(box.numbers[2].size() >= 3 * 16);  // four ports per pipeline of the box, probed three times
}

TEST_CASE("a pipeline without chunks is not probed") {
  HashingBox box(QueueAffinity::kSourceTrial);
  box.session().chunk_pipeline = {0, 1, 1, 3};
  box.deaf = {2};
  SocketTransport transport;
  REQUIRE(transport.open(box.session(), box.opening()).ok());
  static_cast<void>(box.serve());
  CHECK(box.numbers[2].empty());
  CHECK(box.next_number(2) == 1);
}

TEST_CASE("a trial that follows another one in the same session repeats no packet number") {
  HashingBox box(QueueAffinity::kSourceTrial);
  box.deaf = {0, 1, 2, 3};
  SocketTransport first;
  REQUIRE_FALSE(first.open(box.session(), box.opening(0)).ok());
  static_cast<void>(box.serve());
  REQUIRE_FALSE(box.numbers[0].empty());
  box.deaf = {};
  SocketTransport second;
  REQUIRE(second.open(box.session(), box.opening()).ok());
  send_from_each_lane(second, box);
  static_cast<void>(box.serve());  // requires that no number is heard twice
  for (uint32_t lane = 0; lane < kPipelines; ++lane) {
    CHECK(*box.numbers[lane].rbegin() + 1 == box.next_number(lane));
  }
}

TEST_CASE("a trial ends with the control connection's error") {
  HashingBox box(QueueAffinity::kSourceTrial);
  SocketTransport transport;
  Opening opening = box.opening();
  int calls = 0;
  opening.keep_alive = [&]() -> Status {
    if (++calls < 3) return ok_status();
    return Error{ErrorCode::kWorkerLost, "rank 1 is lost"};
  };
  const Status opened = transport.open(box.session(), opening);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().code == ErrorCode::kWorkerLost);
}

}  // namespace pbox::worker
