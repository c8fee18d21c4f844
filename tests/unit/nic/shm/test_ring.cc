// Both ends of a ring in one process: the reader has the writer's memory mapped read-only, as it
// would in another process.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "nic/shm/lane.h"
#include "nic/shm/ring.h"
#include "nic/shm/segment.h"
#include "tests/unit/nic/shm/segments.h"

namespace pbox::nic {
namespace {

// The memory of two ends, of which one writes and the other reads.
struct RingMemory {
  OwnSegment writing = small_segment();
  OwnSegment reading = small_segment();
  OtherSegment written = as_seen(writing);  // the reader's view
  OtherSegment read = as_seen(reading);     // the writer's view

  RingWriter writer() { return {writing.head(), read.head(), writing.ring(), kSmallRing}; }
  RingReader reader() { return {reading.head(), written.head(), written.ring(), kSmallRing}; }
  bool holds(const RingReader::Packet& packet) const {
    const auto in_ring = [this](const std::byte* at, size_t bytes) {
      return at >= written.ring() && at + bytes <= written.ring() + 2 * kSmallRing;
    };
    return packet.bytes <= limits::kPacketBytesMax &&
           in_ring(packet.header, limits::kHeaderBytes) && in_ring(packet.tag, limits::kTagBytes) &&
           (packet.payload == nullptr ||
            in_ring(packet.payload, packet.bytes - limits::kPacketOverheadBytes));
  }
};

// Packets whose header, payload and tag all follow from their number.
class NumberedPackets {
 public:
  NumberedPackets() : noise_(limits::kFragmentBytesMax + kOffsets) {
    Rng rng(1);
    for (std::byte& each : noise_) each = static_cast<std::byte>(rng.next());
  }

  TxPacket make(uint64_t number, uint32_t bytes) const {
    TxPacket packet;
    packet.header.packet_number = number;
    packet.header.chunk = static_cast<uint32_t>(number * 7);
    packet.header.payload_bytes = static_cast<uint16_t>(bytes - limits::kPacketOverheadBytes);
    packet.payload = noise_.data() + number % kOffsets;
    packet.tag.fill(static_cast<std::byte>(number));
    return packet;
  }
  bool is_whole(const RingReader::Packet& packet, uint64_t number, uint32_t bytes) const {
    const TxPacket expected = make(number, bytes);
    return packet.bytes == bytes && packet.payload != nullptr &&
           std::memcmp(packet.header, &expected.header, limits::kHeaderBytes) == 0 &&
           std::memcmp(packet.payload, expected.payload, expected.header.payload_bytes) == 0 &&
           std::memcmp(packet.tag, expected.tag.data(), limits::kTagBytes) == 0;
  }

 private:
  static constexpr uint64_t kOffsets = 4096;
  std::vector<std::byte> noise_;
};

// This many consecutive packets have every size once, in mixed order.
constexpr uint64_t kPacketSizes = limits::kFragmentBytesMax + 1;
uint32_t mixed_size(uint64_t number) {
  return limits::kPacketOverheadBytes + static_cast<uint32_t>(number * 7919 % kPacketSizes);
}

void store_length(const OwnSegment& segment, uint64_t at, uint32_t bytes) {
  std::memcpy(segment.ring() + at, &bytes, sizeof(bytes));
}

// A hostile writer, which may write anything to its memory, and the reader of that memory.
class HostileWriter {
 public:
  HostileWriter() { restart(); }

  // Takes one step, honest or not.
  void act(Rng& rng) {
    std::atomic<uint64_t>& written = memory_.writing.head().written;
    const uint64_t line = rng.below(kSmallRing / kCacheLineBytes) * kCacheLineBytes;
    switch (rng.below(9)) {
      case 0: store_length(memory_.writing, line, static_cast<uint32_t>(rng.next())); break;
      case 1: store_length(memory_.writing, line, static_cast<uint32_t>(rng.below(40'000))); break;
      case 2: written.fetch_add(rng.below(1024)); break;
      case 3: written.fetch_add(kSmallRing - rng.below(2048)); break;
      case 4:
        if (rng.below(16) == 0) written.store(rng.next());
        break;
      case 5:
        memory_.writing.ring()[rng.below(2 * kSmallRing)] = static_cast<std::byte>(line);
        break;
      case 6:
        store_length(memory_.writing, line,
                     kIsElsewhere | static_cast<uint32_t>(rng.below(40'000)));
        break;
      default:
        for (uint64_t count = rng.below(8); count > 0; --count) {
          const TxPacket packet = packets_.make(count, 56 + static_cast<uint32_t>(rng.below(3000)));
          rng.below(2) == 0 ? writer_->put(packet) : writer_->put_place(packet, rng.next());
        }
        writer_->publish();
    }
  }

  // Returns whether all packets that the reader sees are in its mapping, and reads their ends.
  bool is_reader_safe(Rng& rng) {
    for (uint64_t count = rng.below(64); count > 0; --count) {
      const auto packet = reader_->next();
      if (!packet) break;
      if (packet->bytes < limits::kPacketOverheadBytes || !memory_.holds(*packet)) return false;
      sum += static_cast<uint64_t>(packet->header[0]);
      sum += static_cast<uint64_t>(packet->tag[limits::kTagBytes - 1]);
      const uint32_t payload_bytes = packet->bytes - limits::kPacketOverheadBytes;
      if (packet->payload != nullptr && payload_bytes > 0) {
        sum += static_cast<uint64_t>(packet->payload[payload_bytes - 1]);
      }
      ++packets_seen;
    }
    if (rng.below(2) == 0) reader_->release();
    if (reader_->is_broken()) {
      if (reader_->next() || !reader_->is_empty()) return false;
      ++readers_broken;
      restart();
    }
    return true;
  }

  uint64_t packets_seen = 0;
  uint64_t readers_broken = 0;
  uint64_t sum = 0;  // adds up the bytes read, so that no read is optimized away

 private:
  void restart() {
    memory_.writing.head().written = 0;
    memory_.reading.head().released = 0;
    reader_.emplace(memory_.reader());
    writer_.emplace(memory_.writer());
  }

  RingMemory memory_;
  NumberedPackets packets_;
  std::optional<RingWriter> writer_;
  std::optional<RingReader> reader_;
};

// Two lanes that are each other's ends.
struct LaneEnds {
  std::unique_ptr<ShmLane> one, two;

  LaneEnds() {
    int sockets[2] = {-1, -1};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) == 0);
    OwnSegment first = small_segment();
    OwnSegment second = small_segment();
    OtherSegment of_first = as_seen(first);
    OtherSegment of_second = as_seen(second);
    one = std::make_unique<ShmLane>(std::move(first), std::move(of_second), Descriptor(sockets[0]));
    two = std::make_unique<ShmLane>(std::move(second), std::move(of_first), Descriptor(sockets[1]));
  }
};

bool has_bell(const ShmLane& lane, int timeout_ms = 0) {
  pollfd wait{lane.connection(), POLLIN, 0};
  return poll(&wait, 1, timeout_ms) == 1;
}

// Returns how many bells were rung, and takes them.
int take_bells(const ShmLane& lane) {
  int count = 0;
  char bell = 0;
  while (recv(lane.connection(), &bell, sizeof(bell), MSG_DONTWAIT) == 1) ++count;
  return count;
}

}  // namespace

TEST_CASE("packets of all sizes pass a ring whole and in order, over many wraps") {
  RingMemory memory;
  RingWriter writer = memory.writer();
  RingReader reader = memory.reader();
  const NumberedPackets packets;
  Rng rng(2);
  uint64_t sent = 0;
  uint64_t received = 0;
  while (received < kPacketSizes) {
    while (sent < kPacketSizes && writer.put(packets.make(sent, mixed_size(sent)))) ++sent;
    writer.publish();
    for (uint64_t count = 1 + rng.below(8); count > 0 && received < sent; --count) {
      const auto packet = reader.next();
      REQUIRE(packet.has_value());
      const bool is_sound =
          memory.holds(*packet) && packets.is_whole(*packet, received, mixed_size(received));
      INFO("packet " << received << " of " << mixed_size(received) << " bytes");
      REQUIRE(is_sound);
      ++received;
    }
    reader.release();
  }
  CHECK(memory.writing.head().written > 1000 * kSmallRing);
  CHECK_FALSE(reader.next().has_value());
  CHECK_FALSE(reader.is_broken());
  CHECK_FALSE(writer.is_broken());
}

TEST_CASE("a packet in a ring is seen once it is published") {
  RingMemory memory;
  RingWriter writer = memory.writer();
  RingReader reader = memory.reader();
  const NumberedPackets packets;
  REQUIRE(writer.put(packets.make(1, 100)));
  CHECK(reader.is_empty());
  CHECK_FALSE(reader.next().has_value());
  writer.publish();
  CHECK_FALSE(reader.is_empty());
  CHECK(reader.next().has_value());
  CHECK(reader.is_empty());
}

TEST_CASE("a full ring refuses packets, and goes on after a release") {
  RingMemory memory;
  RingWriter writer = memory.writer();
  RingReader reader = memory.reader();
  const NumberedPackets packets;
  constexpr uint32_t kBytes = 1056;
  const uint64_t room = kSmallRing / ring_record_bytes(kBytes);
  uint64_t sent = 0;
  while (writer.put(packets.make(sent, kBytes))) ++sent;
  CHECK(sent == room);
  writer.publish();
  for (uint64_t number = 0; number < room; ++number) {
    const auto packet = reader.next();
    REQUIRE(packet.has_value());
    REQUIRE(packets.is_whole(*packet, number, kBytes));
  }
  CHECK_FALSE(reader.next().has_value());
  CHECK_FALSE(writer.put(packets.make(sent, kBytes)));  // the reader still needs all of them
  reader.release();
  REQUIRE(writer.put(packets.make(sent, kBytes)));
  CHECK_FALSE(reader.next().has_value());
  writer.publish();
  const auto packet = reader.next();
  REQUIRE(packet.has_value());
  CHECK(packets.is_whole(*packet, sent, kBytes));
  CHECK_FALSE(writer.is_broken());
}

TEST_CASE("places of payloads pass a ring beside whole packets, over many wraps") {
  RingMemory memory;
  RingWriter writer = memory.writer();
  RingReader reader = memory.reader();
  const NumberedPackets packets;
  for (uint64_t number = 0; number < 20'000; ++number) {
    const TxPacket packet = packets.make(number, mixed_size(number));
    const bool is_elsewhere = number % 3 != 0;
    REQUIRE((is_elsewhere ? writer.put_place(packet, number << 33) : writer.put(packet)));
    writer.publish();
    auto received = reader.next();
    REQUIRE((received.has_value() && memory.holds(*received)));
    CHECK((received->payload == nullptr) == is_elsewhere);
    if (is_elsewhere) received->payload = packet.payload;
    CHECK(received->offset == (is_elsewhere ? number << 33 : 0));
    REQUIRE(packets.is_whole(*received, number, mixed_size(number)));
    reader.release();
  }
}

TEST_CASE("a packet's payload begins on a cache line of the ring") {
  RingMemory memory;
  RingWriter writer = memory.writer();
  RingReader reader = memory.reader();
  const NumberedPackets packets;
  for (const uint32_t bytes : {57u, 56u, 96u, 97u, 1464u, 8248u, limits::kPacketBytesMax, 60u}) {
    REQUIRE(writer.put(packets.make(bytes, bytes)));
    writer.publish();
    const auto packet = reader.next();
    REQUIRE(packet.has_value());
    CHECK(reinterpret_cast<uintptr_t>(packet->payload) % kCacheLineBytes == 0);
  }
}

TEST_CASE("a release frees only the packets that the reader has been given") {
  RingMemory memory;
  RingWriter writer = memory.writer();
  RingReader reader = memory.reader();
  const NumberedPackets packets;
  for (uint64_t number = 0; number < 3; ++number) REQUIRE(writer.put(packets.make(number, 200)));
  writer.publish();
  const std::atomic<uint64_t>& released = memory.reading.head().released;
  reader.release();
  CHECK(released == 0);
  REQUIRE(reader.next().has_value());
  CHECK(released == 0);
  reader.release();
  CHECK(released == ring_record_bytes(200));
  reader.release();
  CHECK(released == ring_record_bytes(200));
  REQUIRE(reader.next().has_value());
  REQUIRE(reader.next().has_value());
  CHECK(released == ring_record_bytes(200));
  reader.release();
  CHECK(released == 3 * ring_record_bytes(200));
}

TEST_CASE("a reader gives up a ring whose writer breaks its rules") {
  struct Crime {
    const char* name;
    std::function<void(const OwnSegment&)> commit;  // after one packet of 1000 bytes was read
  };
  constexpr uint64_t kRecord = ring_record_bytes(1000);
  const auto length = [](uint32_t bytes, uint64_t more) {
    return [=](const OwnSegment& segment) {
      store_length(segment, kRecord, bytes);
      segment.head().written.fetch_add(more);
    };
  };
  const auto position = [](uint64_t written) {
    return [=](const OwnSegment& segment) { segment.head().written = written; };
  };
  const Crime crimes[] = {
      {"written goes back to the start", position(0)},
      {"written goes back a little", position(kRecord - kCacheLineBytes)},
      {"written is beyond the ring", position(2 * kRecord + kSmallRing)},
      {"written is far beyond the ring", position(UINT64_MAX)},
      {"the length is 0", length(0, kRecord)},
      {"the length is too small", length(limits::kPacketOverheadBytes - 1, kRecord)},
      {"the length is too large", length(limits::kPacketBytesMax + 1, kSmallRing - kRecord)},
      {"the length is huge", length(UINT32_MAX, kSmallRing - kRecord)},
      {"the length is more than was written", length(1000, kRecord - kCacheLineBytes)},
      {"a part of a cache line was written", length(1000, 4)},
  };
  const NumberedPackets packets;
  for (const bool releases : {false, true}) {
    for (const Crime& crime : crimes) {
      INFO(crime.name << (releases ? ", after a release" : ", before a release"));
      RingMemory memory;
      RingWriter writer = memory.writer();
      RingReader reader = memory.reader();
      REQUIRE(writer.put(packets.make(1, 1000)));
      writer.publish();
      REQUIRE(reader.next().has_value());
      if (releases) reader.release();
      crime.commit(memory.writing);
      CHECK_FALSE(reader.next().has_value());
      CHECK(reader.is_broken());
      // The reader stays broken, whatever the writer does then.
      REQUIRE(writer.put(packets.make(2, 1000)));
      writer.publish();
      CHECK_FALSE(reader.next().has_value());
      CHECK(reader.is_empty());
      CHECK(reader.is_broken());
    }
  }
}

TEST_CASE("a reader stays inside its mapping whatever the writer does to head and ring") {
  HostileWriter hostile;
  Rng rng(3);
  for (int count = 0; count < 100'000; ++count) {
    hostile.act(rng);
    const bool is_safe = hostile.is_reader_safe(rng);
    INFO("corruption " << count);
    REQUIRE(is_safe);
  }
  // Both happened often, so that the corruptions have reached the reader.
  CHECK(hostile.packets_seen > 10'000);
  CHECK(hostile.readers_broken > 1000);
}

TEST_CASE("a writer gives up a ring whose reader claims to have read what was never written") {
  const NumberedPackets packets;
  const uint64_t full = kSmallRing / ring_record_bytes(1000) * ring_record_bytes(1000);
  for (const uint64_t claim : {full + 1, full + kSmallRing, UINT64_MAX}) {
    RingMemory memory;
    RingWriter writer = memory.writer();
    while (writer.put(packets.make(0, 1000))) {
    }
    writer.publish();
    CHECK_FALSE(writer.is_broken());
    memory.reading.head().released = claim;
    CHECK_FALSE(writer.put(packets.make(0, 1000)));
    CHECK(writer.is_broken());
    memory.reading.head().released = full;
    CHECK_FALSE(writer.put(packets.make(0, 1000)));
    CHECK(writer.is_broken());
  }
}

TEST_CASE("a writer gives up a ring whose reader takes back a release") {
  RingMemory memory;
  RingWriter writer = memory.writer();
  const NumberedPackets packets;
  while (writer.put(packets.make(0, 1000))) {
  }
  memory.reading.head().released = 2 * ring_record_bytes(1000);
  uint64_t more = 0;
  while (writer.put(packets.make(0, 1000))) ++more;
  CHECK(more == 2);
  CHECK_FALSE(writer.is_broken());
  memory.reading.head().released = ring_record_bytes(1000);
  CHECK_FALSE(writer.put(packets.make(0, 1000)));
  CHECK(writer.is_broken());
}

TEST_CASE("a writer wakes a reader only if it sleeps, and once for each sleep") {
  RingMemory memory;
  RingSleep reader(memory.reading.head(), memory.written.head());
  RingSleep writer(memory.writing.head(), memory.read.head());
  CHECK(writer.must_wake());  // the reader has not begun
  CHECK_FALSE(writer.must_wake());
  for (int count = 0; count < 3; ++count) {
    reader.end();
    CHECK_FALSE(writer.must_wake());
    reader.end();
    CHECK_FALSE(writer.must_wake());
    reader.begin();
    CHECK(writer.must_wake());
    CHECK_FALSE(writer.must_wake());
    reader.begin();  // the same sleep
    CHECK_FALSE(writer.must_wake());
  }
  reader.end();
  reader.begin();
  reader.end();
  CHECK_FALSE(writer.must_wake());
}

TEST_CASE("an end of a lane may not sleep if packets came before, and is rung if they come after") {
  LaneEnds lanes;
  const NumberedPackets packets;
  REQUIRE(lanes.one->put(packets.make(1, 100)));
  lanes.one->publish();
  CHECK_FALSE(lanes.two->begin_sleep());
  lanes.two->end_sleep();
  REQUIRE(lanes.two->reader().next().has_value());
  take_bells(*lanes.two);
  REQUIRE(lanes.two->begin_sleep());
  CHECK_FALSE(has_bell(*lanes.two));
  for (uint64_t number = 2; number < 5; ++number) {
    REQUIRE(lanes.one->put(packets.make(number, 100)));
    lanes.one->publish();
  }
  CHECK(has_bell(*lanes.two));
  CHECK(take_bells(*lanes.two) == 1);
  CHECK_FALSE(lanes.two->begin_sleep());
  lanes.two->end_sleep();
  REQUIRE(lanes.one->put(packets.make(5, 100)));
  lanes.one->publish();
  CHECK_FALSE(has_bell(*lanes.two));
}

TEST_CASE("no packet waits for a reader that sleeps on another thread") {
  constexpr uint64_t kCount = 20'000;
  LaneEnds lanes;
  const NumberedPackets packets;
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    Rng rng(4);
    for (uint64_t sent = 0; sent < kCount && !stop;) {
      for (uint64_t burst = 1 + rng.below(4); burst > 0 && sent < kCount; --burst) {
        if (!lanes.one->put(packets.make(sent, 56 + static_cast<uint32_t>(sent % 700)))) break;
        ++sent;
      }
      lanes.one->publish();
      if (rng.below(4) == 0) std::this_thread::yield();
    }
  });
  uint64_t received = 0;
  bool is_sound = true;
  bool is_awake = true;
  while (received < kCount && is_sound && is_awake) {
    if (const auto packet = lanes.two->reader().next()) {
      is_sound = packets.is_whole(*packet, received, 56 + static_cast<uint32_t>(received % 700));
      ++received;
      continue;
    }
    if (lanes.two->begin_sleep()) is_awake = has_bell(*lanes.two, 5000);
    lanes.two->end_sleep();
    take_bells(*lanes.two);
  }
  stop = true;
  sender.join();
  CHECK(is_sound);
  CHECK(is_awake);
  CHECK(received == kCount);
}

}  // namespace pbox::nic
