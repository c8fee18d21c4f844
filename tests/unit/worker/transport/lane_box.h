// A worker's transport and a small box in one process. The box works when the transport lets the
// opener's caller run, so no test needs a thread.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "nic/shm/port.h"
#include "nic/wire/control.pb.h"
#include "worker/transport/shared_heap.h"
#include "worker/transport/shm_transport.h"

namespace pbox::worker {

inline constexpr uint32_t kShmSpi = 0x700;  // pipeline 0's; later pipelines have the next numbers
inline constexpr int kBellMs = 5000;

inline std::string lane_socket_name() {
  static int number = 0;
  return "pbox-test-shm-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

inline nic::ShmPort shm_port() {
  auto socket = nic::SocketPort::open({.local = *nic::parse_endpoint("127.0.0.1", 0)});
  REQUIRE(socket.ok());
  return nic::ShmPort(std::move(*socket));
}

inline bool is_readable(int fd, int timeout_ms) {
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, timeout_ms) == 1 && (wait.revents & POLLIN) != 0;
}

// Answers the transport's request, accepts its connections and makes its lanes.
class LaneBox {
 public:
  explicit LaneBox(uint32_t pipelines) : name_(lane_socket_name()) {
    auto listening = nic::listen_for_lanes(name_);
    REQUIRE(listening.ok());
    listener_ = std::move(*listening);
    token_.fill(std::byte{0x5a});
    answer.mutable_shared_memory()->set_socket(name_);
    answer.mutable_shared_memory()->set_token(token_.data(), token_.size());
    for (uint32_t index = 0; index < pipelines; ++index) ports.push_back(shm_port());
    session.pipelines.resize(pipelines);
    for (auto& pipeline : session.pipelines) pipeline.box = *nic::parse_endpoint("127.0.0.1", 9);
    session.fragment_bytes = 8192;
  }

  Status open(ShmTransport& transport, uint64_t patience_ns = 10 * kNanosPerSecond) {
    return transport.open(session, {.deadline_ns = monotonic_ns() + patience_ns,
                                    .keep_alive = [&] { return serve(transport); },
                                    .heap = heap});
  }
  Status serve(ShmTransport& transport) {
    proto::QueuePairs request;
    if (transport.take_request(request)) {
      ++requests;
      CHECK(request.has_shared_memory());
      CHECK(request.pairs_size() == 0);
      CHECK_FALSE(transport.take_request(request));
      if (answers) transport.on_answer(answer);
    }
    if (!accepts) return status;
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) connections.emplace_back(fd);
    if (connections.empty() || !connections.back().ok()) return status;
    auto received = nic::receive_hello(connections.back().get());
    REQUIRE(received.ok());
    if (*received) take(**received, connections.back());
    return status;
  }
  void stop_listening() { listener_ = Descriptor(); }

  std::vector<nic::ShmPort> ports;
  SessionSpec session;
  proto::QueuePairs answer;
  bool answers = true;
  bool accepts = true;
  Status status = ok_status();  // keep_alive returns it
  // If set, it answers a hello instead of this box, and no lane is made.
  std::function<void(const nic::ReceivedHello&, Descriptor&)> take_instead;
  const SharedHeap* heap = nullptr;     // the worker's
  uint64_t memory_bytes_max = 1 << 20;  // bound for the worker's memory
  const NumaArena* results = nullptr;   // the memory that the box shows
  int requests = 0;
  std::vector<uint32_t> pipelines_asked;
  std::vector<Descriptor> connections;

 private:
  void take(const nic::ReceivedHello& received, Descriptor& connection) {
    CHECK(received.hello.version == nic::LaneHello::kVersion);
    CHECK((received.hello.token == token_));
    const uint32_t pipeline = received.hello.pipeline;
    pipelines_asked.push_back(pipeline);
    if (take_instead) return take_instead(received, connection);
    REQUIRE(pipeline < ports.size());
    const nic::LaneGrant grant{
        .spi = kShmSpi + pipeline, .memory_bytes_max = memory_bytes_max, .results = results};
    REQUIRE(ports[pipeline].attach(1, grant, received, connection).ok());
  }

  std::string name_;
  Descriptor listener_;
  nic::LaneToken token_{};
};

// A packet of some bytes, all of which follow from its number.
struct ShmPacket {
  std::vector<std::byte> payload;
  nic::TxPacket packet;

  ShmPacket(uint64_t number, uint32_t payload_bytes, uint32_t spi, const nic::Endpoint* to = {})
      : payload(payload_bytes, static_cast<std::byte>(number)) {
    packet.to = to;
    packet.header.set_type(wire::PacketType::kPush);
    packet.header.packet_number = number;
    packet.header.spi = spi;
    packet.header.payload_bytes = static_cast<uint16_t>(payload_bytes);
    packet.payload = payload.data();
    packet.tag.fill(static_cast<std::byte>(number + 1));
  }
  bool is_same(const nic::RxPacket& received) const {
    wire::Parsed parsed;
    return nic::parse(received, parsed) == wire::Reject::kNone &&
           parsed.header.payload_bytes == payload.size() &&
           std::memcmp(&parsed.header, &packet.header, limits::kHeaderBytes) == 0 &&
           std::equal(payload.begin(), payload.end(), parsed.payload) &&
           std::memcmp(parsed.tag, packet.tag.data(), limits::kTagBytes) == 0;
  }
};

using ShmBurst = std::array<nic::RxPacket, limits::kBurstPackets>;

// Sends a packet to the box. Returns the address from which the box received it.
inline nic::Endpoint introduce(ShmTransport& transport, uint32_t lane, LaneBox& box) {
  const ShmPacket packet(7, 1408, kShmSpi + lane);
  REQUIRE(transport.tx_burst(lane, std::span(&packet.packet, 1)) == 1);
  ShmBurst burst;
  REQUIRE(box.ports[lane].rx_burst(burst) == 1);
  CHECK(packet.is_same(burst[0]));
  return burst[0].from;
}

inline void send_from_box(nic::ShmPort& port, const ShmPacket& packet) {
  REQUIRE(port.tx_burst(std::span(&packet.packet, 1)) == 1);
}

}  // namespace pbox::worker
