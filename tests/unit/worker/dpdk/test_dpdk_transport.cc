// A worker's poll-mode transport at one end of a cable, and a box with one queue per pipeline at
// the other end, in the same thread. The box receives and answers whenever the transport keeps the
// control connection alive.
#include <catch2/catch.hpp>
#include <deque>
#include <set>

#include "base/clock.h"
#include "nic/dpdk/eal.h"
#include "tests/unit/nic/dpdk/cable.h"
#include "worker/dpdk/transport.h"

namespace pbox::worker {
namespace {

using Catch::Contains;
using nic::QueueAffinity;
using test::Cable;

constexpr uint32_t kPipelines = 4;
constexpr uint32_t kFirstSpi = 0x3001;

std::shared_ptr<const nic::RssTable> some_table() {
  auto table = std::make_shared<nic::RssTable>();
  for (uint8_t byte = 0; byte < 40; ++byte) {
    table->key.push_back(static_cast<uint8_t>(0x9d * byte + 0x35));
  }
  for (uint16_t entry = 0; entry < 128; ++entry) table->queues.push_back(entry % kPipelines);
  return table;
}

class CableBox {
 public:
  explicit CableBox(QueueAffinity affinity)
      : cable(kPipelines),
        interface_(
            test::open_interface(test::options_for(cable.left(), "10.7.0.1/24", kPipelines))) {
    session.fragment_bytes = 1024;
    session.chunk_bytes = 4096;
    session.chunk_pipeline = {0, 1, 3};  // pipeline 2 owns none
    const auto table = some_table();
    for (uint32_t index = 0; index < kPipelines; ++index) {
      ports_.emplace_back(*interface_, index);
      session.pipelines.push_back(
          {kFirstSpi + index, 65536, ports_[index].local(), affinity, index, table});
    }
  }

  Status serve() {
    std::array<nic::RxPacket, limits::kBurstPackets> burst;
    for (int turn = 0; turn < 2; ++turn) {  // an answer leaves with the next burst
      for (uint32_t index = 0; index < kPipelines; ++index) {
        const size_t count = ports_[index].rx_burst(burst);
        for (size_t at = 0; at < count; ++at) hear(index, burst[at]);
      }
    }
    return ok_status();
  }
  Opening opening(uint64_t limit_ns = 20 * kNanosPerSecond) {
    return {monotonic_ns() + limit_ns, [this] { return serve(); }};
  }

  nic::DpdkThread thread;
  Cable cable;
  SessionSpec session;
  std::set<uint32_t> deaf;  // pipelines that do not answer
  // Indexed by pipeline: the source ports of packets, and the highest packet number.
  std::vector<std::set<uint16_t>> sources{kPipelines};
  std::vector<uint64_t> last_numbers = std::vector<uint64_t>(kPipelines);
  uint64_t misdirected = 0;

 private:
  void hear(uint32_t index, const nic::RxPacket& packet) {
    wire::Parsed parsed;
    REQUIRE(wire::parse(packet.data, packet.bytes, parsed) == wire::Reject::kNone);
    if (parsed.header.spi != kFirstSpi + index) ++misdirected;
    CHECK(parsed.header.packet_number > last_numbers[index]);
    last_numbers[index] = parsed.header.packet_number;
    sources[index].insert(packet.from.port);
    if (deaf.contains(index)) return;
    const wire::StatusPayload status;
    nic::TxPacket answer;
    answer.to = &packet.from;
    answer.header = parsed.header;
    answer.header.set_type(wire::PacketType::kStatus);
    answer.header.spi |= wire::kSpiToWorker;
    answer.header.payload_bytes = sizeof(status);
    answer.payload = reinterpret_cast<const std::byte*>(&status);
    answer.tag = wire::make_tag(session.tag, answer.header, answer.payload);
    REQUIRE(ports_[index].tx_burst({&answer, 1}) == 1);
  }

  std::unique_ptr<nic::DpdkInterface> interface_;
  std::deque<nic::DpdkPort> ports_;
};

DpdkPortSettings settings_for(const std::string& device) {
  return *parse_dpdk_port(device + " 10.7.0.2/24 no_huge mtu=9000");
}

}  // namespace

TEST_CASE("each lane leads to its pipeline's queue, and every pipeline with a chunk was probed") {
  CableBox box(QueueAffinity::kSenderQueue);
  DpdkTransport transport(settings_for(box.cable.right()));
  CHECK(*transport.path_mtu({}) == 9000);
  const Status opened = transport.open(box.session, box.opening());
  if (!opened) FAIL(opened.error().message);
  CHECK(box.misdirected == 0);
  std::set<uint16_t> sources;
  for (const uint32_t index : {0u, 1u, 3u}) {
    REQUIRE(box.sources[index].size() == 1);
    sources.insert(*box.sources[index].begin());
    CHECK(box.session.pipelines[index].seal->next_number() > box.last_numbers[index]);
  }
  CHECK(sources.size() == 3);
  CHECK(box.sources[2].empty());
  CHECK(transport.event_fd(0) == -1);
  CHECK(transport.receivable_bytes(0) > 0);
}

TEST_CASE("lanes have source ports that the box's NIC hashes to their pipeline's queues") {
  CableBox box(QueueAffinity::kRssHash);
  DpdkTransport transport(settings_for(box.cable.right()));
  REQUIRE(transport.open(box.session, box.opening()));
  auto worker = *nic::parse_endpoint("10.7.0.2", 0);
  for (const uint32_t index : {0u, 1u, 3u}) {
    REQUIRE(box.sources[index].size() == 1);
    worker.port = *box.sources[index].begin();
    const auto& pipeline = box.session.pipelines[index];
    CHECK(nic::rss_queue(*pipeline.rss, worker, pipeline.box) == index);
  }
}

TEST_CASE("the device is free again after its transport") {
  CableBox box(QueueAffinity::kSenderQueue);
  for (int turn = 0; turn < 2; ++turn) {
    DpdkTransport transport(settings_for("net_null80"));
    const Status opened = transport.open(box.session, box.opening(20 * kNanosPerMilli));
    REQUIRE_FALSE(opened);
    CHECK_THAT(opened.error().message, Contains("has not answered on device net_null80"));
  }
}

TEST_CASE("a pipeline that does not answer ends the join in time, by name") {
  CableBox box(QueueAffinity::kSenderQueue);
  box.deaf = {1};
  DpdkTransport transport(settings_for(box.cable.right()));
  const Status opened = transport.open(box.session, box.opening(3 * kNanosPerSecond));
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == ErrorCode::kTimeout);
  CHECK_THAT(opened.error().message,
             Contains("pipeline 1 of the box (10.7.0.1:9543)") && Contains("vlan="));
}

TEST_CASE("a box that is lost while its pipelines are probed ends the join with its error") {
  CableBox box(QueueAffinity::kSenderQueue);
  DpdkTransport transport(settings_for(box.cable.right()));
  const Opening opening{monotonic_ns() + kNanosPerSecond, [] {
                          return Status(Error{ErrorCode::kBoxLost, "the box closed"});
                        }};
  const Status opened = transport.open(box.session, opening);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().message == "the box closed");
}

TEST_CASE("boxes that the port cannot reach are refused before a packet leaves") {
  CableBox box(QueueAffinity::kSenderQueue);
  DpdkTransport transport(settings_for(box.cable.right()));
  const auto refusal = [&] {
    const Status opened = transport.open(box.session, box.opening());
    return opened ? "opened" : opened.error().message;
  };
  SECTION("on another network") {
    box.session.pipelines[3].box = *nic::parse_endpoint("10.8.0.1", 9545);
    CHECK_THAT(refusal(), Contains("pipeline 3") && Contains("gateway="));
  }
  SECTION("the other address family") {
    box.session.pipelines[0].box = *nic::parse_endpoint("fd00::1", 9542);
    CHECK_THAT(refusal(), Contains("pipeline 0") && Contains("in none of the port's networks"));
  }
  SECTION("with two groups of devices whose queues the sender chooses") {
    box.session.pipelines[2].queue = 0;
    CHECK_THAT(refusal(), Contains("pipeline 2") && Contains("on queue 0"));
  }
  SECTION("behind a NIC with an unknown hash") {
    box.session.pipelines[1].affinity = QueueAffinity::kSourceTrial;
    CHECK_THAT(refusal(), Contains("pipeline 1") && Contains("'socket'"));
  }
  CHECK(box.last_numbers == std::vector<uint64_t>(kPipelines));
}

}  // namespace pbox::worker
