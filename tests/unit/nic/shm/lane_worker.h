// A box's port on loopback, and workers in the same process that attach over socket pairs.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "nic/shm/port.h"

namespace pbox::nic {

inline constexpr uint32_t kLaneSpi = 0x51;
inline constexpr int kWakeMs = 5000;

inline ShmPort open_box() {
  auto socket = SocketPort::open({.local = *parse_endpoint("127.0.0.1", 0)});
  REQUIRE(socket.ok());
  return ShmPort(std::move(*socket));
}

inline SocketPort open_udp_worker(const ShmPort& box) {
  auto port = SocketPort::open({.local = *parse_endpoint("127.0.0.1", 0), .remote = box.local()});
  REQUIRE(port.ok());
  return std::move(*port);
}

struct SeqpacketPair {
  Descriptor box, worker;

  SeqpacketPair() {
    std::array<int, 2> sockets{-1, -1};
    const int type = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
    REQUIRE(socketpair(AF_UNIX, type, 0, sockets.data()) == 0);
    box = Descriptor(sockets[0]);
    worker = Descriptor(sockets[1]);
  }
};

inline ReceivedHello hello_with(const OwnSegment& segment) {
  return {{.ring_bytes = segment.ring_bytes()}, Descriptor(dup(segment.file().get()))};
}

// A numbered packet and its payload.
struct LanePayload {
  std::vector<std::byte> bytes;
  TxPacket packet;

  LanePayload(uint64_t number, uint32_t payload_bytes, uint32_t spi = kLaneSpi, uint8_t flags = 0)
      : bytes(payload_bytes) {
    for (size_t at = 0; at < bytes.size(); ++at) {
      bytes[at] = static_cast<std::byte>(at * 13 + at / 256 + number);
    }
    packet.header.packet_number = number;
    packet.header.spi = spi;
    packet.header.flags = flags;
    packet.header.payload_bytes = static_cast<uint16_t>(payload_bytes);
    packet.payload = bytes.data();
    packet.tag.fill(static_cast<std::byte>(number));
  }
  std::vector<std::byte> on_wire() const {
    std::vector<std::byte> all(limits::kPacketOverheadBytes + bytes.size());
    std::memcpy(all.data(), &packet.header, limits::kHeaderBytes);
    std::copy(bytes.begin(), bytes.end(), all.begin() + limits::kHeaderBytes);
    std::copy(packet.tag.begin(), packet.tag.end(), all.end() - limits::kTagBytes);
    return all;
  }
};

inline std::vector<std::byte> bytes_of(const RxPacket& packet) {
  std::vector<std::byte> all(packet.data, packet.data + limits::kHeaderBytes);
  if (packet.payload == nullptr) {
    all.assign(packet.data, packet.data + packet.bytes);
    return all;
  }
  REQUIRE(packet.tag != nullptr);
  all.insert(all.end(), packet.payload,
             packet.payload + packet.bytes - limits::kPacketOverheadBytes);
  all.insert(all.end(), packet.tag, packet.tag + limits::kTagBytes);
  return all;
}

// A worker's end of a lane. It can do all that a worker's process could.
class LaneWorker {
 public:
  LaneWorker(ShmPort& box, uint64_t owner, uint32_t spi = kLaneSpi)
      : LaneWorker(box, owner, LaneGrant{.spi = spi}) {}
  // `memory`: a file of `memory_bytes` bytes that the worker shows the box; null if it shows none.
  LaneWorker(ShmPort& box, uint64_t owner, const LaneGrant& grant,
             const Descriptor* memory = nullptr, uint64_t memory_bytes = 0)
      : LaneWorker(box, owner, grant, std::move(*OwnSegment::make(kRingBytesMin)), SeqpacketPair(),
                   memory, memory_bytes) {}

  void send(const LanePayload& payload) {
    REQUIRE(writer.put(payload.packet));
    writer.publish();
    if (sleep.must_wake()) ring();
  }
  void ring() const {
    const uint64_t one = 1;
    REQUIRE(write(bell.get(), &one, sizeof(one)) == sizeof(one));
  }
  // Returns the next packet from the box; empty if there is none.
  std::vector<std::byte> receive() {
    const auto packet = reader.next();
    if (!packet) return {};
    RxPacket received;
    received.data = packet->header;
    received.bytes = packet->bytes;
    received.payload =
        packet->payload != nullptr ? packet->payload : results.data() + packet->offset;
    received.tag = packet->tag;
    was_in_place = packet->payload == nullptr;
    std::vector<std::byte> bytes = bytes_of(received);
    reader.release();
    return bytes;
  }
  bool sees_the_end() const {
    char byte = 0;
    for (;;) {
      const ssize_t count = recv(connection.get(), &byte, sizeof(byte), MSG_DONTWAIT);
      if (count <= 0) return count == 0;
    }
  }

 private:
  LaneWorker(ShmPort& port, uint64_t owner, const LaneGrant& grant, OwnSegment segment,
             SeqpacketPair sockets, const Descriptor* memory, uint64_t memory_bytes)
      : own(std::move(segment)),
        connection(std::move(sockets.worker)),
        box(attach(port, owner, grant, sockets.box, memory, memory_bytes)),
        writer(own.head(), box.head(), own.ring(), own.ring_bytes()),
        reader(own.head(), box.head(), box.ring(), own.ring_bytes()),
        sleep(own.head(), box.head()) {}

  OtherSegment attach(ShmPort& port, uint64_t owner, const LaneGrant& grant, Descriptor& at_box,
                      const Descriptor* memory, uint64_t memory_bytes) {
    ReceivedHello hello = hello_with(own);
    hello.hello.memory_bytes = memory_bytes;
    if (memory != nullptr) hello.memory = Descriptor(dup(memory->get()));
    const Status attached = port.attach(owner, grant, hello, at_box);
    REQUIRE(attached.ok());
    CHECK_FALSE(at_box.ok());
    auto answer = receive_answer(connection.get());
    REQUIRE(answer.ok());
    REQUIRE(answer->has_value());
    REQUIRE((*answer)->answer.refusal[0] == 0);
    bell = std::move((*answer)->bell);
    is_memory_read = (*answer)->answer.reads_memory != 0;
    if (const uint64_t bytes = (*answer)->answer.memory_bytes; bytes > 0) {
      auto shown = map_memory_file((*answer)->memory, bytes, "the box's memory", true);
      REQUIRE(shown.ok());
      results = std::move(*shown);
      results_file = std::move((*answer)->memory);
    }
    auto mapped = OtherSegment::map((*answer)->segment, own.ring_bytes());
    REQUIRE(mapped.ok());
    return std::move(*mapped);
  }

 public:
  OwnSegment own;
  Descriptor connection, bell;
  Mapping results;              // the box's memory, if it shows some
  Descriptor results_file;      // the file of that memory
  bool is_memory_read = false;  // by the box
  bool was_in_place = false;    // the payload of the newest packet received
  OtherSegment box;
  RingWriter writer;
  RingReader reader;
  RingSleep sleep;
};

using LaneBurst = std::array<RxPacket, limits::kBurstPackets>;

struct TakenPackets {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Endpoint> from;
};

// Receives bursts until `count` packets have arrived. Only UDP needs the wait: lanes deliver at
// once.
inline TakenPackets take_packets(ShmPort& box, size_t count) {
  TakenPackets taken;
  LaneBurst burst;
  for (int turn = 0; turn < 200 && taken.bytes.size() < count; ++turn) {
    const size_t got = box.rx_burst(burst);
    for (size_t index = 0; index < got; ++index) {
      taken.bytes.push_back(bytes_of(burst[index]));
      taken.from.push_back(burst[index].from);
    }
    pollfd wait{box.event_fd(), POLLIN, 0};
    if (got == 0) poll(&wait, 1, 100);
  }
  return taken;
}

inline Endpoint endpoint_of(ShmPort& box, LaneWorker& worker, uint32_t spi = kLaneSpi) {
  worker.send(LanePayload(0, 8, spi));
  const TakenPackets taken = take_packets(box, 1);
  REQUIRE(taken.from.size() == 1);
  return taken.from[0];
}

inline std::vector<TxPacket> addressed(const std::vector<const LanePayload*>& payloads,
                                       const std::vector<const Endpoint*>& to) {
  std::vector<TxPacket> packets;
  for (size_t index = 0; index < payloads.size(); ++index) {
    packets.push_back(payloads[index]->packet);
    packets.back().to = to[index];
  }
  return packets;
}

inline bool becomes_readable(int fd, int timeout_ms) {
  pollfd wait{fd, POLLIN, 0};
  return poll(&wait, 1, timeout_ms) == 1 && (wait.revents & POLLIN) != 0;
}

}  // namespace pbox::nic
